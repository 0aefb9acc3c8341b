//! A pipelined NBD connection with a fixed number of request slots.
//!
//! [`Client::submit`] queues a request, [`Client::kick`] sends queued requests, and
//! [`Client::wait`] collects completions; it also continues to send when the socket was full.

use super::endpoint::{Endpoint, Stream};
use super::op::{self, Dialect, Op};
use millpond_export::nbd::client::reply::{self, Content};
use millpond_export::nbd::client::{Export, Violation, negotiate};
use millpond_export::nbd::wire::{EncodedRequest, Style};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};

const INBOX_BYTES: usize = 256 << 10; // one receive takes the replies of a deep queue of small reads
const MAX_SLICES: usize = 64; // per send; far below the kernel's limit of 1,024

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Slot of the request.
    pub slot: usize,
    /// NBD error number; 0 is success.
    pub error: u32,
}

struct Slot {
    header: EncodedRequest,
    data: Vec<u8>,
    op: Op,
    offset: u64,
    length: usize,
    busy: bool,
    error: u32, // of the chunks of its reply so far
}

impl Slot {
    fn wire_bytes(&self) -> usize {
        self.header.len() + if self.op == Op::Write { self.length } else { 0 }
    }
}

/// An NBD connection in the transmission phase.
pub struct Client {
    stream: Stream,
    info: Export,
    fua: bool,
    style: Style,
    slots: Vec<Slot>,
    unsent: VecDeque<usize>,
    first_sent: usize, // bytes of the first unsent request that were sent already
    inbox: Vec<u8>,
    read_at: usize,
    filled: usize,
}

impl Client {
    /// Connects with up to `depth` requests of up to `max_bytes` bytes in flight. With `fua`, every
    /// write has the FUA flag.
    ///
    /// # Errors
    /// The server cannot be reached, speaks another protocol, or does not have the export.
    pub fn connect(endpoint: &Endpoint, depth: usize, max_bytes: usize, fua: bool) -> io::Result<Client> {
        Client::connect_in(Dialect::Simple, endpoint, depth, max_bytes, fua)
    }

    /// Connects like [`Client::connect`], with another dialect of the protocol.
    ///
    /// # Errors
    /// Those of [`Client::connect`], or the server does not support the dialect.
    pub fn connect_in(dialect: Dialect, endpoint: &Endpoint, depth: usize, max_bytes: usize, fua: bool) -> io::Result<Client> {
        let mut stream = endpoint.open()?;
        let (style, context) = dialect.agreement();
        let export = endpoint.export();
        let info = negotiate(&mut stream, export, style, context).map_err(|e| io::Error::other(format!("export '{export}': {e}")))?;
        let slot = || Slot {
            header: EncodedRequest::default(),
            data: vec![0; max_bytes],
            op: Op::Read,
            offset: 0,
            length: 0,
            busy: false,
            error: 0,
        };
        Ok(Client {
            stream,
            info,
            fua,
            style,
            slots: (0..depth.max(1)).map(|_| slot()).collect(),
            unsent: VecDeque::new(),
            first_sent: 0,
            inbox: vec![0; INBOX_BYTES],
            read_at: 0,
            filled: 0,
        })
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.info.size
    }

    /// Transmission flags of the export.
    pub fn flags(&self) -> u16 {
        self.info.flags
    }

    /// Duplicates the socket. Shutting it down ends the connection like the death of this process:
    /// with requests in flight and without a disconnect request.
    ///
    /// # Errors
    /// The process has no free file descriptors.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// Data buffer of a slot: filled before a write, valid after a read.
    pub fn data(&mut self, slot: usize) -> &mut [u8] {
        &mut self.slots[slot].data
    }

    /// Queues a request for `length` bytes at `offset` in a free slot; a flush ignores both. Panics
    /// if the slot is in flight.
    pub fn submit(&mut self, slot: usize, op: Op, offset: u64, length: usize) {
        let entry = &mut self.slots[slot];
        assert!(!entry.busy, "slot {slot} is in flight");
        assert!(op != Op::Read && op != Op::Write || length <= entry.data.len(), "{length} bytes do not fit the slot");
        let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length) };
        entry.header = op::request(self.style, op, self.fua, slot as u64, offset, u32::try_from(length).unwrap_or(u32::MAX));
        (entry.op, entry.offset, entry.length, entry.busy, entry.error) = (op, offset, length, true, 0);
        self.unsent.push_back(slot);
    }

    /// Sends queued requests as far as possible without blocking.
    ///
    /// # Errors
    /// The connection broke.
    pub fn kick(&mut self) -> io::Result<()> {
        self.send().map(|_| ())
    }

    /// Waits until at least one request is done, and appends all completions to `done`.
    ///
    /// # Errors
    /// The connection broke or the server violated the protocol; the results of requests in flight
    /// are then unknown.
    pub fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        while done.len() == before {
            let mut flags = RecvFlags::empty();
            if !self.send()? {
                let mut fds = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                flags = RecvFlags::DONTWAIT;
            }
            match recv(&self.stream, &mut self.inbox[self.filled..], flags) {
                Ok((0, _)) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
                Ok((count, _)) => self.filled += count,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            self.parse(done)?;
        }
        Ok(())
    }

    /// Executes a single request and waits for it. No other request may be in flight.
    ///
    /// # Errors
    /// The connection broke, or the server returned an error.
    pub fn call(&mut self, op: Op, offset: u64, length: usize) -> io::Result<()> {
        let mut done = Vec::with_capacity(1);
        self.submit(0, op, offset, length);
        self.wait(&mut done)?;
        match done.first() {
            Some(Done { error: 0, .. }) => Ok(()),
            Some(Done { error, .. }) => Err(io::Error::other(format!("{op:?} of {length} bytes at {offset}: NBD error {error}"))),
            None => Err(io::Error::other("no reply")),
        }
    }

    /// Sends until the socket is full; returns true when everything was sent.
    fn send(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let (mut count, mut skip) = (0, self.first_sent);
            for &slot in self.unsent.iter().take(MAX_SLICES / 2) {
                let entry = &self.slots[slot];
                let header = &*entry.header;
                if skip < header.len() {
                    slices[count] = IoSlice::new(&header[skip..]);
                    count += 1;
                }
                if entry.op == Op::Write {
                    slices[count] = IoSlice::new(&entry.data[skip.saturating_sub(header.len())..entry.length]);
                    count += 1;
                }
                skip = 0;
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match sendmsg(&self.stream, &slices[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => sent,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.first_sent += sent;
            while let Some(&slot) = self.unsent.front() {
                let bytes = self.slots[slot].wire_bytes();
                if self.first_sent < bytes {
                    break;
                }
                self.first_sent -= bytes;
                self.unsent.pop_front();
            }
        }
        Ok(true)
    }

    fn parse(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        while let Some(reply) = reply::parse(&self.inbox[self.read_at..self.filled])? {
            self.read_at += reply.bytes;
            let slot = usize::try_from(reply.cookie).ok().filter(|s| self.slots.get(*s).is_some_and(|e| e.busy));
            let slot = slot.ok_or(Violation::Cookie(reply.cookie))?;
            let entry = &mut self.slots[slot];
            let place = |offset: u64, length: usize| {
                let start = usize::try_from(offset.wrapping_sub(entry.offset)).ok().filter(|_| entry.op == Op::Read);
                let range = start.and_then(|start| Some(start..start.checked_add(length).filter(|end| *end <= entry.length)?));
                range.ok_or(Violation::Unasked)
            };
            match reply.content {
                Content::Whole if entry.op == Op::Read => {
                    let range = 0..entry.length;
                    self.read_at += fill(&mut self.stream, &mut entry.data[range], &self.inbox[self.read_at..self.filled])?;
                }
                Content::Data(offset, length) => {
                    let range = place(offset, length)?;
                    self.read_at += fill(&mut self.stream, &mut entry.data[range], &self.inbox[self.read_at..self.filled])?;
                }
                Content::Hole(offset, length) => {
                    let range = place(offset, length)?;
                    entry.data[range].fill(0);
                }
                Content::Extents(..) => return Err(Violation::Unasked.into()),
                Content::Whole | Content::None => {}
            }
            entry.error = if entry.error == 0 { reply.error } else { entry.error };
            if reply.done {
                entry.busy = false;
                done.push(Done { slot, error: entry.error });
            }
        }
        if self.read_at == self.filled {
            (self.read_at, self.filled) = (0, 0);
        } else if self.inbox.len() - self.filled < reply::MOST_BYTES {
            self.inbox.copy_within(self.read_at..self.filled, 0);
            self.filled -= self.read_at;
            self.read_at = 0;
        }
        Ok(())
    }
}

/// Copies the bytes of `here` into `data` and reads the rest; returns how many bytes were copied.
fn fill(stream: &mut Stream, data: &mut [u8], here: &[u8]) -> io::Result<usize> {
    let count = here.len().min(data.len());
    data[..count].copy_from_slice(&here[..count]);
    io::Read::read_exact(stream, &mut data[count..])?;
    Ok(count)
}

impl Drop for Client {
    fn drop(&mut self) {
        // errors are ignored: the server sees the end of the stream anyway
        let _ = self.stream.write_all(&op::disconnect(self.style));
    }
}
