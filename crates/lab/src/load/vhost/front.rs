//! A front end without a guest: one queue in its own memory, which the back end maps, too.

use super::socket::Socket;
use anyhow::{Context, Result, ensure};
use millpond_export::vhost_user::front_end::{self, Ring, RingPlaces, STATUS_AT, Segment, Signals, WRITE, chain, request_header};
use millpond_export::vhost_user::wire::{Region, protocol};
use millpond_export::vhost_user::{Memory, Outside};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};

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
const USED: u64 = 0x3000;
/// Offset of space for indirect tables: 128 bytes per entry.
pub const TABLES: u64 = 0x1_0000;
/// Offset of space for request headers: 32 bytes per entry.
pub const HEADERS: u64 = 0x2_0000;
/// Offset of space for data, up to the end of the memory.
pub const DATA: u64 = 0x10_0000;

/// The queue.
const PLACES: RingPlaces = RingPlaces { size: ENTRIES, descriptors: GUEST + DESCRIPTORS, available: GUEST + AVAILABLE, used: GUEST + USED };
/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC, WRITE_ZEROES, DISCARD, FLUSH.
const FEATURES: u64 = 1 << 32 | 1 << 30 | EVENT_IDX | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 9;
/// VIRTIO_F_EVENT_IDX: each side announces from which index on it wants notifications.
const EVENT_IDX: u64 = 1 << 29;
/// Protocol features that this side accepts.
const PROTOCOL: u64 = protocol::REPLY_ACK | protocol::CONFIG | protocol::INFLIGHT_SHMFD;
const PATIENCE: Duration = Duration::from_secs(300);

/// A connected front end with one queue.
pub struct FrontEnd {
    connection: front_end::FrontEnd<Socket>,
    pub(super) ring: Ring,
    memory: OwnedFd,
    bytes: u64,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    /// File of the record of requests in flight, and its description.
    record: Option<(OwnedFd, Vec<u8>)>,
    /// Virtio features that this side accepts.
    wanted: u64,
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
        let memory = file.try_clone()?.into();
        let mapped = MmapRegion::from_file(FileOffset::new(file, 0), usize::try_from(bytes)?).context("mapping the memory")?;
        let region = GuestRegionMmap::new(mapped, GuestAddress(GUEST)).context("no addresses for so much memory")?;
        let ring = Ring::new(Memory::from_regions(vec![region])?, PLACES);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call, error) = (event()?, event()?, event()?);
        let connection = front_end::FrontEnd::new(Socket::connect(socket)?);
        let mut front = FrontEnd { connection, ring, memory, bytes, kick, call, error, record: None, wanted };
        front.agree()?;
        Ok(front)
    }

    /// Reconnects, possibly to another daemon, with the same memory and the same record of requests
    /// in flight.
    ///
    /// # Errors
    /// Those of [`FrontEnd::connect`].
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.connection = front_end::FrontEnd::new(Socket::connect(socket)?);
        self.agree()
    }

    fn agree(&mut self) -> Result<()> {
        self.connection.negotiate(self.wanted, PROTOCOL)?;
        let region = Region { guest: GUEST, size: self.bytes, user: USER, offset: 0 };
        self.connection.share_memory(region, self.memory.as_fd())?;
        if self.connection.protocol() & protocol::INFLIGHT_SHMFD == 0 {
            return Ok(());
        }
        let (record, description) = match self.record.take() {
            Some(record) => record,
            None => self.connection.make_record(1, ENTRIES)?,
        };
        self.connection.share_record(record.as_fd(), &description)?;
        self.record = Some((record, description));
        Ok(())
    }

    /// Whether EVENT_IDX was negotiated.
    pub(super) fn has_events(&self) -> bool {
        self.connection.features() & EVENT_IDX != 0
    }

    /// Returns the size of the disk in bytes, from its configuration space.
    ///
    /// # Errors
    /// The back end does not provide it.
    pub fn capacity(&mut self) -> Result<u64> {
        Ok(self.connection.capacity()?)
    }

    /// Starts the queue at an index.
    ///
    /// # Errors
    /// The back end refuses.
    pub fn start(&mut self, base: u16) -> Result<()> {
        self.set_available(base)?;
        self.go_on(base)
    }

    /// Restarts the queue at an index; the available index stays as it is.
    ///
    /// # Errors
    /// The back end refuses.
    pub fn go_on(&mut self, base: u16) -> Result<()> {
        self.kick()?;
        let signals = Signals { kick: self.kick.as_fd(), call: Some(self.call.as_fd()), error: Some(self.error.as_fd()) };
        Ok(self.connection.start(0, &PLACES, base, &signals)?)
    }

    /// Stops the queue; returns the index to continue with.
    ///
    /// # Errors
    /// The connection broke.
    pub fn stop(&mut self) -> Result<u16> {
        Ok(self.connection.stop(0)?)
    }

    /// Writes into the memory at an offset.
    ///
    /// # Errors
    /// The range is outside the memory.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Outside> {
        self.ring.write(GUEST + at, bytes)
    }

    /// Reads from the memory at an offset.
    ///
    /// # Errors
    /// The range is outside the memory.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, Outside> {
        let mut bytes = vec![0; length];
        self.ring.read(GUEST + at, &mut bytes).map(|()| bytes)
    }

    /// Returns the available index that the back end sees.
    pub fn available(&self) -> u16 {
        self.ring.available()
    }

    /// Returns the index of the used ring.
    ///
    /// # Errors
    /// None in practice, because the ring is within the memory.
    pub fn used(&self) -> Result<u16> {
        Ok(self.ring.used()?)
    }

    /// Makes `count` more entries of the ring available and notifies the back end. The entries must
    /// be written before.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn offer(&mut self, count: u16) -> Result<()> {
        self.set_available(self.ring.available().wrapping_add(count))?;
        self.kick()
    }

    fn set_available(&mut self, index: u16) -> Result<()> {
        Ok(self.ring.set_available(index)?)
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
        while self.used()? != self.available() {
            ensure!(Instant::now() < end, "no answer: used {} of {}", self.used()?, self.available());
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
        self.write(HEADERS, &request_header(kind, sector))?;
        self.write(DATA, data)?;
        let parts = [
            Segment { at: GUEST + HEADERS, length: 16, flags: 0 },
            Segment { at: GUEST + DATA, length: u32::try_from(data.len())?, flags: if reads { WRITE } else { 0 } },
            Segment { at: GUEST + HEADERS + STATUS_AT, length: 1, flags: WRITE },
        ];
        self.write(DESCRIPTORS, &chain(&parts, 0))?;
        self.ring.offer(0)?;
        self.kick()?;
        ensure!(self.wait()?, "the queue broke");
        if reads {
            self.ring.read(GUEST + DATA, data)?;
        }
        let mut status = [0; 1];
        self.ring.read(GUEST + HEADERS + STATUS_AT, &mut status)?;
        Ok(status[0])
    }
}
