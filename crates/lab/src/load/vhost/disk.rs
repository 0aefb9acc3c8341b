//! The driver's side of a virtqueue: puts requests into the rings and takes completions out.
//!
//! [`Disk::submit`] queues a request, [`Disk::kick`] makes queued requests available, and
//! [`Disk::wait`] collects completions: it polls the used ring, like a polling guest, or sleeps
//! until the back end notifies.

use super::front::{DATA, ENTRIES, FrontEnd, GUEST, HEADERS, TABLES};
use crate::load::{Done, Op};
use anyhow::{Context, Result, bail, ensure};
use millpond_export::vhost_user::front_end::{INDIRECT, STATUS_AT, Segment, WRITE, chain, descriptor, request_header};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a segment; Millpond and other back ends announce no smaller maximum.
const SEGMENT: usize = 512 << 10;
/// Maximum number of data segments of a request: an indirect table has room for 8 descriptors.
const MAX_SEGMENTS: usize = 6;
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
    /// Available index with all submitted requests; the back end sees that of the ring.
    offered: u16,
    /// Segments of the request that is being submitted.
    segments: Vec<Segment>,
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
        let disk = Disk { front, poll, size, room, slots: (0..depth).map(|_| slot()).collect(), offered: 0, segments: Vec::new() };
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
            self.front.ring.read(GUEST + place, &mut entry.data[..length]).expect("the slot's place is in the memory");
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
            Op::Read => (0u32, WRITE, length),
            Op::Write => (1, 0, length),
            Op::Flush => (4, 0, 0),
            _ => bail!("{op:?} is not spoken over vhost-user here"),
        };
        if op == Op::Write {
            self.front.write(place, entry.data.get(..length).context("more bytes than fit the slot")?)?;
        }
        (entry.op, entry.length, entry.busy, entry.fresh) = (op, length, true, false);
        let header = HEADERS + 32 * slot as u64;
        self.front.write(header, &request_header(kind, if op == Op::Flush { 0 } else { offset / 512 }))?;
        self.segments.clear();
        self.segments.push(Segment { at: GUEST + header, length: 16, flags: 0 });
        for from in (0..length).step_by(SEGMENT) {
            self.segments.push(Segment { at: GUEST + place + from as u64, length: SEGMENT.min(length - from) as u32, flags });
        }
        self.segments.push(Segment { at: GUEST + header + STATUS_AT, length: 1, flags: WRITE });
        let (chain, table) = (chain(&self.segments, 0), TABLES + 128 * slot as u64);
        self.front.write(table, &chain)?;
        let ring = &self.front.ring;
        let head = slot as u16; // the queue has more entries than there are slots
        ring.write(ring.descriptor_at(head), &descriptor(GUEST + table, chain.len() as u32, INDIRECT, 0))?;
        ring.place(self.offered, head)?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    /// Makes submitted requests available, and notifies the back end if it wants that.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn kick(&mut self) -> Result<()> {
        let shown = self.front.available();
        if shown == self.offered {
            return Ok(());
        }
        self.front.ring.set_available(self.offered)?;
        if self.front.ring.wants_kick(shown, self.front.has_events())? { self.front.kick() } else { Ok(()) }
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
            if used != self.front.ring.seen {
                while self.front.ring.seen != used {
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
                ensure!(self.front.used()? != self.front.ring.seen || self.front.sleep()?, "the queue broke");
            }
        }
    }

    /// Requests or suppresses notifications from the next completion on.
    fn listen(&mut self, yes: bool) -> Result<()> {
        Ok(self.front.ring.listen(yes, self.front.has_events())?)
    }

    /// Takes the next completion, which must exist.
    fn take(&mut self) -> Result<Done> {
        let (head, _) = self.front.ring.take()?;
        let slot = head as usize;
        let entry = self.slots.get_mut(slot).filter(|entry| entry.busy).context("an answer to a request that is not in flight")?;
        let mut status = [0; 1];
        self.front.ring.read(GUEST + HEADERS + 32 * slot as u64 + STATUS_AT, &mut status)?;
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
