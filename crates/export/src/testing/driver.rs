//! A virtio-blk driver for tests: puts chains into a queue in memory of its own and reads the answers, without a hypervisor.

use std::sync::atomic::Ordering;

use millpond_block::BufPool;
use vm_memory::{Bytes, GuestAddress};

use super::MemoryDisk;
use crate::vhost_user::{Device, InflightMemory, Limits, Memory, QueueError, QueueSetup};

/// Bytes of the lower region of memory, at address 0.
pub const LOW: u64 = 1 << 20;
/// Where the upper region begins, which is as large; between them is nothing.
pub const HIGH: u64 = 4 << 20;
/// Where the queue's parts are.
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x2_0000;
/// Where the used ring is.
pub const USED: u64 = 0x3_0000;
/// Where headers of [`Driver::request`] and their statuses are, 32 bytes each.
const HEADERS: u64 = 0x4_0000;
/// Where indirect tables are, 256 bytes each.
const TABLES: u64 = 0x5_0000;
/// Where data may be.
pub const DATA: u64 = 0x8_0000;

/// Flags of descriptors.
pub const NEXT: u16 = 1;
/// The device writes.
pub const WRITE: u16 = 2;
/// It is a table.
pub const INDIRECT: u16 = 4;

/// A used entry: head, bytes written.
pub type Answered = (u32, u32);

/// A driver, its device and the disk behind it.
pub struct Driver {
    /// The guest's memory.
    pub memory: Memory,
    /// The device.
    pub device: Device,
    /// Its disk.
    pub disk: MemoryDisk,
    /// Entries of the queue.
    pub size: u16,
    /// Indirect tables are used.
    pub indirect: bool,
    /// The next available index.
    pub available: u16,
    /// Used entries seen.
    pub seen: u16,
    /// Times that the guest was to be told.
    pub told: usize,
    /// Why the queue broke.
    pub broken: Option<QueueError>,
    buffers: BufPool,
}

/// Memory as [`Driver`] has it.
///
/// # Panics
/// When the host has none.
pub fn memory() -> Memory {
    Memory::from_ranges(&[(GuestAddress(0), LOW as usize), (GuestAddress(HIGH), LOW as usize)]).expect("two mebibytes")
}

impl Driver {
    /// With queue 0 started.
    pub fn new(disk: MemoryDisk, size: u16, features: u64, limits: Limits) -> Driver {
        let mut driver = Driver::stopped(memory(), disk, size, features, limits);
        driver.start(0, None).expect("a queue inside the memory");
        driver
    }

    /// With no queue started.
    pub fn stopped(memory: Memory, disk: MemoryDisk, size: u16, features: u64, limits: Limits) -> Driver {
        let mut device = Device::new(7, "serial", limits);
        device.set_features(features);
        assert!(device.set_memory(memory.clone()).is_ok(), "no queue runs");
        let buffers = BufPool::default();
        Driver { memory, device, disk, size, indirect: false, available: 0, seen: 0, told: 0, broken: None, buffers }
    }

    /// Starts queue 0.
    ///
    /// # Errors
    /// As the device says.
    pub fn start(&mut self, base: u16, inflight: Option<InflightMemory>) -> Result<(), QueueError> {
        let setup = QueueSetup {
            size: self.size,
            descriptors: DESCRIPTORS,
            available: AVAILABLE,
            used: USED,
            base,
            inflight: inflight.map(|memory| (memory, 0)),
            log: Some(USED),
        };
        self.device.start(0, &setup).map(drop)
    }

    /// Writes a descriptor of the queue's table.
    pub fn descriptor(&self, index: u16, at: u64, length: u32, flags: u16, next: u16) {
        self.write_descriptor(DESCRIPTORS + 16 * u64::from(index), at, length, flags, next);
    }

    fn write_descriptor(&self, place: u64, at: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = Vec::with_capacity(16);
        bytes.extend_from_slice(&at.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
        self.poke(place, &bytes);
    }

    /// Writes bytes.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let _ = self.memory.write_slice(bytes, GuestAddress(at));
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn peek(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).expect("memory");
        bytes
    }

    /// Makes a head available.
    pub fn offer(&mut self, head: u16) {
        self.poke(AVAILABLE + 4 + 2 * u64::from(self.available % self.size), &head.to_le_bytes());
        self.set_available(self.available.wrapping_add(1));
    }

    /// Sets the available index.
    pub fn set_available(&mut self, index: u16) {
        self.available = index;
        let _ = self.memory.store(index.to_le(), GuestAddress(AVAILABLE + 2), Ordering::Release);
    }

    /// The driver's wish not to be told, and the index at which it wants to be told.
    pub fn set_suppression(&self, flags: u16, used_event: u16) {
        self.poke(AVAILABLE, &flags.to_le_bytes());
        self.poke(AVAILABLE + 4 + 2 * u64::from(self.size), &used_event.to_le_bytes());
    }

    /// The device's wish not to be kicked, and the index at which it wants to be.
    pub fn kick_wanted(&self) -> (u16, u16) {
        let word = |at| u16::from_le_bytes(self.peek(at, 2).try_into().expect("two bytes"));
        (word(USED), word(USED + 4 + 8 * u64::from(self.size)))
    }

    /// Offers a well-formed request whose chain begins at descriptor `head` (its parts follow) and whose header is number `head`.
    pub fn request(&mut self, head: u16, kind: u32, sector: u64, data: &[(u64, u32)], into_guest: bool) {
        let header = HEADERS + 32 * u64::from(head);
        let mut bytes = Vec::with_capacity(17);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&sector.to_le_bytes());
        bytes.push(0xff);
        self.poke(header, &bytes);
        let flags = if into_guest { WRITE } else { 0 };
        let mut parts = vec![(header, 16, 0)];
        parts.extend(data.iter().map(|(at, length)| (*at, *length, flags)));
        parts.push((header + 16, 1, WRITE));
        let last = parts.len() - 1;
        let table = if self.indirect { TABLES + 256 * u64::from(head) } else { DESCRIPTORS + 16 * u64::from(head) };
        let first = if self.indirect { 0 } else { head };
        for (index, (at, length, flags)) in (0u16..).zip(parts.iter().copied()) {
            let more = if usize::from(index) < last { NEXT } else { 0 };
            self.write_descriptor(table + 16 * u64::from(index), at, length, flags | more, first + index + 1);
        }
        if self.indirect {
            self.descriptor(head, table, 16 * parts.len() as u32, INDIRECT, 0);
        }
        self.offer(head);
    }

    /// Where the status of such a request is.
    pub fn status_at(&self, head: u16) -> u64 {
        HEADERS + 32 * u64::from(head) + 16
    }

    /// The status of a request made by [`Driver::request`].
    pub fn status(&self, head: u16) -> u8 {
        self.peek(HEADERS + 32 * u64::from(head) + 16, 1).first().copied().unwrap_or(0xff)
    }

    /// Lets the device take what is offered; gives the number of requests.
    pub fn take(&mut self) -> usize {
        let taken = self.device.take(&mut self.disk);
        self.broken = self.broken.or(taken.broken.map(|(_, error)| error));
        taken.requests
    }

    /// Delivers one answer of the disk; false when there is none.
    pub fn complete_one(&mut self) -> bool {
        let Some(completion) = self.disk.pop_completion() else { return false };
        self.device.complete(completion, &mut self.buffers);
        true
    }

    /// Takes and answers until nothing more happens, and gives the answers.
    pub fn run(&mut self) -> Vec<Answered> {
        while self.take() > 0 || self.complete_one() {}
        let told = &mut self.told;
        self.device.publish(|_| *told += 1);
        self.answers()
    }

    /// The used index.
    pub fn used(&self) -> u16 {
        u16::from_le(self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap_or_default())
    }

    /// Used entries since the last call.
    pub fn answers(&mut self) -> Vec<Answered> {
        let mut answers = Vec::new();
        while self.seen != self.used() {
            let entry = self.peek(USED + 4 + 8 * u64::from(self.seen % self.size), 8);
            let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
            answers.push((word(0), word(4)));
            self.seen = self.seen.wrapping_add(1);
        }
        answers
    }
}
