//! Reads of one request that are joined by place: blocks that are neighbours on a device, or nearly
//! so, are read together, in whatever order the request has them. After random overwrites the
//! neighbours of a block in its volume are elsewhere, but some blocks of a large request were often
//! written together. Packed blocks may share a page, which is read once.
//!
//! Each block is checked by its own checksum. When a joined read fails, or has wrong content in some
//! parts, those parts are read again one by one, and are repaired as any other: a joined read never
//! fails a request that would succeed without it.

use millpond_block::{Buf, BufSlice, DeviceError};
use millpond_format::{Coding, SegmentId, crc32c};
use smallvec::SmallVec;

use super::codec::PackedBlock;
use super::op::{CorruptCopy, Op, Part, Work};
use super::requests::Requests;
use crate::store::{Context, GAP_PAGES, Store};

/// Plain blocks of a read that are neighbours on a device, or the pages of a packed block, and the
/// part of the read that they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) segment: SegmentId,
    /// First page in the segment, and number of pages.
    pub(super) page: u32,
    pub(super) pages: u32,
    pub(super) part: u32,
}

/// A device read of one run or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) segment: SegmentId,
    pub(super) page: u32,
    pub(super) pages: u32,
    pub(super) parts: SmallVec<[u32; 4]>,
}

/// Joins runs whose places are at most [`GAP_PAGES`] apart. `in_one_place` returns whether so many
/// pages from a page of a segment on are neighbours on one device.
pub(super) fn join(runs: &mut [Run], in_one_place: impl Fn(SegmentId, u32, u32) -> bool) -> SmallVec<[Joined; 4]> {
    if runs.len() > 1 {
        runs.sort_unstable_by_key(|run| (run.segment, run.page, run.pages));
    }
    let mut reads: SmallVec<[Joined; 4]> = SmallVec::new();
    for run in runs {
        let Run { segment, page, pages, part } = *run;
        if let Some(last) = reads.last_mut()
            && last.segment == segment
            && page.saturating_sub(last.page + last.pages) <= GAP_PAGES
            && let all = last.pages.max(page + pages - last.page)
            && in_one_place(segment, last.page, all)
        {
            last.pages = all;
            last.parts.push(part);
            continue;
        }
        reads.push(Joined { segment, page, pages, parts: SmallVec::from_slice(&[part]) });
    }
    reads
}

impl Part {
    /// Returns the pages of a part that is read from the pool's devices: segment, first page, and
    /// number.
    pub(super) fn place(&self) -> Option<(SegmentId, u32, u32)> {
        match self {
            Part::Blocks { place: (segment, page), crcs, .. } => Some((*segment, *page, crcs.len() as u32)),
            Part::Packed { place: (segment, page), pages, .. } => Some((*segment, *page, *pages)),
            Part::Zero(_) | Part::Ready(_) | Part::Cached { .. } | Part::Joined { .. } => None,
        }
    }

    /// Returns the part's bytes in its pages, if they are what their checksums say: plain blocks, or
    /// the stored form of a packed one.
    pub(super) fn sound(&self, pages: BufSlice) -> Option<BufSlice> {
        match self {
            Part::Blocks { crcs, .. } => are_sound(crcs, pages.bytes()).then_some(pages),
            Part::Packed { crc, skip, units, .. } => {
                let stored = pages.slice(*skip..*skip + *units as usize * 512);
                (crc32c(stored.bytes()) == *crc).then_some(stored)
            }
            Part::Zero(_) | Part::Ready(_) | Part::Cached { .. } | Part::Joined { .. } => None,
        }
    }
}

/// Returns whether blocks are what their checksums say.
fn are_sound(crcs: &[u32], bytes: &[u8]) -> bool {
    crcs.iter().zip(bytes.chunks_exact(4096)).all(|(crc, block)| crc32c(block) == *crc)
}

impl Requests {
    /// Handles a device read of several parts, and starts reads of those that it does not have.
    pub(super) fn joined_read(&mut self, store: &mut Store, id: u32, part: u32, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let Some(Op { work: Work::Read(work), .. }) = self.ops.get_mut(id) else { return };
        let Some(place) = work.parts.get_mut(part as usize) else { return };
        let Part::Joined { page: first, pages, parts } = std::mem::replace(place, Part::Zero(0)) else { return };
        let all = match (result, buf) {
            (Ok(()), Some(buf)) => Some(BufSlice::new(buf, 0..pages as usize * 4096)),
            (_, buf) => {
                buf.into_iter().for_each(|buf| store.bufs.give(buf));
                None
            }
        };
        let mut packed = SmallVec::new();
        for part in parts {
            let Some(Op { work: Work::Read(work), pending, .. }) = self.ops.get_mut(id) else { return };
            let Some(wanted) = work.parts.get(part as usize) else { continue };
            let Some((segment, page, pages)) = wanted.place() else { continue };
            let from = (page - first) as usize * 4096;
            let mine = all.as_ref().map(|all| all.slice(from..from + pages as usize * 4096));
            match mine.and_then(|pages| wanted.sound(pages)) {
                Some(piece) => packed.extend(self.keep(store, id, part, piece)),
                None => {
                    *pending += 1;
                    store.metrics.data_reads += 1;
                    store.read_segment(Context::Data { op: id, part }, segment, page, pages, 0);
                }
            }
        }
        self.decompress(store, id, packed);
        self.release(store, id);
    }

    /// Handles a device read of a range that is read ahead. Blocks that could not be read, or are
    /// wrong, are left to the guests that want them: their reads count the error, and repair it
    /// from other copies.
    pub(super) fn range_read_ahead(
        &mut self,
        store: &mut Store,
        id: u32,
        batch: u64,
        part: u32,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
    ) {
        self.ahead.read_ended(batch);
        let Some(Op { work: Work::Read(work), .. }) = self.ops.get(id) else { return };
        let (first, pages, parts): (u32, u32, SmallVec<[u32; 4]>) = match work.parts.get(part as usize) {
            Some(Part::Joined { page, pages, parts }) => (*page, *pages, parts.clone()),
            Some(single) => match single.place() {
                Some((_, page, pages)) => (page, pages, SmallVec::from_slice(&[part])),
                None => return,
            },
            None => return,
        };
        let mut packed = SmallVec::new();
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                let all = BufSlice::new(buf, 0..pages as usize * 4096);
                for part in parts {
                    let Some(wanted) = work.parts.get(part as usize) else { continue };
                    let Some((_, page, pages)) = wanted.place() else { continue };
                    let from = (page - first) as usize * 4096;
                    let Some(piece) = wanted.sound(all.slice(from..from + pages as usize * 4096)) else { continue };
                    match wanted {
                        Part::Packed { addr, coding, .. } if *coding != Coding::Raw => {
                            packed.push(PackedBlock { part, addr: *addr, coding: *coding, stored: piece });
                        }
                        Part::Packed { addr, .. } => self.ahead.hold(batch, addr.identity(), piece),
                        Part::Blocks { addrs, .. } => {
                            for (addr, at) in addrs.iter().zip((0..piece.len()).step_by(4096)) {
                                self.ahead.hold(batch, addr.identity(), piece.slice(at..at + 4096));
                            }
                        }
                        Part::Zero(_) | Part::Ready(_) | Part::Cached { .. } | Part::Joined { .. } => {}
                    }
                }
            }
            (_, buf) => buf.into_iter().for_each(|buf| store.bufs.give(buf)),
        }
        self.decompress(store, id, packed);
        self.ready.extend(self.ahead.take_waiters(batch));
        self.release(store, id);
    }

    /// Keeps the content of a part of a read, which is right, for the reply and for caches: plain
    /// blocks, or the stored form of a packed one. Returns a packed block that is to be
    /// decompressed.
    pub(super) fn keep(&mut self, store: &mut Store, id: u32, part: u32, piece: BufSlice) -> Option<PackedBlock> {
        let Some(Op { work: Work::Read(work), .. }) = self.ops.get_mut(id) else { return None };
        let remembered = work.remembered;
        let Some(Part::Packed { coding, addr, place: (segment, _), .. }) = work.parts.get(part as usize) else {
            self.keep_blocks(store, id, part, piece);
            return None;
        };
        let (coding, addr, segment) = (*coding, *addr, *segment);
        if addr.is_some() && self.may_copy(store, segment) {
            self.copy_to_cache(store, addr, piece.bytes());
        }
        if coding != Coding::Raw {
            return Some(PackedBlock { part, addr, coding, stored: piece });
        }
        if let Some(volume) = remembered {
            self.remember(store, volume, std::iter::once(addr), &piece);
        }
        if let Some(Op { work: Work::Read(work), .. }) = self.ops.get_mut(id)
            && let Some(place) = work.parts.get_mut(part as usize)
        {
            *place = Part::Ready(piece);
        }
        None
    }

    /// Keeps plain blocks, and rewrites copies that were wrong.
    fn keep_blocks(&mut self, store: &mut Store, id: u32, part: u32, piece: BufSlice) {
        let Some(Op { work: Work::Read(work), .. }) = self.ops.get_mut(id) else { return };
        let Some(place) = work.parts.get_mut(part as usize) else { return };
        let remembered = work.remembered;
        // pages shared with other blocks are left to scrub: it is unknown here whether those blocks
        // are sound
        let Part::Blocks { addrs, place: (segment, page), .. } = std::mem::replace(place, Part::Ready(piece.clone())) else { return };
        if !work.bad.is_empty() {
            let (mine, others) = std::mem::take(&mut work.bad).into_iter().partition(|bad: &CorruptCopy| bad.part == part);
            work.bad = others;
            let mine: Vec<CorruptCopy> = mine;
            mine.into_iter().for_each(|bad| store.repair(bad.member, segment, page, piece.clone()));
        }
        if let Some(volume) = remembered {
            self.remember(store, volume, addrs.iter().copied(), &piece);
        }
        if self.may_copy(store, segment) {
            addrs.into_iter().zip(piece.bytes().chunks_exact(4096)).for_each(|(addr, bytes)| self.copy_to_cache(store, addr, bytes));
        }
    }
}

#[cfg(test)]
mod tests;
