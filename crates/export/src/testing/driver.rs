//! A virtio-blk driver for tests, without a hypervisor: it puts chains into a queue in its own
//! memory and reads the answers.

use millpond_block::BufPool;
use vm_memory::GuestAddress;

use super::MemoryDisk;
pub use crate::vhost_user::front_end::{INDIRECT, NEXT, WRITE};
use crate::vhost_user::front_end::{Ring, RingPlaces, STATUS_AT, Segment, chain, descriptor, request_header};
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

/// Entry of the used ring: head, and bytes written.
pub type Answered = (u32, u32);

/// A driver with its device and disk.
pub struct Driver {
    /// The queue in the guest's memory.
    pub ring: Ring,
    /// The device.
    pub device: Device,
    /// The device's disk.
    pub disk: MemoryDisk,
    /// True if requests use indirect tables.
    pub indirect: bool,
    /// Number of notifications to the guest.
    pub notifications: usize,
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
        let ring = Ring::new(memory, RingPlaces { size, descriptors: DESCRIPTORS, available: AVAILABLE, used: USED });
        Driver { ring, device, disk, indirect: false, notifications: 0, broken: None, buffers: BufPool::default() }
    }

    /// Starts queue 0.
    ///
    /// # Errors
    /// See [`Device::start`].
    pub fn start(&mut self, base: u16, inflight: Option<InflightMemory>) -> Result<(), QueueError> {
        let RingPlaces { size, descriptors, available, used } = *self.ring.places();
        let inflight = inflight.map(|memory| (memory, 0));
        let setup = QueueSetup { size, descriptors, available, used, base, inflight, log: Some(used) };
        self.device.start(0, &setup).map(drop)
    }

    /// Writes a descriptor of the queue's table.
    pub fn descriptor(&self, index: u16, at: u64, length: u32, flags: u16, next: u16) {
        self.poke(self.ring.descriptor_at(index), &descriptor(at, length, flags, next));
    }

    /// Writes bytes to the guest's memory; addresses without memory are ignored.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let _ = self.ring.write(at, bytes);
    }

    /// Reads bytes from the guest's memory.
    ///
    /// # Panics
    /// When an address has no memory.
    pub fn peek(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.ring.read(at, &mut bytes).expect("memory");
        bytes
    }

    /// Makes a head available.
    ///
    /// # Panics
    /// Never, because the queue is in the memory.
    pub fn offer(&mut self, head: u16) {
        self.ring.offer(head).expect("a queue inside the memory");
    }

    /// Sets the available index.
    ///
    /// # Panics
    /// Never, because the queue is in the memory.
    pub fn set_available(&mut self, index: u16) {
        self.ring.set_available(index).expect("a queue inside the memory");
    }

    /// Sets the driver's flags that suppress notifications, and the used index at which it wants
    /// one.
    ///
    /// # Panics
    /// Never, because the queue is in the memory.
    pub fn set_suppression(&self, flags: u16, used_event: u16) {
        self.ring.set_flags(flags).expect("a queue inside the memory");
        self.ring.set_used_event(used_event).expect("a queue inside the memory");
    }

    /// Returns the device's flags that suppress kicks, and the available index at which it wants
    /// one.
    ///
    /// # Panics
    /// Never, because the queue is in the memory.
    pub fn kick_wanted(&self) -> (u16, u16) {
        let wanted = self.ring.kick_flags().and_then(|flags| Ok((flags, self.ring.kick_event()?)));
        wanted.expect("a queue inside the memory")
    }

    /// Offers a well-formed request. Its chain begins at descriptor `head` and uses the descriptors
    /// after it; its header is number `head`.
    pub fn request(&mut self, head: u16, kind: u32, sector: u64, data: &[(u64, u32)], into_guest: bool) {
        let header = HEADERS + 32 * u64::from(head);
        self.poke(header, &request_header(kind, sector));
        let flags = if into_guest { WRITE } else { 0 };
        let mut parts = vec![Segment { at: header, length: 16, flags: 0 }];
        parts.extend(data.iter().map(|(at, length)| Segment { at: *at, length: *length, flags }));
        parts.push(Segment { at: header + STATUS_AT, length: 1, flags: WRITE });
        if self.indirect {
            let table = TABLES + 256 * u64::from(head);
            self.poke(table, &chain(&parts, 0));
            self.descriptor(head, table, 16 * parts.len() as u32, INDIRECT, 0);
        } else {
            self.poke(self.ring.descriptor_at(head), &chain(&parts, head));
        }
        self.offer(head);
    }

    /// Returns the address of the status of a request made by [`Driver::request`].
    pub fn status_at(&self, head: u16) -> u64 {
        HEADERS + 32 * u64::from(head) + STATUS_AT
    }

    /// Returns the status of a request made by [`Driver::request`].
    pub fn status(&self, head: u16) -> u8 {
        self.peek(self.status_at(head), 1).first().copied().unwrap_or(0xff)
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
        let notifications = &mut self.notifications;
        self.device.publish(|_| *notifications += 1);
        self.answers()
    }

    /// Returns the used index.
    pub fn used(&self) -> u16 {
        self.ring.used().unwrap_or_default()
    }

    /// Returns the used entries since the last call.
    ///
    /// # Panics
    /// Never, because the queue is in the memory.
    pub fn answers(&mut self) -> Vec<Answered> {
        let mut answers = Vec::new();
        while self.ring.seen != self.used() {
            answers.push(self.ring.take().expect("a queue inside the memory"));
        }
        answers
    }
}
