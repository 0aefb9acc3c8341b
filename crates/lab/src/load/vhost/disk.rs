//! The driver's side of a virtqueue: puts requests into the rings and takes completions out.
//!
//! [`Disk::submit`] queues a request, [`Disk::kick`] makes queued requests available, and
//! [`Disk::wait`] collects completions: it polls the used ring, like a polling guest, or sleeps
//! until the back end notifies.

use super::front::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, TABLES, USED, descriptor};
use crate::load::{Done, Op};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Bytes of a segment; Millpond and other back ends announce no smaller maximum.
const SEGMENT: usize = 512 << 10;
/// Maximum number of data segments of a request: an indirect table has room for 8 descriptors.
const MAX_SEGMENTS: usize = 6;
/// Offset of `avail_event` in the used ring: the index from which on the back end wants to be
/// notified.
const KICK_FROM: u64 = USED + 4 + 8 * ENTRIES as u64;
/// Offset of `used_event` in the available ring: the index from which on this side wants to be
/// notified.
const CALL_FROM: u64 = AVAILABLE + 4 + 2 * ENTRIES as u64;
/// Distance of an event index that the back end never reaches before the index is changed again.
const NEVER: u16 = 0x8000;
/// VIRTQ_AVAIL_F_NO_INTERRUPT in the available ring's flags, VIRTQ_USED_F_NO_NOTIFY in the used
/// ring's.
const DO_NOT: u16 = 1;
/// Polls of the ring between two checks of the clock.
const LOOKS: u32 = 4096;
/// Time without a completion after which the back end is given up.
const PATIENCE: Duration = Duration::from_secs(300);
/// NBD error number for virtio's IOERR status, so that results have one kind of errors.
const EIO: u32 = 5;
const EOPNOTSUPP: u32 = 95;

struct Slot {
    data: Vec<u8>,
    op: Op,
    length: usize,
    busy: bool,
    /// Data of a read is still in the shared memory.
    fresh: bool,
}

/// A disk behind a virtqueue with a fixed number of request slots.
pub struct Disk {
    front: FrontEnd,
    poll: bool,
    size: u64,
    room: usize,
    slots: Vec<Slot>,
    /// Available index with all submitted requests; `front.available` is the index that the back
    /// end sees.
    offered: u16,
    used: u16,
}

impl Disk {
    /// Connects with up to `depth` requests of up to `max_bytes` bytes in flight.
    ///
    /// # Errors
    /// The socket cannot be reached, it is no back end, or the requests do not fit the queue.
    pub fn connect(socket: &Path, depth: usize, max_bytes: usize, poll: bool) -> Result<Disk> {
        ensure!(depth > 0 && depth <= usize::from(ENTRIES), "between 1 and {ENTRIES} requests may be in flight over vhost-user");
        ensure!(max_bytes <= SEGMENT * MAX_SEGMENTS, "requests over vhost-user are no longer than {} bytes", SEGMENT * MAX_SEGMENTS);
        let room = max_bytes.next_multiple_of(4096);
        let mut front = FrontEnd::connect_with_events(socket, DATA + (room * depth) as u64)?;
        let size = front.capacity()?;
        let slot = || Slot { data: vec![0; max_bytes], op: Op::Read, length: 0, busy: false, fresh: false };
        let disk = Disk { front, poll, size, room, slots: (0..depth).map(|_| slot()).collect(), offered: 0, used: 0 };
        for index in 0..depth as u64 {
            // touch all memory before anything is measured
            disk.front.write(disk.place(index), &vec![0; room])?;
        }
        let mut disk = disk;
        disk.listen(false)?;
        disk.front.start(0)?;
        Ok(disk)
    }

    /// Reconnects with nothing in flight, like a front end whose back end was restarted: the
    /// configuration space is not read again.
    ///
    /// # Errors
    /// Those of [`Disk::connect`].
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.front.reconnect(socket)?;
        let used = self.front.used()?;
        self.front.go_on(used)
    }

    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Data buffer of a slot: filled before a write, valid after a read.
    ///
    /// # Panics
    /// The slot does not exist.
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

    /// Queues a request for `length` bytes at `offset` in a free slot; a flush ignores both. Panics
    /// if the slot is in flight.
    ///
    /// # Errors
    /// The operation is not supported here.
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

    /// Makes submitted requests available, and notifies the back end if it wants that.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn kick(&mut self) -> Result<()> {
        let shown = std::mem::replace(&mut self.front.available, self.offered);
        if shown == self.offered {
            return Ok(());
        }
        self.front.store(AVAILABLE + 2, self.offered)?;
        // the index must be visible before the other side's event index is read
        fence(Ordering::SeqCst);
        let wanted = if self.front.has_events() {
            let from = self.front.load(KICK_FROM)?;
            self.offered.wrapping_sub(from).wrapping_sub(1) < self.offered.wrapping_sub(shown)
        } else {
            self.front.load(USED)? & DO_NOT == 0
        };
        if wanted { self.front.kick() } else { Ok(()) }
    }

    /// Waits until at least one request is done, and appends all completions to `done`.
    ///
    /// # Errors
    /// The queue broke, or no completion arrives in time.
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

    /// Requests or suppresses notifications from the next completion on.
    fn listen(&mut self, yes: bool) -> Result<()> {
        if self.front.has_events() {
            self.front.store(CALL_FROM, if yes { self.used } else { self.used.wrapping_add(NEVER) })?;
        } else {
            self.front.store(AVAILABLE, if yes { 0 } else { DO_NOT })?;
        }
        fence(Ordering::SeqCst); // before the used index is read again
        Ok(())
    }

    /// Takes the next completion, which must exist.
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
