//! [`Store`]: all devices of the cache, and what is about to be written to them.

use std::rc::Rc;

use millpond_block::{Buf, BufPool, ByteRange, Piece};
use millpond_device::DeviceError;
use millpond_format::{Addr, BLOCK_UNITS, CacheHead, CacheSegment, DeviceId, Filling, PoolId, SECTOR_BYTES, UNIT};

use super::drive::{Drive, Spot, Step};
use super::ghosts::Ghosts;
use crate::space::PAGE;

/// Bytes of memory that a block of the cache takes: its address, its place, five quarters of an entry, two marks.
const BLOCK_MEMORY: u64 = 20;
/// Segments being written at a time on one device: what comes meanwhile is not copied.
const MOST_WRITING: u32 = 2;
/// Pages being looked at at a time on one device.
const MOST_SCANNING: u32 = 4;
/// Reads that fail on a device before it is given up.
const MOST_TROUBLES: u32 = 16;
/// Milliseconds without writes to a device below which there is no room.
const REST_MILLIS: u64 = 10_000;

/// A page of a drive to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) drive: u32,
    /// The segment; nothing: the head.
    pub(crate) segment: Option<u32>,
}

/// Pages to be written to a drive.
#[derive(Debug)]
pub(crate) struct SegmentWrite {
    pub(crate) member: u16,
    /// Its head has no segment.
    pub(crate) scan: Scan,
    pub(crate) offset: u64,
    pub(crate) piece: Piece,
}

/// A segment that blocks are being copied into.
#[derive(Debug)]
struct Open {
    drive: u32,
    segment: u32,
    buf: Buf,
    blocks: Vec<Addr>,
    at: Vec<u16>,
    /// Blocks of it at most.
    most: usize,
    /// Units of it, and how many are taken.
    units: u32,
    end: u32,
}

/// The devices of the cache.
#[derive(Debug)]
pub(crate) struct Store {
    pool: PoolId,
    drives: Vec<Drive>,
    open: Option<Open>,
    ghosts: Ghosts,
    next_id: u32,
    memory: u64,
}

impl Store {
    /// Without any device; so many bytes of memory are for what is on those to come.
    pub(crate) fn new(pool: PoolId, memory: u64) -> Store {
        Store { pool, drives: Vec::new(), open: None, ghosts: Ghosts::default(), next_id: 0, memory }
    }

    /// True without any device.
    pub(crate) fn is_empty(&self) -> bool {
        self.drives.is_empty()
    }

    /// Is this member in use?
    pub(crate) fn has(&self, member: u16) -> bool {
        self.drives.iter().any(|drive| drive.member == member)
    }

    /// Bytes in use on a member.
    pub(crate) fn used(&self, member: u16) -> u64 {
        self.drives.iter().filter(|drive| drive.member == member).map(Drive::used).sum()
    }

    /// Takes a device into use, which has so many bytes between its labels.
    pub(crate) fn attach(&mut self, member: u16, device: DeviceId, bytes: u64) {
        let taken: usize = self.drives.iter().map(|drive| drive.most).sum();
        let room = usize::try_from(self.memory / BLOCK_MEMORY).unwrap_or(usize::MAX).saturating_sub(taken);
        self.next_id += 1;
        self.drives.push(Drive::new(self.next_id, member, device, bytes, room));
        self.ghosts.resize(self.drives.iter().map(|drive| drive.most).sum());
    }

    /// Takes a device out of use; what comes back from it is ignored.
    pub(crate) fn detach(&mut self, member: u16, bufs: &mut BufPool) {
        self.drives.retain(|drive| drive.member != member);
        let drives = &self.drives;
        if let Some(open) = self.open.take_if(|open| drives.iter().all(|drive| drive.id != open.drive)) {
            bufs.give(open.buf);
        }
    }

    fn drive(&mut self, id: u32) -> Option<&mut Drive> {
        self.drives.iter_mut().find(|drive| drive.id == id)
    }

    /// Where the copy of a block is.
    pub(crate) fn find(&self, addr: Addr) -> Option<Spot> {
        self.drives.iter().find_map(|drive| drive.find(addr))
    }

    /// Pages of a segment are read from now on until [`ended`](Store::ended): the member and range.
    pub(crate) fn begin_read(&mut self, spot: Spot, pages: u32) -> Option<(u16, ByteRange)> {
        let drive = self.drive(spot.drive)?;
        drive.pin(spot.segment);
        Some((drive.member, drive.range(spot.segment, 1 + spot.unit / BLOCK_UNITS, pages)))
    }

    /// A read of a segment ended.
    pub(crate) fn ended(&mut self, spot: Spot) {
        if let Some(drive) = self.drive(spot.drive) {
            drive.unpin(spot.segment);
        }
    }

    /// A read failed. The member, when its device is to be given up.
    pub(crate) fn failed(&mut self, drive: u32, error: DeviceError) -> Option<u16> {
        let drive = self.drive(drive)?;
        drive.troubles += 1;
        (error == DeviceError::Gone || drive.troubles > MOST_TROUBLES).then_some(drive.member)
    }

    /// What was read is not what it should be: nothing is believed of its segment any more. The member, when that is an error of its device
    /// and not what a crash left behind.
    pub(crate) fn wrong(&mut self, spot: Spot) -> Option<u16> {
        let drive = self.drive(spot.drive)?;
        drive.clear(spot.segment).then_some(drive.member)
    }

    /// The next page to look at, and where it is.
    pub(crate) fn next_scan(&mut self) -> Option<(Scan, u16, ByteRange)> {
        self.drives.iter_mut().find_map(|drive| {
            let count = drive.count();
            match &mut drive.step {
                Step::Head { asked } if !*asked => {
                    *asked = true;
                    Some((Scan { drive: drive.id, segment: None }, drive.member, Drive::head()))
                }
                Step::Scan { next, reading } if *next < count && *reading < MOST_SCANNING => {
                    let segment = *next;
                    (*next, *reading) = (segment + 1, *reading + 1);
                    Some((Scan { drive: drive.id, segment: Some(segment) }, drive.member, drive.range(segment, 0, 1)))
                }
                _ => None,
            }
        })
    }

    /// A page was looked at. Of a head: what is to be written in its place by this import.
    pub(crate) fn scanned(&mut self, scan: Scan, page: Option<&[u8]>, begun: Filling) -> Option<SegmentWrite> {
        let pool = self.pool;
        let drive = self.drive(scan.drive)?;
        let Some(segment) = scan.segment else {
            let head = page.and_then(|page| CacheHead::decode(page).ok()).filter(|head| head.pool == pool && head.device == drive.device);
            // who used it last was the import before this one, of this very history: what it left is a part of it
            let known = head.filter(|head| head.incarnation.checked_add(1) == Some(begun.incarnation));
            drive.filling = known.map_or(begun, |head| head.filling);
            drive.step = if known.is_some() { Step::Scan { next: 0, reading: 0 } } else { Step::Ready };
            let head = CacheHead { pool, device: drive.device, filling: drive.filling, incarnation: begun.incarnation };
            let mut buf = Buf::zeroed(SECTOR_BYTES);
            buf.bytes_mut().copy_from_slice(&head.encode());
            let piece = Piece::new(Rc::new(buf), 0..SECTOR_BYTES);
            return Some(SegmentWrite { member: drive.member, scan, offset: Drive::head().offset, piece });
        };
        let found = page.and_then(|page| CacheSegment::decode(page).ok());
        let mine = |found: &CacheSegment| found.pool == pool && found.device == drive.device && found.filling == drive.filling;
        if let Some(found) = found.filter(mine) {
            drive.found(segment, found);
        }
        if let Step::Scan { next, reading } = &mut drive.step {
            *reading -= 1;
            if *reading == 0 && *next >= drive.count() {
                drive.step = Step::Ready;
            }
        }
        None
    }

    /// A block was read from elsewhere: is it to be copied?
    pub(crate) fn wants(&mut self, addr: Addr) -> bool {
        CacheSegment::takes(addr) && self.ghosts.meet(addr.identity())
    }

    /// Copies a block, as it is stored. A segment that is full is to be written.
    pub(crate) fn take(&mut self, addr: Addr, stored: &[u8], now: u64, bufs: &mut BufPool) -> Option<SegmentWrite> {
        let full = |open: &Open| open.blocks.len() == open.most || CacheSegment::place(open.end, addr.units()) + addr.units() > open.units;
        let write = if self.open.as_ref().is_some_and(full) { self.seal() } else { None };
        if self.open.is_none() {
            self.open = self.begin(now, bufs);
        }
        if let Some(open) = &mut self.open {
            let start = CacheSegment::place(open.end, addr.units());
            let bytes = |unit: u32| PAGE as usize + unit as usize * UNIT;
            // what is left out between blocks is what the buffer held before
            open.buf.bytes_mut().get_mut(bytes(open.end)..bytes(start)).into_iter().for_each(|gap| gap.fill(0));
            if let Some(to) = open.buf.bytes_mut().get_mut(bytes(start)..bytes(start + addr.units())) {
                to.copy_from_slice(stored);
                open.blocks.push(addr);
                open.at.push(start as u16);
                open.end = start + addr.units();
            }
        }
        write
    }

    /// Begins a segment on the device that is the least far round.
    fn begin(&mut self, now: u64, bufs: &mut BufPool) -> Option<Open> {
        let ready = |drive: &&mut Drive| drive.step == Step::Ready && drive.writing < MOST_WRITING && now >= drive.rests_until;
        let laps = |drive: &&mut Drive| (drive.written << 20) / u64::from(drive.count().max(1));
        let drive = self.drives.iter_mut().filter(ready).min_by_key(laps)?;
        let segment = drive.begin()?;
        let buf = bufs.take(drive.pages as usize * PAGE as usize);
        let units = (drive.pages - 1) * BLOCK_UNITS;
        Some(Open { drive: drive.id, segment, buf, blocks: Vec::new(), at: Vec::new(), most: drive.each, units, end: 0 })
    }

    /// Ends the segment that blocks are being copied into: it is to be written.
    pub(crate) fn seal(&mut self) -> Option<SegmentWrite> {
        let mut open = self.open.take()?;
        let pool = self.pool;
        let drive = self.drive(open.drive)?;
        let (device, filling, sequence) = (drive.device, drive.filling, drive.sequence);
        let head = CacheSegment { pool, device, filling, sequence, blocks: open.blocks };
        let pages = 1 + open.end.div_ceil(BLOCK_UNITS);
        let (written, used) = (pages as usize * PAGE as usize, PAGE as usize + open.end as usize * UNIT);
        let bytes = open.buf.bytes_mut();
        bytes.get_mut(..SECTOR_BYTES)?.copy_from_slice(&head.encode());
        bytes.get_mut(used..written)?.fill(0);
        drive.sequence += 1;
        drive.writing += 1;
        drive.written += 1;
        drive.fill(open.segment, head.blocks.into(), open.at.into());
        let scan = Scan { drive: drive.id, segment: Some(open.segment) };
        let (member, offset) = (drive.member, drive.range(open.segment, 0, pages).offset);
        Some(SegmentWrite { member, scan, offset, piece: Piece::new(Rc::new(open.buf), 0..written) })
    }

    /// A write ended. The member, when its device is to be given up.
    pub(crate) fn written(&mut self, scan: Scan, result: Result<(), DeviceError>, now: u64) -> Option<u16> {
        let drive = self.drive(scan.drive)?;
        if let Some(segment) = scan.segment {
            drive.writing -= 1;
            if result.is_ok() {
                drive.show(segment);
            } else {
                drive.clear(segment);
            }
        }
        match result {
            Ok(()) => None,
            Err(DeviceError::Full) => {
                drive.rests_until = now + REST_MILLIS;
                None
            }
            Err(_) => Some(drive.member),
        }
    }
}
