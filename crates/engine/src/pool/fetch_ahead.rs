//! Chunks of bases that are fetched before guests read them: [`Scans`] finds reads of a base that go
//! through it in order.
//!
//! A *scan* is a series of reads of a base, by whichever clone, each of which begins in the last chunk
//! of the one before or in the next one. Once it has covered [`LEAST`] chunks, half as many are fetched
//! ahead of it, up to [`MOST_BYTES`], so a scan that ends at any point has fetched at most one and a half
//! times what it read.

use std::ops::Range;

use millpond_format::{BLOCK, FANOUT, VolumeId};

use super::requests::Requests;
use crate::Target;
use crate::store::Store;
use crate::tree::Mapped;

/// Most bytes that are fetched ahead of a scan.
const MOST_BYTES: u64 = 2 << 20;
/// Chunks of a scan before any are fetched ahead: most reads of a guest that boots are shorter scans.
const LEAST: u64 = 4;
/// Most scans that are known: those that went on last.
const SCANS: usize = 16;

/// A series of reads in order.
#[derive(Debug)]
struct Scan {
    base: VolumeId,
    /// The chunk behind the last one that was read.
    next: u64,
    /// The chunk up to which it was fetched ahead; `next` or higher.
    ahead: u64,
    /// Number of chunks that it has covered.
    length: u64,
    /// Number of reads of bases when it last went on.
    used: u64,
}

/// The scans of all bases of a pool.
#[derive(Debug, Default)]
pub(super) struct Scans {
    list: Vec<Scan>,
    reads: u64,
}

impl Scans {
    /// Notes that a guest reads these chunks of a base, of `unit` bytes each. Returns the chunks that
    /// are to be fetched ahead from now on; they may be beyond the end of the base.
    pub(super) fn note(&mut self, base: VolumeId, chunks: Range<u64>, unit: u64) -> Range<u64> {
        self.reads += 1;
        let goes_on = |scan: &Scan| scan.base == base && (chunks.start == scan.next || chunks.start + 1 == scan.next);
        let Some(scan) = self.list.iter_mut().filter(|scan| goes_on(scan)).max_by_key(|scan| scan.length) else {
            let length = chunks.end - chunks.start;
            self.admit(Scan { base, next: chunks.end, ahead: chunks.end, length, used: self.reads });
            return 0..0;
        };
        scan.used = self.reads;
        if chunks.end <= scan.next {
            return 0..0;
        }
        scan.length += chunks.end - scan.next;
        scan.next = chunks.end;
        let from = scan.ahead.max(scan.next);
        let window = if scan.length < LEAST { 0 } else { (scan.length / 2).min(MOST_BYTES / unit) };
        scan.ahead = from.max(scan.next + window);
        from..scan.ahead
    }

    fn admit(&mut self, scan: Scan) {
        if self.list.len() < SCANS {
            return self.list.push(scan);
        }
        if let Some(oldest) = self.list.iter_mut().min_by_key(|scan| scan.used) {
            *oldest = scan;
        }
    }
}

impl Requests {
    /// Notes that a guest reads these blocks of a base, and wants chunks that are ahead of it. Those that
    /// the pool has, or that it would not keep, are not fetched.
    pub(super) fn note_base_read(&mut self, store: &mut Store, base: VolumeId, blocks: Range<u64>) {
        let Some(unit) = store.core.catalog.bases.get(&base).map(|base| u64::from(base.unit) / BLOCK as u64) else { return };
        let chunks = blocks.start / unit..blocks.end.div_ceil(unit);
        let ahead = self.fetches.scans.note(base, chunks, unit * BLOCK as u64);
        if ahead.is_empty() || store.closing.is_some() || !self.may_fill(store, base) {
            return;
        }
        let Some(root) = store.root_of(Target::Head(base)) else { return };
        let end = store.core.catalog.base_blocks(base);
        for chunk in ahead.take_while(|chunk| chunk * unit < end) {
            let block = chunk * unit;
            let is_missing = match store.core.nodes.look_up(&root, block, &mut 0) {
                Ok(Mapped::Base(_)) => true,
                Ok(Mapped::Leaf(leaf)) => {
                    let entries = &store.core.nodes.get(leaf).node.entries;
                    entries.get((block % FANOUT as u64) as usize).is_some_and(|entry| entry.base().is_some())
                }
                // it is not known; the read will
                Ok(Mapped::Hole) | Err(_) => false,
            };
            if is_missing {
                self.fetches.want_ahead((base, chunk));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 256 << 10;

    fn note(scans: &mut Scans, base: u32, chunks: Range<u64>) -> Range<u64> {
        scans.note(VolumeId(base), chunks, UNIT)
    }

    #[test]
    fn a_scan_is_fetched_ahead_by_half_of_what_it_covered() {
        let mut scans = Scans::default();
        let (mut fetched, mut most) = (0, 0);
        for chunk in 10..100 {
            let ahead = note(&mut scans, 1, chunk..chunk + 1);
            assert!(ahead.is_empty() || ahead.start > chunk && ahead.end <= chunk + 1 + 8, "chunk {chunk}: {ahead:?}");
            fetched = ahead.end.max(fetched);
            let covered = chunk + 1 - 10;
            assert!(fetched.saturating_sub(chunk + 1) <= covered / 2);
            most = most.max(fetched.saturating_sub(chunk + 1));
            // a second read of the same chunk asks for nothing
            assert!(note(&mut scans, 1, chunk..chunk + 1).is_empty());
        }
        assert_eq!(most, 8);
    }

    #[test]
    fn reads_elsewhere_and_of_other_bases_do_not_end_a_scan() {
        let mut scans = Scans::default();
        for chunk in 0..20 {
            note(&mut scans, 2, chunk..chunk + 1);
            let ahead = note(&mut scans, 1, chunk..chunk + 1);
            assert_eq!(ahead.is_empty(), chunk < 3, "chunk {chunk}");
            assert!(note(&mut scans, 1, 1000 + chunk * 7..1001 + chunk * 7).is_empty());
        }
    }

    #[test]
    fn reads_at_random_fetch_nothing_ahead() {
        let mut scans = Scans::default();
        for n in 0..1000u64 {
            let chunk = n * 7919 % 1009 * 3;
            assert!(note(&mut scans, 1, chunk..chunk + 1).is_empty());
        }
        assert_eq!(scans.list.len(), SCANS);
    }

    #[test]
    fn chunks_longer_than_the_window_are_not_fetched_ahead() {
        let mut scans = Scans::default();
        assert!((0..9).all(|chunk| scans.note(VolumeId(1), chunk..chunk + 1, 4 << 20).is_empty()));
    }
}
