//! Reads of one request that are joined by place: blocks that are neighbours on a device, or nearly
//! so, are read together, in whatever order the request has them. After random overwrites the
//! neighbours of a block in its volume are elsewhere, but some blocks of a large request were often
//! written together.
//!
//! Each block is checked by its own checksum. When a joined read fails, or has wrong content in some
//! parts, those parts are read again one by one, and are repaired as any other: a joined read never
//! fails a request that would succeed without it.

use millpond_block::{Buf, BufSlice, DeviceError};
use millpond_format::{SegmentId, crc32c};
use smallvec::SmallVec;

use super::op::{CorruptCopy, Op, Part, Work};
use super::requests::Requests;
use crate::store::{Context, GAP_PAGES, Store};

/// Plain blocks of a read that are neighbours on a device, and the part of the read that they are.
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
        runs.sort_unstable_by_key(|run| (run.segment, run.page));
    }
    let mut reads: SmallVec<[Joined; 4]> = SmallVec::new();
    for run in runs {
        let Run { segment, page, pages, part } = *run;
        if let Some(last) = reads.last_mut()
            && last.segment == segment
            && let Some(gap) = page.checked_sub(last.page + last.pages)
            && gap <= GAP_PAGES
            && in_one_place(segment, last.page, last.pages + gap + pages)
        {
            last.pages += gap + pages;
            last.parts.push(part);
            continue;
        }
        reads.push(Joined { segment, page, pages, parts: SmallVec::from_slice(&[part]) });
    }
    reads
}

/// Returns whether blocks are what their checksums say.
pub(super) fn are_sound(crcs: &[u32], bytes: &[u8]) -> bool {
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
        for part in parts {
            let Some(Op { work: Work::Read(work), pending, .. }) = self.ops.get_mut(id) else { return };
            let Some(Part::Blocks { crcs, place: (segment, page), .. }) = work.parts.get(part as usize) else { continue };
            let (segment, page, count) = (*segment, *page, crcs.len());
            let from = (page - first) as usize * 4096;
            let mine = all.as_ref().map(|all| all.slice(from..from + count * 4096));
            match mine.filter(|piece| are_sound(crcs, piece.bytes())) {
                Some(piece) => self.keep_blocks(store, id, part, piece),
                None => {
                    *pending += 1;
                    store.metrics.data_reads += 1;
                    store.read_segment(Context::Data { op: id, part }, segment, page, count as u32, 0);
                }
            }
        }
        self.release(store, id);
    }

    /// Keeps the blocks of a part of a read, whose content is right, for the reply and for caches,
    /// and rewrites copies that were wrong.
    pub(super) fn keep_blocks(&mut self, store: &mut Store, id: u32, part: u32, piece: BufSlice) {
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
