//! A small vhost-user front end without a guest: one queue in its own memory, which the back end
//! maps, too.

use super::message::Talk;
use anyhow::{Context, Result, ensure};
use millpond_export::vhost_user::wire::code;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Default size of the memory in bytes.
pub const MEMORY: u64 = 4 << 20;
/// Guest address of the memory.
pub const GUEST: u64 = 0x1_0000_0000;
/// User address of the memory, as given to the back end; any number does.
const USER: u64 = 0x7000_0000_0000;
/// Number of entries of the queue.
pub const ENTRIES: u16 = 256;
/// Offset of the descriptor table in the memory.
pub const DESCRIPTORS: u64 = 0;
/// Offset of the available ring.
pub const AVAILABLE: u64 = 0x2000;
/// Offset of the used ring.
pub const USED: u64 = 0x3000;
/// Offset of space for indirect tables: 128 bytes per entry.
pub const TABLES: u64 = 0x1_0000;
/// Offset of space for request headers: 32 bytes per entry.
pub const HEADERS: u64 = 0x2_0000;
/// Offset of space for data, up to the end of the memory.
pub const DATA: u64 = 0x10_0000;

/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC, WRITE_ZEROES, DISCARD, FLUSH.
const FEATURES: u64 = 1 << 32 | 1 << 30 | EVENT_IDX | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 9;
/// VIRTIO_F_EVENT_IDX: each side announces from which index on it wants notifications.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// Protocol feature: messages are acknowledged on request.
const REPLY_ACK: u64 = 1 << 3;
/// Protocol feature: the configuration space can be read.
const CONFIG: u64 = 1 << 9;
/// Protocol feature: requests in flight are recorded in shared memory.
const INFLIGHT: u64 = 1 << 12;
/// Bytes of the configuration space that are read: the disk's capacity.
const CAPACITY: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(300);

/// A connected front end with one queue.
pub struct FrontEnd {
    talk: Talk,
    memory: MmapRegion<()>,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    /// File of the record of requests in flight, and its description.
    record: Option<(OwnedFd, Vec<u8>)>,
    /// Virtio features that this side accepts, virtio features that were negotiated, and protocol
    /// features that were negotiated.
    wanted: u64,
    features: u64,
    protocol: u64,
    /// Next available index.
    pub available: u16,
}

impl FrontEnd {
    /// Connects, negotiates features without EVENT_IDX, and shares the memory.
    ///
    /// # Errors
    /// The socket cannot be reached, or it is no back end.
    pub fn connect(socket: &Path) -> Result<FrontEnd> {
        FrontEnd::connect_with(socket, MEMORY, FEATURES & !EVENT_IDX)
    }

    /// Connects with `bytes` of memory, and with EVENT_IDX if it is offered.
    ///
    /// # Errors
    /// Those of [`FrontEnd::connect`].
    pub fn connect_with_events(socket: &Path, bytes: u64) -> Result<FrontEnd> {
        FrontEnd::connect_with(socket, bytes, FEATURES)
    }

    fn connect_with(socket: &Path, bytes: u64, wanted: u64) -> Result<FrontEnd> {
        let file = File::from(rustix::fs::memfd_create("front-end", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), usize::try_from(bytes)?).context("mapping the memory")?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call, error) = (event()?, event()?, event()?);
        let talk = Talk::connect(socket)?;
        let mut front = FrontEnd { talk, memory, kick, call, error, record: None, wanted, features: 0, protocol: 0, available: 0 };
        front.agree()?;
        Ok(front)
    }

    /// Reconnects, possibly to another daemon, with the same memory and the same record of requests
    /// in flight.
    ///
    /// # Errors
    /// Those of [`FrontEnd::connect`].
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.talk = Talk::connect(socket)?;
        self.agree()
    }

    fn agree(&mut self) -> Result<()> {
        self.talk.tell(code::SET_OWNER, &[], None, false)?;
        self.features = self.talk.ask(code::GET_FEATURES, &[])? & self.wanted;
        self.talk.tell(code::SET_FEATURES, &self.features.to_ne_bytes(), None, false)?;
        self.protocol = self.talk.ask(code::GET_PROTOCOL_FEATURES, &[])? & (REPLY_ACK | CONFIG | INFLIGHT);
        self.talk.tell(code::SET_PROTOCOL_FEATURES, &self.protocol.to_ne_bytes(), None, false)?;
        let mut table = [1u32, 0].iter().flat_map(|field| field.to_ne_bytes()).collect::<Vec<u8>>();
        [GUEST, self.memory.size() as u64, USER, 0].iter().for_each(|field| table.extend_from_slice(&field.to_ne_bytes()));
        let file = self.memory.file_offset().context("memory without a file")?.file().try_clone()?;
        self.tell(code::SET_MEM_TABLE, &table, Some(&file.into()))?;
        if self.protocol & INFLIGHT == 0 {
            return Ok(());
        }
        let (record, description) = match self.record.take() {
            Some(record) => record,
            None => {
                let mut asked = vec![0; 16];
                asked.extend_from_slice(&1u16.to_ne_bytes());
                asked.extend_from_slice(&ENTRIES.to_ne_bytes());
                self.talk.call_for_descriptor(code::GET_INFLIGHT_FD, &asked)?
            }
        };
        self.tell(code::SET_INFLIGHT_FD, &description, Some(&record))?;
        self.record = Some((record, description));
        Ok(())
    }

    /// Whether EVENT_IDX was negotiated.
    pub(super) fn has_events(&self) -> bool {
        self.features & EVENT_IDX != 0
    }

    /// Returns the size of the disk in bytes, from its configuration space.
    ///
    /// # Errors
    /// The back end does not provide it.
    pub fn capacity(&mut self) -> Result<u64> {
        let mut asked: Vec<u8> = [0, CAPACITY, 0].iter().flat_map(|field: &u32| field.to_ne_bytes()).collect();
        asked.extend_from_slice(&[0; CAPACITY as usize]);
        let reply = self.talk.call(code::GET_CONFIG, &asked)?;
        let sectors = reply.last_chunk().filter(|_| reply.len() > CAPACITY as usize).context("no configuration space")?;
        Ok(u64::from_le_bytes(*sectors) * 512)
    }

    /// Starts the queue at an index.
    ///
    /// # Errors
    /// The back end refuses.
    pub fn start(&mut self, base: u16) -> Result<()> {
        self.available = base;
        self.go_on(base)
    }

    /// Restarts the queue at an index; the available index stays as it is.
    ///
    /// # Errors
    /// The back end refuses.
    pub fn go_on(&mut self, base: u16) -> Result<()> {
        self.set_available()?;
        let pair = |value: u32| [0u32, value].iter().flat_map(|field| field.to_ne_bytes()).collect::<Vec<u8>>();
        self.tell(code::SET_VRING_NUM, &pair(u32::from(ENTRIES)), None)?;
        self.tell(code::SET_VRING_BASE, &pair(u32::from(base)), None)?;
        let mut address = pair(0);
        [DESCRIPTORS, USED, AVAILABLE].iter().for_each(|at| address.extend_from_slice(&(USER + at).to_ne_bytes()));
        address.extend_from_slice(&0u64.to_ne_bytes());
        self.tell(code::SET_VRING_ADDR, &address, None)?;
        let [kick, call, error] = [&self.kick, &self.call, &self.error].map(OwnedFd::try_clone);
        self.tell(code::SET_VRING_CALL, &0u64.to_ne_bytes(), Some(&call?))?;
        self.tell(code::SET_VRING_ERR, &0u64.to_ne_bytes(), Some(&error?))?;
        self.tell(code::SET_VRING_KICK, &0u64.to_ne_bytes(), Some(&kick?))?;
        self.tell(code::SET_VRING_ENABLE, &pair(1), None)
    }

    /// Stops the queue; returns the index to continue with.
    ///
    /// # Errors
    /// The connection broke.
    pub fn stop(&mut self) -> Result<u16> {
        let reply = self.talk.call(code::GET_VRING_BASE, &[0; 8])?;
        let base = reply.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes).context("a short answer")?;
        Ok(u16::try_from(base)?)
    }

    /// Writes into the memory at an offset.
    ///
    /// # Errors
    /// The range is outside the memory.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.get_slice(usize::try_from(at)?, bytes.len())?.copy_from(bytes);
        Ok(())
    }

    /// Reads from the memory at an offset.
    ///
    /// # Errors
    /// The range is outside the memory.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_into(at, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read_into(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory.get_slice(usize::try_from(at)?, bytes.len())?.copy_to(bytes);
        Ok(())
    }

    /// Loads a 16-bit number that the back end may change, with acquire ordering.
    pub(super) fn load(&self, at: u64) -> Result<u16> {
        let slice = self.memory.get_slice(usize::try_from(at)?, 2)?;
        Ok(u16::from_le(slice.load(0, Ordering::Acquire)?))
    }

    /// Stores a 16-bit number that the back end reads, with release ordering.
    pub(super) fn store(&self, at: u64, value: u16) -> Result<()> {
        let slice = self.memory.get_slice(usize::try_from(at)?, 2)?;
        Ok(slice.store(value.to_le(), 0, Ordering::Release)?)
    }

    /// Returns the index of the used ring.
    ///
    /// # Errors
    /// None in practice, because the ring is within the memory.
    pub fn used(&self) -> Result<u16> {
        self.load(USED + 2)
    }

    /// Makes `count` more entries of the ring available and notifies the back end. The entries must
    /// be written before.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn offer(&mut self, count: u16) -> Result<()> {
        self.available = self.available.wrapping_add(count);
        self.set_available()
    }

    fn set_available(&self) -> Result<()> {
        self.store(AVAILABLE + 2, self.available)?;
        self.kick()
    }

    pub(super) fn kick(&self) -> Result<()> {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits until all requests are completed. Returns false if the queue broke.
    ///
    /// # Errors
    /// A timeout.
    pub fn wait(&self) -> Result<bool> {
        let end = Instant::now() + PATIENCE;
        while self.used()? != self.available {
            ensure!(Instant::now() < end, "no answer: used {} of {}", self.used()?, self.available);
            if !self.sleep()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps until the back end notifies, for a limited time. Returns false if the queue broke.
    pub(super) fn sleep(&self) -> Result<bool> {
        let mut fds = [PollFd::new(&self.call, PollFlags::IN), PollFd::new(&self.error, PollFlags::IN)];
        let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        poll(&mut fds, Some(&pause))?;
        let _ = rustix::io::read(&self.call, &mut [0u8; 8]);
        Ok(rustix::io::read(&self.error, &mut [0u8; 8]).is_err())
    }

    /// Executes one well-formed request: `data` is written or, for a read, filled. Returns the
    /// status byte.
    ///
    /// # Errors
    /// The queue broke, or no completion arrives in time.
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
            self.read_into(DATA, data)?;
        }
        let mut status = [0; 1];
        self.read_into(HEADERS + 16, &mut status)?;
        Ok(status[0])
    }

    /// Sends a message without a reply; if acknowledgements were negotiated, waits for the
    /// acknowledgement.
    fn tell(&mut self, code: u32, payload: &[u8], fd: Option<&OwnedFd>) -> Result<()> {
        self.talk.tell(code, payload, fd.map(AsFd::as_fd), self.protocol & REPLY_ACK != 0)
    }
}

/// Encodes a descriptor.
pub fn descriptor(at: u64, length: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
