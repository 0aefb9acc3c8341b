//! The driver's side of one queue: requests go into the rings, answers come out of them.
//!
//! Requests are queued with [`Disk::submit`], shown together by [`Disk::kick`], and completions are gathered by [`Disk::wait`]: by looking at
//! the used ring all the time, as a guest does that polls, or by sleeping until the back end calls.

use super::front::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, TABLES, USED, descriptor};
use crate::load::{Done, Op};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Bytes of a segment: what Millpond and others announce as the longest is no shorter.
const SEGMENT: usize = 512 << 10;
/// Segments of a request: a table has room for 8 descriptors.
const MAX_SEGMENTS: usize = 6;
/// Offset, in the used ring, of the index from which on the back end wants to be kicked.
const KICK_FROM: u64 = USED + 4 + 8 * ENTRIES as u64;
/// Offset, in the available ring, of the index from which on this side wants to be called.
const CALL_FROM: u64 = AVAILABLE + 4 + 2 * ENTRIES as u64;
/// So far ahead of what is used that the back end never gets there before the number is changed again.
const NEVER: u16 = 0x8000;
/// NO_INTERRUPT in the available ring's flags, NO_NOTIFY in the used ring's.
const DO_NOT: u16 = 1;
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 4096;
/// Without an answer for so long, the back end is taken for dead.
const PATIENCE: Duration = Duration::from_secs(300);
/// NBD's number for what virtio calls an error, so that reports speak of one kind.
const EIO: u32 = 5;
const EOPNOTSUPP: u32 = 95;

struct Slot {
    data: Vec<u8>,
    op: Op,
    length: usize,
    busy: bool,
    /// What was read lies in the shared memory still.
    fresh: bool,
}

/// A disk behind a queue with a fixed number of request slots.
pub struct Disk {
    front: FrontEnd,
    poll: bool,
    size: u64,
    room: usize,
    slots: Vec<Slot>,
    /// What was submitted; what of it was shown is in `front.available`.
    offered: u16,
    used: u16,
}

impl Disk {
    /// Connects; `depth` requests of up to `max_bytes` may be in flight.
    ///
    /// # Errors
    /// Nobody listens, it is no back end, or so much does not fit the queue.
    pub fn connect(socket: &Path, depth: usize, max_bytes: usize, poll: bool) -> Result<Disk> {
        ensure!(depth > 0 && depth <= usize::from(ENTRIES), "between 1 and {ENTRIES} requests may be in flight over vhost-user");
        ensure!(max_bytes <= SEGMENT * MAX_SEGMENTS, "requests over vhost-user are no longer than {} bytes", SEGMENT * MAX_SEGMENTS);
        let room = max_bytes.next_multiple_of(4096);
        let mut front = FrontEnd::connect_with_events(socket, DATA + (room * depth) as u64)?;
        let size = front.capacity()?;
        let slot = || Slot { data: vec![0; max_bytes], op: Op::Read, length: 0, busy: false, fresh: false };
        let disk = Disk { front, poll, size, room, slots: (0..depth).map(|_| slot()).collect(), offered: 0, used: 0 };
        for index in 0..depth as u64 {
            // all memory is there before anything is measured
            disk.front.write(disk.place(index), &vec![0; room])?;
        }
        let mut disk = disk;
        disk.listen(false)?;
        disk.front.start(0)?;
        Ok(disk)
    }

    /// Connects anew with nothing in flight, as a front end does whose back end was started again: the configuration is not read once more.
    ///
    /// # Errors
    /// As [`Disk::connect`].
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.front.reconnect(socket)?;
        let used = self.front.used()?;
        self.front.go_on(used)
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The data of a slot: to be filled before a write, to be read after a read.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn data(&mut self, slot: usize) -> &mut [u8] {
        let place = self.place(slot as u64);
        let entry = &mut self.slots[slot];
        if std::mem::take(&mut entry.fresh) {
            let length = entry.length;
            self.front.read_into(place, &mut entry.data[..length]).expect("the slot's place is in the memory");
        }
        &mut entry.data
    }

    fn place(&self, slot: u64) -> u64 {
        DATA + slot * self.room as u64
    }

    /// Queues a request in a slot that is not in flight. `length` bytes at `offset`; both are ignored by a flush.
    ///
    /// # Errors
    /// It is of a kind that is not spoken here.
    pub fn submit(&mut self, slot: usize, op: Op, offset: u64, length: usize) -> Result<()> {
        let place = self.place(slot as u64);
        let entry = self.slots.get_mut(slot).context("no such slot")?;
        assert!(!entry.busy, "slot {slot} is in flight");
        let (kind, flags, length) = match op {
            Op::Read => (0u32, 2, length),
            Op::Write => (1, 0, length),
            Op::Flush => (4, 0, 0),
            _ => bail!("{op:?} is not spoken over vhost-user here"),
        };
        if op == Op::Write {
            self.front.write(place, entry.data.get(..length).context("more bytes than fit the slot")?)?;
        }
        (entry.op, entry.length, entry.busy, entry.fresh) = (op, length, true, false);
        let header = HEADERS + 32 * slot as u64;
        let mut bytes = [0; 17];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&(if op == Op::Flush { 0 } else { offset / 512 }).to_le_bytes());
        bytes[16] = 0xff;
        self.front.write(header, &bytes)?;
        let mut table = [0; 16 * (MAX_SEGMENTS + 2)];
        let mut count = 0u16;
        let mut push = |at: u64, length: usize, flags: u16, last: bool| {
            let next = if last { 0 } else { 1 };
            let bytes = descriptor(GUEST + at, length as u32, flags | next, if last { 0 } else { count + 1 });
            table[16 * usize::from(count)..][..16].copy_from_slice(&bytes);
            count += 1;
        };
        push(header, 16, 0, false);
        for from in (0..length).step_by(SEGMENT) {
            push(place + from as u64, SEGMENT.min(length - from), flags, false);
        }
        push(header + 16, 1, 2, true);
        let bytes = 16 * usize::from(count);
        self.front.write(TABLES + 128 * slot as u64, &table[..bytes])?;
        let chain = descriptor(GUEST + TABLES + 128 * slot as u64, bytes as u32, 4, 0);
        self.front.write(DESCRIPTORS + 16 * slot as u64, &chain)?;
        self.front.write(AVAILABLE + 4 + 2 * u64::from(self.offered % ENTRIES), &(slot as u16).to_le_bytes())?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    /// Shows what was submitted, and kicks if the back end wants that.
    ///
    /// # Errors
    /// The host's.
    pub fn kick(&mut self) -> Result<()> {
        let shown = std::mem::replace(&mut self.front.available, self.offered);
        if shown == self.offered {
            return Ok(());
        }
        self.front.store(AVAILABLE + 2, self.offered)?;
        fence(Ordering::SeqCst); // the index must be out before the other side's wish is read
        let wanted = if self.front.has_events() {
            let from = self.front.load(KICK_FROM)?;
            self.offered.wrapping_sub(from).wrapping_sub(1) < self.offered.wrapping_sub(shown)
        } else {
            self.front.load(USED)? & DO_NOT == 0
        };
        if wanted { self.front.kick() } else { Ok(()) }
    }

    /// Waits until at least one request is done and appends all that are.
    ///
    /// # Errors
    /// The queue broke, or no answer comes.
    pub fn wait(&mut self, done: &mut Vec<Done>) -> Result<()> {
        self.kick()?;
        let mut since: Option<Instant> = None;
        let mut looks = 0;
        loop {
            let used = self.front.used()?;
            if used != self.used {
                while self.used != used {
                    done.push(self.take()?);
                }
                return if self.poll { self.listen(false) } else { Ok(()) };
            }
            looks += 1;
            if self.poll && looks % LOOKS != 0 {
                std::hint::spin_loop();
                continue;
            }
            ensure!(since.get_or_insert_with(Instant::now).elapsed() < PATIENCE, "no answer for {PATIENCE:?}");
            if !self.poll {
                self.listen(true)?;
                ensure!(self.front.used()? != self.used || self.front.sleep()?, "the queue broke");
            }
        }
    }

    /// Says whether to be called from the next answer on.
    fn listen(&mut self, yes: bool) -> Result<()> {
        if self.front.has_events() {
            self.front.store(CALL_FROM, if yes { self.used } else { self.used.wrapping_add(NEVER) })?;
        } else {
            self.front.store(AVAILABLE, if yes { 0 } else { DO_NOT })?;
        }
        fence(Ordering::SeqCst); // before the used index is looked at again
        Ok(())
    }

    /// The next answer; there is one.
    fn take(&mut self) -> Result<Done> {
        let mut element = [0; 8];
        self.front.read_into(USED + 4 + 8 * u64::from(self.used % ENTRIES), &mut element)?;
        let [a, b, c, d, ..] = element;
        let slot = u32::from_le_bytes([a, b, c, d]) as usize;
        self.used = self.used.wrapping_add(1);
        let entry = self.slots.get_mut(slot).filter(|entry| entry.busy).context("an answer to a request that is not in flight")?;
        let mut status = [0; 1];
        self.front.read_into(HEADERS + 32 * slot as u64 + 16, &mut status)?;
        entry.busy = false;
        entry.fresh = entry.op == Op::Read && status[0] == 0;
        let error = match status[0] {
            0 => 0,
            2 => EOPNOTSUPP,
            _ => EIO,
        };
        Ok(Done { slot, error })
    }
}
