//! Drives a FUSE session without a device: feeds requests and checks each reply for errors that the
//! kernel would refuse.

use std::collections::BTreeMap;

use millpond_block::Buf;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::MemoryTree;
use crate::fuse::wire::{InHeader, InitIn, OutHeader, WRITE_HEAD, init_flag, opcode};
use crate::fuse::{MAX_TRANSFER, Message, Owner, Session};

/// Reply: zero or an errno, and the body.
pub type Reply = (i32, Vec<u8>);

/// Mount of images in memory.
pub struct MemoryMount {
    /// The session under test.
    pub session: Session,
    /// The tree that the session serves.
    pub tree: MemoryTree,
    /// Replies by the number of their request.
    pub replies: BTreeMap<u64, Reply>,
    message: Message,
    last: u64,
}

impl MemoryMount {
    /// Makes a mount before INIT.
    pub fn new(tree: MemoryTree) -> MemoryMount {
        let owner = Owner { uid: 7, gid: 8, mode: 0o640 };
        let message = Message::new(Buf::zeroed(MAX_TRANSFER as usize));
        MemoryMount { session: Session::new(0x8000_0003, owner), tree, replies: BTreeMap::new(), message, last: 0 }
    }

    /// Makes a mount after INIT.
    pub fn ready(tree: MemoryTree) -> MemoryMount {
        let mut mount = MemoryMount::new(tree);
        let flags = init_flag::ASYNC_DIO | init_flag::MAX_PAGES;
        let init = InitIn { major: 7, minor: 41, flags, ..InitIn::default() };
        assert_eq!(mount.ask(opcode::INIT, 0, &init, &[]).0, 0);
        mount
    }

    /// Feeds the bytes of a request.
    ///
    /// # Panics
    /// When the request is longer than a device could deliver, or the kernel would refuse a reply.
    pub fn feed(&mut self, bytes: &[u8]) {
        let (first, second) = self.message.space();
        let (head, rest) = bytes.split_at(bytes.len().min(WRITE_HEAD));
        first[..head.len()].copy_from_slice(head);
        second[..rest.len()].copy_from_slice(rest);
        let spare = |_: &mut MemoryTree| Buf::zeroed(MAX_TRANSFER as usize);
        self.session.request(&mut self.message, bytes.len(), &mut self.tree, spare);
        self.collect();
    }

    /// Continues with the request that waits for memory.
    pub fn resume(&mut self) {
        let spare = |_: &mut MemoryTree| Buf::zeroed(MAX_TRANSFER as usize);
        self.session.resume(&mut self.message, &mut self.tree, spare);
        self.collect();
    }

    /// Sends a request and returns its number.
    pub fn start(&mut self, opcode: u32, nodeid: u64, body: &(impl IntoBytes + Immutable), more: &[u8]) -> u64 {
        self.last += 2;
        let bytes = request(self.last, opcode, nodeid, &[body.as_bytes(), more].concat());
        self.feed(&bytes);
        self.last
    }

    /// Sends a request and returns its reply.
    pub fn ask(&mut self, opcode: u32, nodeid: u64, body: &(impl IntoBytes + Immutable), more: &[u8]) -> Reply {
        let unique = self.start(opcode, nodeid, body, more);
        self.settle();
        self.replies.remove(&unique).expect("a reply")
    }

    /// Sends a request and returns the structure in its reply.
    ///
    /// # Errors
    /// The errno of the reply.
    pub fn get<T: FromBytes>(&mut self, opcode: u32, nodeid: u64, body: &(impl IntoBytes + Immutable), more: &[u8]) -> Result<T, i32> {
        match self.ask(opcode, nodeid, body, more) {
            (0, body) => Ok(T::read_from_bytes(&body).expect("a reply of the right length")),
            (error, _) => Err(error),
        }
    }

    /// Delivers one answer of the disks; returns false if there is none.
    pub fn deliver(&mut self) -> bool {
        let completion = self.tree.pop_completion();
        let answer = if completion.is_none() { self.tree.pop_answer() } else { None };
        let any = completion.is_some() || answer.is_some();
        if let Some(completion) = completion {
            assert!(self.session.complete(completion, self.tree.now * 1_000_000), "a completion nobody waits for");
        }
        if let Some(answer) = answer {
            assert!(self.session.answer(answer, &mut self.tree), "an answer nobody waits for");
        }
        self.collect();
        any
    }

    /// Delivers all answers.
    pub fn settle(&mut self) {
        while self.deliver() {}
        assert_eq!(self.session.in_flight(), 0);
    }

    fn collect(&mut self) {
        while let Some(reply) = self.session.pop_reply() {
            let bytes: Vec<u8> = reply.slices().flatten().copied().collect();
            let (header, body) = OutHeader::read_from_prefix(&bytes).expect("a header");
            assert_eq!(header.len as usize, bytes.len(), "a reply whose length is wrong");
            assert!((-511..=0).contains(&header.error), "error {}", header.error);
            assert!(header.error == 0 || body.is_empty(), "an error with something behind it");
            assert!(self.replies.insert(header.unique, (-header.error, body.to_vec())).is_none(), "two replies to {}", header.unique);
        }
    }
}

/// Encodes a request.
pub(super) fn request(unique: u64, opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    [InHeader { len, opcode, unique, nodeid, pid: 42, ..InHeader::default() }.as_bytes(), body].concat()
}
