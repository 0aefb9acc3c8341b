//! Fuzz test of virtqueues: a hostile guest, whose memory, indexes and chains come from a fuzzer.

use std::collections::BTreeMap;

use millpond_block::SectorProfile;

use super::driver::{DATA, Driver, HIGH, INDIRECT, LOW};
use super::{MemoryDisk, Order};
use crate::vhost_user::Limits;

const DISK: usize = 256 << 10;
const LIMITS: Limits = Limits { requests: 16, bytes: 64 << 10, turn_requests: 8, turn_bytes: 32 << 10 };
/// Maximum number of steps in a case.
const STEPS: usize = 400;
const EVENT_IDX: u64 = 1 << 29;
const FLUSH: u64 = 1 << 9;

/// The fuzzer's bytes, followed by zeroes without end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..4).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Returns an address: usually one with memory, else one across the end of a region, in a ring,
    /// or without memory.
    fn address(&mut self) -> u64 {
        let fine = DATA + (self.word() & 0x3_ffff);
        self.of(&[fine, fine, fine, HIGH + 8, LOW - 3, LOW, HIGH - 1, HIGH + LOW - 16, 0x1_0000, 0x2_0000, 0x3_0000, u64::MAX - 7, 1 << 63])
    }

    fn length(&mut self) -> u32 {
        let any = self.word() as u32;
        self.of(&[16, 1, 512, 4096, 17, 32, 0, 8192, any & 0xffff, any, u32::MAX, 40 << 10])
    }
}

/// Runs a queue of a hostile guest. The first bytes choose the queue's size, features, sectors and
/// order of answers; the others choose the guest's steps. The disk checks that all requests are
/// valid.
///
/// # Panics
/// When the device misbehaves: an answer to a request that was not offered, too many requests in
/// flight, requests without an answer, or an invalid request to the disk.
pub fn fuzz_queue(data: &[u8]) -> u64 {
    let mut choices = Choices(data);
    let size = choices.of(&[1u16, 2, 4, 16, 64]);
    let features = choices.of(&[0, EVENT_IDX, FLUSH, EVENT_IDX | FLUSH]);
    let sector = choices.of(&[SectorProfile::S512e, SectorProfile::S4kn]);
    let order = choices.of(&[Order::InOrder, Order::Reversed, Order::Shuffled(0x9e37_79b9_7f4a_7c15)]);
    let read_only = choices.byte() & 7 == 0;
    let disk = MemoryDisk::new(DISK, sector).with_order(order).with_pieces(4096).with_read_only(read_only);
    let mut driver = Driver::new(disk, size, features, LIMITS);
    let mut guest = Guest { driver: &mut driver, offered: BTreeMap::new(), answered: 0, confused: false };
    for _ in 0..STEPS {
        if choices.0.is_empty() {
            break;
        }
        guest.step(&mut choices);
    }
    guest.finish();
    guest.answered
}

struct Guest<'a> {
    driver: &'a mut Driver,
    /// Number of offers without an answer, by head.
    offered: BTreeMap<u32, u32>,
    answered: u64,
    /// True if the guest has overwritten its rings or set impossible indexes, so that their content
    /// has no meaning.
    confused: bool,
}

impl Guest<'_> {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let size = self.driver.ring.places().size;
        match choices.byte() % 8 {
            0 | 1 => {
                let (index, at, length) = (choices.byte() as u16 % size, choices.address(), choices.length());
                let flags = choices.of(&[0u16, 1, 2, 3, 4, 5, 7, 0xffff]);
                // The device may write to the rings themselves.
                self.confused |= flags & INDIRECT == 0 && at < DATA;
                let next = choices.of(&[0, index, index.wrapping_add(1), u16::MAX]);
                self.driver.descriptor(index, at, length, flags, next);
            }
            2 => {
                let kind = choices.of(&[0u32, 1, 4, 8, 11, 13, 14, 77]);
                let sector = choices.word();
                let mut header = kind.to_le_bytes().to_vec();
                header.extend_from_slice(&[0; 4]);
                header.extend_from_slice(&choices.of(&[0, 8, 1, sector, u64::MAX, u64::MAX / 512]).to_le_bytes());
                header.extend_from_slice(&(sector as u32).to_le_bytes());
                header.extend_from_slice(&[choices.byte() & 3, 0, 0, 0]);
                self.driver.poke(DATA + (choices.word() & 0x3_ffff), &header);
            }
            3 | 4 => {
                let head = choices.byte() as u16 % size;
                let kind = choices.of(&[0u32, 1, 4, 8, 11, 13]);
                let length = choices.of(&[512, 4096, 16, 32, 20, 40 << 10]);
                let sector = choices.of(&[0, 8, 64, 511, 512, 1 << 40]);
                let into_guest = choices.byte() & 1 == 0;
                self.driver.indirect = choices.byte() & 1 == 0;
                // Direct chains may exceed the descriptor table, which the device has to detect.
                let at = DATA + (choices.word() & 0x1_ffff);
                self.offer(head, |driver| driver.request(head, kind, sector, &[(at, length)], into_guest));
            }
            5 => {
                let head = choices.of(&[0, size - 1, size, u16::MAX, 1 % size]);
                self.offer(head, |driver| driver.offer(head));
            }
            6 => {
                if choices.byte() == 0 {
                    self.confused = true;
                    let index = choices.word() as u16;
                    self.driver.set_available(index);
                } else {
                    self.driver.set_suppression(u16::from(choices.byte() & 1), choices.word() as u16);
                }
            }
            _ => self.run(),
        }
    }

    fn offer(&mut self, head: u16, offer: impl FnOnce(&mut Driver)) {
        offer(self.driver);
        *self.offered.entry(u32::from(head)).or_default() += 1;
    }

    fn run(&mut self) {
        self.driver.take();
        assert!(self.driver.device.in_flight() <= usize::from(LIMITS.requests), "requests in flight are not bounded");
        let answers = self.driver.run();
        self.answered += answers.len() as u64;
        if !self.confused {
            for (head, _) in answers {
                let left = self.offered.get_mut(&head).filter(|left| **left > 0);
                *left.expect("an answer to what was offered") -= 1;
            }
        }
        if self.driver.broken.take().is_some() {
            self.begin_anew();
        }
    }

    /// Resets the device, as a driver does when its device has failed.
    fn begin_anew(&mut self) {
        let Driver { device, .. } = &mut *self.driver;
        assert_eq!(device.in_flight(), 0, "work is left undone");
        device.stop(0);
        assert!(matches!(device.stopped(0), Ok(Some(_))), "the queue does not come to rest");
        let used = self.driver.used();
        self.driver.ring.seen = used;
        self.driver.set_available(used);
        self.driver.start(used, None).expect("the queue is where it was");
        self.offered.clear();
    }

    /// Checks that all offered requests are answered, unless the queue broke, and that the queue
    /// can be stopped.
    fn finish(&mut self) {
        self.run();
        self.run(); // the first run may have reset the device
        let Driver { device, .. } = &mut *self.driver;
        assert_eq!(device.in_flight(), 0, "work is left undone");
        assert!(!device.has_more(), "something is left on the queue");
        if !self.confused {
            assert!(self.offered.values().all(|left| *left == 0), "an offer was not answered: {:?}", self.offered);
        }
        self.driver.device.stop(0);
        assert!(matches!(self.driver.device.stopped(0), Ok(Some(_))), "the queue does not come to rest");
    }
}

#[cfg(test)]
mod tests {
    use millpond_testing::Random;

    use super::fuzz_queue;

    #[test]
    fn hostile_queues() {
        let answered: u64 = (1..4000u64).map(|seed| fuzz_queue(&Random::new(seed).bytes(1500))).sum();
        assert!(answered > 20_000, "the cases are of no use: {answered} answers");
    }
}
