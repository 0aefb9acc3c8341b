use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vm_memory::GuestAddress;

use super::message::{longs, words};
use super::{Channel, FrontEnd, INDIRECT, NEXT, Ring, RingPlaces, Segment, Signals, Violation, WRITE, chain, descriptor};
use crate::vhost_user::wire::{HEADER, Region, code, protocol};
use crate::vhost_user::{Memory, Outside};

const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const PLACES: RingPlaces = RingPlaces { size: 8, descriptors: 0x1000, available: 0x2000, used: 0x3000 };
const REGION: Region = Region { guest: 0x1000, size: 0x4000, user: 0x7000_1000, offset: 0 };

/// Back end that records codes and payloads, and replies with prepared bytes.
#[derive(Default)]
struct Script {
    sent: Vec<(u32, Vec<u8>)>,
    replies: VecDeque<u8>,
    fd: Option<OwnedFd>,
}

impl Script {
    fn reply(&mut self, code: u32, payload: &[u8]) {
        self.replies.extend(words(&[code, 5, payload.len() as u32]));
        self.replies.extend(payload);
    }
}

impl Channel for Script {
    fn send(&mut self, bytes: &[u8], _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (code, payload) = (bytes[..4].try_into().expect("a code"), bytes[HEADER..].to_vec());
        self.sent.push((u32::from_ne_bytes(code), payload));
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
        for byte in bytes {
            *byte = self.replies.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(self.fd.take())
    }
}

fn fd() -> OwnedFd {
    rustix::pipe::pipe().expect("a pipe").0
}

fn violation(error: io::Error) -> Option<Violation> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>()).copied()
}

fn negotiated(features: u64, protocol: u64) -> FrontEnd<Script> {
    let mut front = FrontEnd::new(Script::default());
    front.channel().reply(code::GET_FEATURES, &longs(&[features]));
    if features & PROTOCOL_FEATURES != 0 {
        front.channel().reply(code::GET_PROTOCOL_FEATURES, &longs(&[protocol]));
    }
    front.negotiate(VERSION_1 | PROTOCOL_FEATURES, protocol::ALL).expect("negotiated");
    front
}

#[test]
fn a_queue_starts_by_its_kick_or_by_an_acknowledged_enabling() {
    let kick = fd();
    let signals = Signals { kick: kick.as_fd(), call: None, error: None };
    let mut front = negotiated(VERSION_1 | 1, 0);
    assert_eq!((front.features(), front.protocol()), (VERSION_1, 0), "only those accepted");
    assert!(front.start(0, &PLACES, 3, &signals).is_err_and(|error| violation(error) == Some(Violation::Place)), "no memory");
    front.share_memory(REGION, kick.as_fd()).expect("shared");
    front.channel().sent.clear();
    front.start(0, &PLACES, 3, &signals).expect("started");
    let address = [words(&[0, 0]), longs(&[0x7000_1000, 0x7000_3000, 0x7000_2000, 0])].concat();
    let codes = [code::SET_VRING_NUM, code::SET_VRING_BASE, code::SET_VRING_ADDR, code::SET_VRING_KICK];
    let payloads = [words(&[0, 8]), words(&[0, 3]), address, longs(&[0])];
    assert_eq!(front.channel().sent, codes.into_iter().zip(payloads).collect::<Vec<_>>());

    let mut front = negotiated(VERSION_1 | PROTOCOL_FEATURES, protocol::REPLY_ACK | 1 << 60);
    assert_eq!(front.protocol(), protocol::REPLY_ACK);
    front.channel().reply(code::SET_MEM_TABLE, &longs(&[0]));
    front.share_memory(REGION, kick.as_fd()).expect("shared");
    for code in codes {
        front.channel().reply(code, &longs(&[0]));
    }
    front.channel().reply(code::SET_VRING_ENABLE, &longs(&[1]));
    let refused = front.start(0, &PLACES, 3, &signals).expect_err("refused");
    assert_eq!(violation(refused), Some(Violation::Refused(code::SET_VRING_ENABLE)));
}

#[test]
fn replies_are_checked() {
    let mut front = negotiated(VERSION_1, 0);
    front.channel().reply(code::GET_VRING_BASE, &words(&[0, 77]));
    assert_eq!(front.stop(0).expect("stopped"), 77);
    front.channel().reply(code::GET_CONFIG, &[words(&[0, 8, 0]), longs(&[2048])].concat());
    assert_eq!(front.capacity().expect("a size"), 1 << 20);
    front.channel().reply(code::GET_CONFIG, &[]);
    assert_eq!(violation(front.capacity().expect_err("nothing")), Some(Violation::NoConfiguration));
    front.channel().reply(code::GET_FEATURES, &longs(&[0]));
    assert_eq!(violation(front.stop(0).expect_err("another reply")), Some(Violation::Reply(code::GET_VRING_BASE)));
    front.channel().replies.clear();
    front.channel().replies.extend(words(&[code::GET_VRING_BASE, 5, u32::MAX]));
    assert_eq!(violation(front.stop(0).expect_err("too long")), Some(Violation::Reply(code::GET_VRING_BASE)));
    front.channel().reply(code::GET_INFLIGHT_FD, &[1; 20]);
    let none = front.make_record(1, 8).expect_err("no descriptor");
    assert_eq!(violation(none), Some(Violation::NoDescriptor(code::GET_INFLIGHT_FD)));
    front.channel().fd = Some(fd());
    front.channel().reply(code::GET_INFLIGHT_FD, &[1; 20]);
    assert_eq!(front.make_record(1, 8).expect("a record").1, [1; 20]);
}

#[test]
fn chains_are_linked_and_rings_wrap_around() {
    let parts = [(1, 16, 0), (2, 512, WRITE), (3, 1, WRITE)].map(|(at, length, flags)| Segment { at, length, flags });
    let linked = [descriptor(1, 16, NEXT, 6), descriptor(2, 512, NEXT | WRITE, 7), descriptor(3, 1, WRITE, 0)].concat();
    assert_eq!(chain(&parts, 5).as_slice(), linked);
    assert_eq!(descriptor(1, 2, INDIRECT, 3), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 3, 0]);

    let memory = Memory::from_ranges(&[(GuestAddress(0), 0x4000)]).expect("memory");
    let mut ring = Ring::new(memory, PLACES);
    for head in 0..9 {
        ring.offer(head).expect("memory");
    }
    let mut entries = [0; 2 + 16];
    ring.read(0x2002, &mut entries).expect("memory");
    assert_eq!(entries, [9, 0, 8, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0]);
    // The device has answered the ninth entry, and wants a kick after the ninth one.
    ring.write(0x3000, &[[1, 0, 9, 0].as_slice(), &words(&[8, 513])].concat()).expect("memory");
    ring.write(0x3000 + 4 + 64, &[8, 0]).expect("memory");
    ring.seen = 8;
    assert_eq!((ring.used(), ring.take(), ring.seen), (Ok(9), Ok((8, 513)), 9));
    assert_eq!(ring.wants_kick(8, false), Ok(false), "its flag suppresses kicks");
    assert_eq!((ring.wants_kick(8, true), ring.wants_kick(9, true)), (Ok(true), Ok(false)));
    assert_eq!(ring.write(0x3fff, &[0; 2]), Err(Outside));
}
