//! Requests to a bucket, for segments whose content is an object of it: the caller gets ranges of objects
//! to read, and brings their bytes; and it gets whole objects to create.
//!
//! A read is cut into *units* of its object, aligned, of 256 KiB. Reads of one unit share one
//! [`BucketWork`], and the last 64 MiB of units are kept in memory, because the cleaner reads the
//! header and then the blocks, and guests come back for neighbours. A read that found wrong bytes reads its
//! units again, and shares nothing.
//!
//! The caller tries a store that does not answer again, for as long as it takes: a bucket that is away is
//! no error. What it reports ends the read: an object that is missing is as a device that is gone.
//!
//! Creates come after all reads, and at most three quarters of the works are creates: guests wait for reads
//! alone.
//!
//! INV-OBJ-8: a result counts only for the work whose number it has. Numbers have that of the import in
//! them and are not used again by it or a later one that writes, so a result that comes late, twice, or
//! after a new import changes nothing. Imports that write nothing have no number of their own: their caller
//! drops results at the close.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Buf, BufPool, BufSlice, DeviceError, PAGE};
use millpond_format::{ObjectName, SegmentId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Ended;
use crate::{BucketError, BucketOp, BucketWork};

#[cfg(test)]
mod tests;

/// Bytes of a unit.
const UNIT: u64 = 256 << 10;
/// Most works that the caller has at a time.
const AT_ONCE: usize = 16;
/// Most of these that are creates.
const CREATES_AT_ONCE: usize = AT_ONCE / 4 * 3;
/// Bytes of units that are kept after they were read.
const KEPT: usize = 64 << 20;

/// A unit of an object: its number is its offset divided by [`UNIT`].
type UnitKey = (ObjectName, u64);

/// An object of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) name: ObjectName,
    /// Its length in pages.
    pub(crate) pages: u32,
}

impl Object {
    fn bytes(self) -> u64 {
        u64::from(self.pages) * PAGE as u64
    }
}

/// A part of a segment that is to be read: its first page, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) segment: SegmentId,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Pages {
    fn begin(self) -> u64 {
        u64::from(self.first) * PAGE as u64
    }

    fn bytes(self) -> usize {
        self.count as usize * PAGE
    }
}

/// How a read of an object treats the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A guest waits for it.
    Urgent,
    /// It comes after those for which a guest waits.
    Later,
    /// A guest waits for it, and bytes that were read before are not used.
    Again,
}

/// A read that waits for units.
#[derive(Debug)]
struct Reading<C> {
    context: C,
    pages: Pages,
    buf: Buf,
    /// Number of units that are not here yet.
    left: usize,
    result: Result<(), DeviceError>,
}

/// A unit that is being read.
#[derive(Debug)]
struct UnitRead {
    key: UnitKey,
    length: usize,
    readers: SmallVec<[u32; 2]>,
    /// The number under which the caller has it.
    out: Option<u64>,
    /// Other reads may share it.
    shared: bool,
}

/// An object that is to be created.
#[derive(Debug)]
struct Create {
    name: ObjectName,
    /// The whole object; the caller has it once it has the work.
    pieces: Vec<BufSlice>,
    /// The number under which the caller has it.
    out: Option<u64>,
}

/// Units that were read, the least recently used first.
#[derive(Debug, Default)]
struct Kept {
    /// The stamp of the last use of each, its bytes, and how many of these belong to it.
    units: FxHashMap<UnitKey, (u64, Buf, usize)>,
    order: BTreeMap<u64, UnitKey>,
    bytes: usize,
    last: u64,
}

impl Kept {
    fn get(&mut self, key: UnitKey) -> Option<&[u8]> {
        let (used, buf, length) = self.units.get_mut(&key)?;
        self.last += 1;
        self.order.remove(used);
        self.order.insert(self.last, key);
        *used = self.last;
        buf.bytes().get(..*length)
    }

    fn insert(&mut self, key: UnitKey, buf: Buf, length: usize, bufs: &mut BufPool) {
        self.remove(key, bufs);
        self.last += 1;
        self.bytes += buf.size();
        self.order.insert(self.last, key);
        self.units.insert(key, (self.last, buf, length));
        while self.bytes > KEPT {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            self.remove(*oldest, bufs);
        }
    }

    fn remove(&mut self, key: UnitKey, bufs: &mut BufPool) {
        if let Some((used, buf, _)) = self.units.remove(&key) {
            self.order.remove(&used);
            self.bytes -= buf.size();
            bufs.give(buf);
        }
    }
}

/// Requests to the bucket, with the purposes `C` of the reads that wait.
pub(crate) struct BucketIo<C> {
    /// Number of the last unit or create, and of the last read, of this import.
    last_work: u32,
    last_read: u32,
    readings: FxHashMap<u32, Reading<C>>,
    units: FxHashMap<u32, UnitRead>,
    /// Units that further reads may share.
    shared: FxHashMap<UnitKey, u32>,
    /// Units for the caller to take: those for which guests wait, and others.
    urgent: VecDeque<u32>,
    later: VecDeque<u32>,
    creates: BTreeMap<u32, Create>,
    /// Creates for the caller to take.
    to_create: VecDeque<u32>,
    /// Works that the caller has, and how many of them are creates.
    out: usize,
    creates_out: usize,
    kept: Kept,
    ended: VecDeque<Ended<C>>,
    /// Creates that have ended, by number.
    created: VecDeque<(u32, Result<(), BucketError>)>,
    /// The pool closes: nothing is read or created any more.
    closed: bool,
}

impl<C> Default for BucketIo<C> {
    fn default() -> BucketIo<C> {
        BucketIo {
            last_work: 0,
            last_read: 0,
            readings: FxHashMap::default(),
            units: FxHashMap::default(),
            shared: FxHashMap::default(),
            urgent: VecDeque::new(),
            later: VecDeque::new(),
            creates: BTreeMap::new(),
            to_create: VecDeque::new(),
            out: 0,
            creates_out: 0,
            kept: Kept::default(),
            ended: VecDeque::new(),
            created: VecDeque::new(),
            closed: false,
        }
    }
}

impl<C> BucketIo<C> {
    /// Reads pages of a segment that is `object`; pages behind its end are zeroes. Without an object the
    /// read ends with an error. The segment must be pinned, and is unpinned when the read has ended.
    pub(crate) fn read(&mut self, context: C, object: Option<Object>, pages: Pages, manner: Manner, bufs: &mut BufPool) {
        let mut reading = Reading { context, pages, buf: bufs.take(pages.bytes()), left: 0, result: Ok(()) };
        let Some(object) = object.filter(|_| !self.closed) else {
            reading.result = Err(DeviceError::Gone);
            return self.end(reading, bufs);
        };
        let (begin, end) = (pages.begin(), (pages.begin() + pages.bytes() as u64).min(object.bytes()));
        let there = usize::try_from(end.saturating_sub(begin)).unwrap_or(0);
        if let Some(behind) = reading.buf.bytes_mut().get_mut(there..) {
            behind.fill(0);
        }
        if there == 0 {
            return self.end(reading, bufs);
        }
        self.last_read = self.last_read.wrapping_add(1);
        let id = self.last_read;
        for number in begin / UNIT..=(end - 1) / UNIT {
            let key = (object.name, number);
            if manner == Manner::Again {
                self.kept.remove(key, bufs);
                self.shared.remove(&key);
            } else if let Some(unit) = self.kept.get(key) {
                copy_unit(number, unit, &mut reading);
                continue;
            }
            reading.left += 1;
            self.want(key, id, object, manner);
        }
        if reading.left == 0 {
            return self.end(reading, bufs);
        }
        self.readings.insert(id, reading);
    }

    /// Adds a reader to a unit.
    fn want(&mut self, key: UnitKey, reader: u32, object: Object, manner: Manner) {
        let known = self.shared.get(&key).copied();
        let id = known.unwrap_or_else(|| {
            self.last_work = self.last_work.wrapping_add(1);
            self.last_work
        });
        let offset = key.1 * UNIT;
        let length = usize::try_from(UNIT.min(object.bytes() - offset)).unwrap_or(0);
        let fresh = UnitRead { key, length, readers: SmallVec::new(), out: None, shared: manner != Manner::Again };
        let unit = self.units.entry(id).or_insert(fresh);
        unit.readers.push(reader);
        match manner {
            // it may wait among the others already: it is taken once
            Manner::Urgent | Manner::Again if unit.out.is_none() => self.urgent.push_back(id),
            Manner::Later if known.is_none() => self.later.push_back(id),
            _ => {}
        }
        if unit.shared {
            self.shared.insert(key, id);
        }
    }

    /// Creates an object. Returns the number under which [`pop_created`](Self::pop_created) has the result.
    pub(crate) fn create(&mut self, name: ObjectName, pieces: Vec<BufSlice>) -> u32 {
        self.last_work = self.last_work.wrapping_add(1);
        self.creates.insert(self.last_work, Create { name, pieces, out: None });
        self.to_create.push_back(self.last_work);
        self.last_work
    }

    /// Returns the next work for the caller, a create only if `creates` is true. No other import of the
    /// pool has the number `incarnation`.
    pub(crate) fn pop(&mut self, incarnation: u32, creates: bool) -> Option<BucketWork> {
        if self.out >= AT_ONCE {
            return None;
        }
        let work = self.pop_read(incarnation).or_else(|| if creates { self.pop_create(incarnation) } else { None });
        self.out += usize::from(work.is_some());
        work
    }

    fn pop_read(&mut self, incarnation: u32) -> Option<BucketWork> {
        loop {
            let number = self.urgent.pop_front().or_else(|| self.later.pop_front())?;
            let Some(unit) = self.units.get_mut(&number).filter(|unit| unit.out.is_none()) else { continue };
            let id = id_of(incarnation, number);
            unit.out = Some(id);
            let (name, number) = unit.key;
            return Some(BucketWork { id, op: BucketOp::Read { name, offset: number * UNIT, length: unit.length } });
        }
    }

    fn pop_create(&mut self, incarnation: u32) -> Option<BucketWork> {
        if self.creates_out >= CREATES_AT_ONCE {
            return None;
        }
        let number = self.to_create.pop_front()?;
        let create = self.creates.get_mut(&number)?;
        let id = id_of(incarnation, number);
        create.out = Some(id);
        self.creates_out += 1;
        Some(BucketWork { id, op: BucketOp::Create { name: create.name, pieces: std::mem::take(&mut create.pieces) } })
    }

    /// Takes the result of a work. Does nothing for a number that is not known.
    pub(crate) fn done(&mut self, id: u64, result: Result<Option<Buf>, BucketError>, bufs: &mut BufPool) {
        let number = u32::try_from(id & u64::from(u32::MAX)).unwrap_or(0);
        if self.units.get(&number).is_some_and(|unit| unit.out == Some(id)) {
            return self.unit_done(number, result.ok().flatten(), bufs);
        }
        let result = result.map(|buf| buf.into_iter().for_each(|buf| bufs.give(buf)));
        if self.creates.get(&number).is_some_and(|create| create.out == Some(id)) {
            self.creates.remove(&number);
            (self.out, self.creates_out) = (self.out - 1, self.creates_out - 1);
            self.created.push_back((number, result));
        }
    }

    fn unit_done(&mut self, number: u32, result: Option<Buf>, bufs: &mut BufPool) {
        let Some(UnitRead { key, length, readers, shared, .. }) = self.units.remove(&number) else { return };
        // bytes that another read found wrong, and reads again, are not kept
        let is_newest = !shared || self.shared.get(&key) == Some(&number);
        self.out -= 1;
        if self.shared.get(&key) == Some(&number) {
            self.shared.remove(&key);
        }
        let unit = result.filter(|buf| buf.size() >= length);
        let bytes = unit.as_ref().and_then(|buf| buf.bytes().get(..length));
        for reader in readers {
            let Some(reading) = self.readings.get_mut(&reader) else { continue };
            match bytes {
                Some(bytes) => copy_unit(key.1, bytes, reading),
                None => reading.result = Err(DeviceError::Gone),
            }
            reading.left -= 1;
            if reading.left == 0
                && let Some(reading) = self.readings.remove(&reader)
            {
                self.end(reading, bufs);
            }
        }
        match unit {
            Some(buf) if is_newest => self.kept.insert(key, buf, length, bufs),
            Some(buf) => bufs.give(buf),
            None => {}
        }
    }

    fn end(&mut self, reading: Reading<C>, bufs: &mut BufPool) {
        let Reading { context, pages, buf, result, .. } = reading;
        let buf = if result.is_ok() {
            Some(buf)
        } else {
            bufs.give(buf);
            None
        };
        self.ended.push_back(Ended { context, result, buf, pin: Some(pages.segment), member: None });
    }

    /// Returns the next read that has ended.
    pub(crate) fn pop_ended(&mut self) -> Option<Ended<C>> {
        self.ended.pop_front()
    }

    /// Returns whether [`pop_ended`](Self::pop_ended) has a read.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns the next create that has ended: its number and its result.
    pub(crate) fn pop_created(&mut self) -> Option<(u32, Result<(), BucketError>)> {
        self.created.pop_front()
    }

    /// Returns the number of the oldest create that the caller has.
    pub(crate) fn oldest_create(&self) -> Option<u64> {
        self.creates.values().find_map(|create| create.out)
    }

    /// Forgets all creates; their results are ignored when they come.
    pub(crate) fn give_up_creates(&mut self) {
        self.creates.clear();
        self.to_create.clear();
        self.created.clear();
        self.out -= self.creates_out;
        self.creates_out = 0;
    }

    /// Ends all reads with an error, and those that come, and forgets creates, because the pool closes: it
    /// must not wait for a bucket that is away. Results are ignored when they come.
    pub(crate) fn give_up(&mut self, bufs: &mut BufPool) {
        self.closed = true;
        self.give_up_creates();
        self.units.clear();
        self.shared.clear();
        self.out = 0;
        let mut readings: Vec<(u32, Reading<C>)> = self.readings.drain().collect();
        readings.sort_unstable_by_key(|(id, _)| *id);
        for (_, mut reading) in readings {
            reading.result = Err(DeviceError::Gone);
            self.end(reading, bufs);
        }
    }
}

/// The number of a work for the caller.
fn id_of(incarnation: u32, number: u32) -> u64 {
    u64::from(incarnation) << 32 | u64::from(number)
}

/// Copies the part of a unit that a read wants.
fn copy_unit<C>(number: u64, unit: &[u8], reading: &mut Reading<C>) {
    let (offset, begin) = (number * UNIT, reading.pages.begin());
    let end = begin + reading.pages.bytes() as u64;
    let (from, to) = (begin.max(offset), end.min(offset + unit.len() as u64));
    let range = |base: u64| (from.saturating_sub(base)) as usize..(to.saturating_sub(base)) as usize;
    if let (Some(source), Some(target)) = (unit.get(range(offset)), reading.buf.bytes_mut().get_mut(range(begin))) {
        target.copy_from_slice(source);
    }
}
