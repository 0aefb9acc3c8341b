//! [`CacheDevices`]: all cache devices, and the segment that is being filled for them.

use millpond_block::{Buf, BufPool, BufSlice, ByteRange, DeviceError, MemberId};
use millpond_format::{Addr, BLOCK_UNITS, CacheHead, CacheSegment, DeviceId, Filling, PoolId, SECTOR_BYTES, UNIT};

use super::drive::{CacheDevice, CacheSlot, Step};
use super::ghosts::Ghosts;
use crate::space::PAGE;

/// Bytes of memory for each block of the cache: address, place, five quarters of an index entry,
/// two marks.
const BLOCK_MEMORY: u64 = 20;
/// Maximum segments being written at a time on one device; further blocks are not copied meanwhile.
const MOST_WRITING: u32 = 2;
/// Maximum pages being scanned at a time on one device.
const MOST_SCANNING: u32 = 4;
/// Failed reads of a device before it is given up.
const MOST_TROUBLES: u32 = 16;
/// Pause of writes to a device after the filesystem below was full, in milliseconds.
const REST_MILLIS: u64 = 10_000;

/// A page of a drive to be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) drive: u32,
    /// The segment; `None`: the head.
    pub(crate) segment: Option<u32>,
}

/// Pages to be written to a drive.
#[derive(Debug)]
pub(crate) struct SegmentWrite {
    pub(crate) member: MemberId,
    /// Identity of the write; its segment is `None` for the head.
    pub(crate) scan: Scan,
    pub(crate) offset: u64,
    pub(crate) piece: BufSlice,
}

/// A segment that is being filled with blocks.
#[derive(Debug)]
struct Open {
    drive: u32,
    segment: u32,
    buf: Buf,
    blocks: Vec<Addr>,
    at: Vec<u16>,
    /// Maximum number of its blocks.
    most: usize,
    /// Its units, and how many of them are used.
    units: u32,
    end: u32,
}

/// The cache devices of a pool.
#[derive(Debug)]
pub(crate) struct CacheDevices {
    pool: PoolId,
    drives: Vec<CacheDevice>,
    open: Option<Open>,
    ghosts: Ghosts,
    next_id: u32,
    memory: u64,
}

impl CacheDevices {
    /// Creates a store without devices; `memory` bytes are for the blocks on devices that are
    /// attached later.
    pub(crate) fn new(pool: PoolId, memory: u64) -> CacheDevices {
        CacheDevices { pool, drives: Vec::new(), open: None, ghosts: Ghosts::default(), next_id: 0, memory }
    }

    /// True when there are no devices.
    pub(crate) fn is_empty(&self) -> bool {
        self.drives.is_empty()
    }

    /// True when this member is in use.
    pub(crate) fn has(&self, member: MemberId) -> bool {
        self.drives.iter().any(|drive| drive.member == member)
    }

    /// Bytes in use on a member.
    pub(crate) fn used(&self, member: MemberId) -> u64 {
        self.drives.iter().filter(|drive| drive.member == member).map(CacheDevice::used).sum()
    }

    /// Takes a device into use that has `bytes` bytes between its labels.
    pub(crate) fn attach(&mut self, member: MemberId, device: DeviceId, bytes: u64) {
        let taken: usize = self.drives.iter().map(|drive| drive.most).sum();
        let room = usize::try_from(self.memory / BLOCK_MEMORY).unwrap_or(usize::MAX).saturating_sub(taken);
        self.next_id += 1;
        self.drives.push(CacheDevice::new(self.next_id, member, device, bytes, room));
        self.ghosts.resize(self.drives.iter().map(|drive| drive.most).sum());
    }

    /// Takes a device out of use; completions of its operations are ignored.
    pub(crate) fn detach(&mut self, member: MemberId, bufs: &mut BufPool) {
        self.drives.retain(|drive| drive.member != member);
        let drives = &self.drives;
        if let Some(open) = self.open.take_if(|open| drives.iter().all(|drive| drive.id != open.drive)) {
            bufs.give(open.buf);
        }
    }

    fn drive(&mut self, id: u32) -> Option<&mut CacheDevice> {
        self.drives.iter_mut().find(|drive| drive.id == id)
    }

    /// Returns the place of the copy of a block.
    pub(crate) fn find(&self, addr: Addr) -> Option<CacheSlot> {
        self.drives.iter().find_map(|drive| drive.find(addr))
    }

    /// Pins a segment until [`ended`](CacheDevices::ended), and returns member and range of `pages` pages
    /// to read.
    pub(crate) fn begin_read(&mut self, cache_slot: CacheSlot, pages: u32) -> Option<(MemberId, ByteRange)> {
        let drive = self.drive(cache_slot.drive)?;
        drive.pin(cache_slot.segment);
        Some((drive.member, drive.range(cache_slot.segment, 1 + cache_slot.unit / BLOCK_UNITS, pages)))
    }

    /// Records that a read of a segment has ended.
    pub(crate) fn ended(&mut self, cache_slot: CacheSlot) {
        if let Some(drive) = self.drive(cache_slot.drive) {
            drive.unpin(cache_slot.segment);
        }
    }

    /// Records a failed read. Returns the member if its device is to be given up.
    pub(crate) fn failed(&mut self, drive: u32, error: DeviceError) -> Option<MemberId> {
        let drive = self.drive(drive)?;
        drive.troubles += 1;
        (error == DeviceError::Gone || drive.troubles > MOST_TROUBLES).then_some(drive.member)
    }

    /// Drops all blocks of a segment because a copy had a wrong checksum. Returns the member if
    /// that is an error of its device, not the result of a crash.
    pub(crate) fn wrong(&mut self, cache_slot: CacheSlot) -> Option<MemberId> {
        let drive = self.drive(cache_slot.drive)?;
        drive.clear(cache_slot.segment).then_some(drive.member)
    }

    /// Returns the next page to scan and its place.
    pub(crate) fn next_scan(&mut self) -> Option<(Scan, MemberId, ByteRange)> {
        self.drives.iter_mut().find_map(|drive| {
            let count = drive.count();
            match &mut drive.step {
                Step::Head { asked } if !*asked => {
                    *asked = true;
                    Some((Scan { drive: drive.id, segment: None }, drive.member, CacheDevice::head()))
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

    /// Handles a scanned page. For a head, returns the head that this import writes in its place.
    pub(crate) fn scanned(&mut self, scan: Scan, page: Option<&[u8]>, begun: Filling) -> Option<SegmentWrite> {
        let pool = self.pool;
        let drive = self.drive(scan.drive)?;
        let Some(segment) = scan.segment else {
            let head = page.and_then(|page| CacheHead::decode(page).ok()).filter(|head| head.pool == pool && head.device == drive.device);
            // only content that the import directly before this one used is kept: it belongs to
            // this history of the pool
            let known = head.filter(|head| head.incarnation.checked_add(1) == Some(begun.incarnation));
            drive.filling = known.map_or(begun, |head| head.filling);
            drive.step = if known.is_some() { Step::Scan { next: 0, reading: 0 } } else { Step::Ready };
            let head = CacheHead { pool, device: drive.device, filling: drive.filling, incarnation: begun.incarnation };
            let mut buf = Buf::zeroed(SECTOR_BYTES);
            buf.bytes_mut().copy_from_slice(&head.encode());
            let piece = BufSlice::new(buf, 0..SECTOR_BYTES);
            return Some(SegmentWrite { member: drive.member, scan, offset: CacheDevice::head().offset, piece });
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

    /// A block was read from the pool. True when it is to be copied to the cache.
    pub(crate) fn wants(&mut self, addr: Addr) -> bool {
        CacheSegment::takes(addr) && self.ghosts.meet(addr.identity())
    }

    /// Copies a block as it is stored. Returns a write when the segment before is full.
    pub(crate) fn take(&mut self, addr: Addr, stored: &[u8], now: u64, bufs: &mut BufPool) -> Option<SegmentWrite> {
        let full = |open: &Open| open.blocks.len() == open.most || CacheSegment::place(open.end, addr.units()) + addr.units() > open.units;
        let write = if self.open.as_ref().is_some_and(full) { self.seal() } else { None };
        if self.open.is_none() {
            self.open = self.begin(now, bufs);
        }
        if let Some(open) = &mut self.open {
            let start = CacheSegment::place(open.end, addr.units());
            let bytes = |unit: u32| PAGE as usize + unit as usize * UNIT;
            // the gap between blocks has old bytes of the buffer
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

    /// Begins a segment on the device with the fewest laps.
    fn begin(&mut self, now: u64, bufs: &mut BufPool) -> Option<Open> {
        let ready = |drive: &&mut CacheDevice| drive.step == Step::Ready && drive.writing < MOST_WRITING && now >= drive.rests_until;
        let laps = |drive: &&mut CacheDevice| (drive.written << 20) / u64::from(drive.count().max(1));
        let drive = self.drives.iter_mut().filter(ready).min_by_key(laps)?;
        let segment = drive.begin()?;
        let buf = bufs.take(drive.pages as usize * PAGE as usize);
        let units = (drive.pages - 1) * BLOCK_UNITS;
        Some(Open { drive: drive.id, segment, buf, blocks: Vec::new(), at: Vec::new(), most: drive.each, units, end: 0 })
    }

    /// Ends the segment that is being filled, and returns the write.
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
        Some(SegmentWrite { member, scan, offset, piece: BufSlice::new(open.buf, 0..written) })
    }

    /// Handles the end of a write. Returns the member if its device is to be given up.
    pub(crate) fn written(&mut self, scan: Scan, result: Result<(), DeviceError>, now: u64) -> Option<MemberId> {
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
