//! A virtio-blk driver for tests, without a hypervisor: it puts chains into a queue in its own
//! memory and reads the answers.

use std::sync::atomic::Ordering;

use millpond_block::BufPool;
use vm_memory::{Bytes, GuestAddress};

use super::MemoryDisk;
use crate::vhost_user::{Device, InflightMemory, Limits, Memory, QueueError, QueueSetup};

/// Size in bytes of the lower memory region, at address 0.
pub const LOW: u64 = 1 << 20;
/// Address of the upper memory region, which has the same size. Addresses between the regions have
/// no memory.
pub const HIGH: u64 = 4 << 20;
/// Addresses of the parts of the queue.
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x2_0000;
/// Address of the used ring.
pub const USED: u64 = 0x3_0000;
/// Address of headers and statuses of [`Driver::request`], 32 bytes for each request.
const HEADERS: u64 = 0x4_0000;
/// Address of indirect tables, 256 bytes each.
const TABLES: u64 = 0x5_0000;
/// Lowest address for data.
pub const DATA: u64 = 0x8_0000;

/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes to the segment.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: the segment is an indirect table.
pub const INDIRECT: u16 = 4;

/// Entry of the used ring: head, and bytes written.
pub type Answered = (u32, u32);

/// A driver with its device and disk.
pub struct Driver {
    /// The guest's memory.
    pub memory: Memory,
    /// The device.
    pub device: Device,
    /// The device's disk.
    pub disk: MemoryDisk,
    /// Number of entries of the queue.
    pub size: u16,
    /// True if requests use indirect tables.
    pub indirect: bool,
    /// The next available index.
    pub available: u16,
    /// Number of used entries that were read.
    pub seen: u16,
    /// Number of notifications to the guest.
    pub told: usize,
    /// Reason for which the queue broke.
    pub broken: Option<QueueError>,
    buffers: BufPool,
}

/// Makes memory with the two regions of [`Driver`].
///
/// # Panics
/// When the host has no memory.
pub fn memory() -> Memory {
    Memory::from_ranges(&[(GuestAddress(0), LOW as usize), (GuestAddress(HIGH), LOW as usize)]).expect("two mebibytes")
}

impl Driver {
    /// Makes a driver with queue 0 started.
    pub fn new(disk: MemoryDisk, size: u16, features: u64, limits: Limits) -> Driver {
        let mut driver = Driver::stopped(memory(), disk, size, features, limits);
        driver.start(0, None).expect("a queue inside the memory");
        driver
    }

    /// Makes a driver with no queue started.
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
    /// See [`Device::start`].
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

    /// Writes bytes to the guest's memory; addresses without memory are ignored.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let _ = self.memory.write_slice(bytes, GuestAddress(at));
    }

    /// Reads bytes from the guest's memory.
    ///
    /// # Panics
    /// When an address has no memory.
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

    /// Sets the driver's flags that suppress notifications, and the used index at which it wants
    /// one.
    pub fn set_suppression(&self, flags: u16, used_event: u16) {
        self.poke(AVAILABLE, &flags.to_le_bytes());
        self.poke(AVAILABLE + 4 + 2 * u64::from(self.size), &used_event.to_le_bytes());
    }

    /// Returns the device's flags that suppress kicks, and the available index at which it wants
    /// one.
    pub fn kick_wanted(&self) -> (u16, u16) {
        let word = |at| u16::from_le_bytes(self.peek(at, 2).try_into().expect("two bytes"));
        (word(USED), word(USED + 4 + 8 * u64::from(self.size)))
    }

    /// Offers a well-formed request. Its chain begins at descriptor `head` and uses the descriptors
    /// after it; its header is number `head`.
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

    /// Returns the address of the status of a request made by [`Driver::request`].
    pub fn status_at(&self, head: u16) -> u64 {
        HEADERS + 32 * u64::from(head) + 16
    }

    /// Returns the status of a request made by [`Driver::request`].
    pub fn status(&self, head: u16) -> u8 {
        self.peek(HEADERS + 32 * u64::from(head) + 16, 1).first().copied().unwrap_or(0xff)
    }

    /// Makes the device take the offered requests; returns their number.
    pub fn take(&mut self) -> usize {
        let taken = self.device.take(&mut self.disk);
        self.broken = self.broken.or(taken.broken.map(|(_, error)| error));
        taken.requests
    }

    /// Delivers one answer of the disk; returns false if there is none.
    pub fn complete_one(&mut self) -> bool {
        let Some(completion) = self.disk.pop_completion() else { return false };
        self.device.complete(completion, &mut self.buffers);
        true
    }

    /// Takes requests and delivers answers until there are no more; returns the answers.
    pub fn run(&mut self) -> Vec<Answered> {
        while self.take() > 0 || self.complete_one() {}
        let told = &mut self.told;
        self.device.publish(|_| *told += 1);
        self.answers()
    }

    /// Returns the used index.
    pub fn used(&self) -> u16 {
        u16::from_le(self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap_or_default())
    }

    /// Returns the used entries since the last call.
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
