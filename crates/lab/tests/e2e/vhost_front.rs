//! A small vhost-user front end without a guest. It reaches its own memory by reading and writing the file behind it, which is slow and needs
//! no mapping.

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of memory.
pub const MEMORY: u64 = 4 << 20;
/// Address of the memory towards the device.
pub const GUEST: u64 = 0x1_0000_0000;
/// Address of the memory towards the front end; any number does.
const USER: u64 = 0x7000_0000_0000;
/// Entries of the queue.
pub const ENTRIES: u16 = 256;
/// Offsets in the memory.
pub const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x2000;
pub const USED: u64 = 0x3000;
pub const TABLES: u64 = 0x1_0000;
pub const HEADERS: u64 = 0x2_0000;
pub const DATA: u64 = 0x10_0000;

/// Requests of the protocol.
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
}

/// Connected, with one queue.
pub struct FrontEnd {
    socket: UnixStream,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    /// The record of requests in flight, and how it is described.
    record: Option<(OwnedFd, Vec<u8>)>,
    /// The next available index.
    pub available: u16,
}

/// A message.
pub fn message(code: u32, need_reply: bool, payload: &[u8]) -> Vec<u8> {
    let flags = 1u32 | if need_reply { 8 } else { 0 };
    let mut bytes = Vec::new();
    [code, flags, payload.len() as u32].iter().for_each(|field| bytes.extend_from_slice(&field.to_ne_bytes()));
    bytes.extend_from_slice(payload);
    bytes
}

impl FrontEnd {
    /// Connects, agrees on features and hands the memory over.
    pub fn connect(socket: &Path) -> Result<FrontEnd> {
        let memory = File::from(rustix::fs::memfd_create("front-end", MemfdFlags::CLOEXEC)?);
        memory.set_len(MEMORY)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call, error) = (event()?, event()?, event()?);
        let mut front = FrontEnd { socket: open(socket)?, memory, kick, call, error, record: None, available: 0 };
        front.agree()?;
        Ok(front)
    }

    /// Connects anew, to another daemon perhaps, with the memory and the record of requests in flight as they are.
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.socket = open(socket)?;
        self.agree()
    }

    fn agree(&mut self) -> Result<()> {
        self.tell(code::SET_OWNER, &[], None, false)?;
        let offered = self.ask(code::GET_FEATURES, &[])?;
        let features = offered & (1 << 32 | 1 << 30 | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 9);
        self.tell(code::SET_FEATURES, &features.to_ne_bytes(), None, false)?;
        let protocol = self.ask(code::GET_PROTOCOL_FEATURES, &[])? & (1 << 3 | 1 << 9 | 1 << 12);
        self.tell(code::SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), None, false)?;
        let mut table = [1u32, 0].iter().flat_map(|field| field.to_ne_bytes()).collect::<Vec<u8>>();
        [GUEST, MEMORY, USER, 0].iter().for_each(|field| table.extend_from_slice(&field.to_ne_bytes()));
        let file = self.memory.try_clone()?;
        self.tell(code::SET_MEM_TABLE, &table, Some(file.as_fd()), true)?;
        let (record, description) = match self.record.take() {
            Some(record) => record,
            None => {
                let mut asked = vec![0; 16];
                asked.extend_from_slice(&1u16.to_ne_bytes());
                asked.extend_from_slice(&ENTRIES.to_ne_bytes());
                self.send(&message(code::GET_INFLIGHT_FD, false, &asked), None)?;
                self.reply_with_descriptor()?
            }
        };
        self.tell(code::SET_INFLIGHT_FD, &description, Some(record.as_fd()), true)?;
        self.record = Some((record, description));
        Ok(())
    }

    /// Starts the queue at an index.
    pub fn start(&mut self, base: u16) -> Result<()> {
        self.available = base;
        self.go_on(base)
    }

    /// Starts the queue again at an index; what is available stays so.
    pub fn go_on(&mut self, base: u16) -> Result<()> {
        self.set_available()?;
        let pair = |value: u32| [0u32, value].iter().flat_map(|field| field.to_ne_bytes()).collect::<Vec<u8>>();
        self.tell(code::SET_VRING_NUM, &pair(u32::from(ENTRIES)), None, true)?;
        self.tell(code::SET_VRING_BASE, &pair(u32::from(base)), None, true)?;
        let mut address = pair(0);
        [DESCRIPTORS, USED, AVAILABLE].iter().for_each(|at| address.extend_from_slice(&(USER + at).to_ne_bytes()));
        address.extend_from_slice(&0u64.to_ne_bytes());
        self.tell(code::SET_VRING_ADDR, &address, None, true)?;
        let [kick, call, error] = [&self.kick, &self.call, &self.error].map(OwnedFd::try_clone);
        self.tell(code::SET_VRING_CALL, &0u64.to_ne_bytes(), Some(call?.as_fd()), true)?;
        self.tell(code::SET_VRING_ERR, &0u64.to_ne_bytes(), Some(error?.as_fd()), true)?;
        self.tell(code::SET_VRING_KICK, &0u64.to_ne_bytes(), Some(kick?.as_fd()), true)?;
        self.tell(code::SET_VRING_ENABLE, &pair(1), None, true)
    }

    /// Stops the queue; gives the index to go on with.
    pub fn stop(&mut self) -> Result<u16> {
        let reply = self.call(code::GET_VRING_BASE, &[0; 8])?;
        let base = reply.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes).context("a short answer")?;
        Ok(u16::try_from(base)?)
    }

    /// Writes into its memory.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(bytes, at)?)
    }

    /// Reads from its memory.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// The index of the used ring.
    pub fn used(&self) -> Result<u16> {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, USED + 2)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Makes `count` more entries available and kicks. The entries of the ring are there already.
    pub fn offer(&mut self, count: u16) -> Result<()> {
        self.available = self.available.wrapping_add(count);
        self.set_available()
    }

    fn set_available(&self) -> Result<()> {
        self.write(AVAILABLE + 2, &self.available.to_le_bytes())?;
        rustix::io::write(&self.kick, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits until all is answered. False when the queue broke.
    pub fn wait(&self) -> Result<bool> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if self.used()? == self.available {
                return Ok(true);
            }
            ensure!(Instant::now() < end, "no answer: used {} of {}", self.used()?, self.available);
            let mut fds = [PollFd::new(&self.call, PollFlags::IN), PollFd::new(&self.error, PollFlags::IN)];
            let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            poll(&mut fds, Some(&pause))?;
            let _ = rustix::io::read(&self.call, &mut [0u8; 8]);
            if rustix::io::read(&self.error, &mut [0u8; 8]).is_ok() {
                return Ok(false);
            }
        }
    }

    /// A well-formed request by itself: `data` is what is written or, for a read, where what is read goes. Gives the status.
    pub fn request(&mut self, kind: u32, sector: u64, data: &mut [u8]) -> Result<u8> {
        let reads = kind == 0;
        let mut header = kind.to_le_bytes().to_vec();
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&sector.to_le_bytes());
        header.push(0xff);
        self.write(HEADERS, &header)?;
        self.write(DATA, data)?;
        let parts = [
            (GUEST + HEADERS, 16, 1, 1),
            (GUEST + DATA, u32::try_from(data.len())?, 1 | if reads { 2 } else { 0 }, 2),
            (GUEST + HEADERS + 16, 1, 2u16, 0u16),
        ];
        let table: Vec<u8> = parts.iter().flat_map(|(at, length, flags, next)| descriptor(*at, *length, *flags, *next)).collect();
        self.write(DESCRIPTORS, &table)?;
        self.write(AVAILABLE + 4 + 2 * u64::from(self.available % ENTRIES), &0u16.to_le_bytes())?;
        self.offer(1)?;
        ensure!(self.wait()?, "the queue broke");
        if reads {
            data.copy_from_slice(&self.read(DATA, data.len())?);
        }
        Ok(self.read(HEADERS + 16, 1)?[0])
    }

    /// Sends what need not be answered; with `acknowledged`, waits for it to be done.
    fn tell(&mut self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>, acknowledged: bool) -> Result<()> {
        self.send(&message(code, acknowledged, payload), fd)?;
        if acknowledged {
            let status = self.reply()?;
            ensure!(status.iter().all(|byte| *byte == 0), "message {code} was refused");
        }
        Ok(())
    }

    /// Asks for a number.
    pub fn ask(&mut self, code: u32, payload: &[u8]) -> Result<u64> {
        let reply = self.call(code, payload)?;
        reply.try_into().map(u64::from_ne_bytes).ok().context("an answer of another length")
    }

    fn call(&mut self, code: u32, payload: &[u8]) -> Result<Vec<u8>> {
        self.send(&message(code, false, payload), None)?;
        self.reply()
    }

    /// Sends bytes, with a descriptor or without.
    pub fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let sent = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        ensure!(sent == bytes.len(), "a message was cut short");
        Ok(())
    }

    fn reply_with_descriptor(&mut self) -> Result<(OwnedFd, Vec<u8>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64];
        let received = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next().context("no descriptor came")?;
        Ok((fd, bytes.get(12..received.bytes).context("a short answer")?.to_vec()))
    }

    fn reply(&mut self) -> Result<Vec<u8>> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).context("waiting for an answer")?;
        let [.., a, b, c, d] = header;
        let mut payload = vec![0; u32::from_ne_bytes([a, b, c, d]) as usize];
        self.socket.read_exact(&mut payload).context("waiting for an answer's bytes")?;
        Ok(payload)
    }
}

fn open(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// A descriptor's bytes.
pub fn descriptor(at: u64, length: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
