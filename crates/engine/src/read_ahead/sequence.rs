//! [`Sequences`]: series of adjacent reads of a target, and how far ahead of each the target is read.

use millpond_block::ByteRange;

use super::BLOCK;
use crate::Time;

/// Most sequences of a target.
const SEQUENCES: usize = 8;
/// Reads that continue a sequence before it is read ahead: while guests use at least half of what
/// is read ahead of the target, at least a quarter, and less.
const AFTER_READS: [u32; 3] = [2, 8, 32];
/// Bytes that count as used before anything was read ahead of a target.
const ALLOWANCE: u64 = 1 << 20;
/// Bytes that were read ahead of a target, used or not, after which older ones count half.
const REMEMBERED: u64 = 16 << 20;
/// The first window, in lengths of the read that begins it.
const FIRST_WINDOW: u64 = 4;
/// Smallest window in bytes.
const LEAST_WINDOW: u64 = 2 * BLOCK;
/// Bytes that are read ahead at a time, approximately, and less than twice as many: guests wait for
/// all of them.
pub(super) const STEP: u64 = 256 << 10;
/// Reads of a target after which a sequence that was not continued may lose its place.
const STALE_READS: u64 = 64;

/// A series of adjacent reads.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Its number in the pool.
    pub(super) nth: u64,
    /// The byte after its last read.
    pub(super) next: u64,
    /// The byte up to which it was read ahead; `next` or higher.
    pub(super) ahead: u64,
    /// Bytes that are to be read ahead; 0 until that begins.
    pub(super) window: u64,
    /// Reads that continued it.
    run: u32,
    /// Number of reads of the target when it was last continued, and the time.
    used: u64,
    pub(super) at: Time,
    /// True when it is among those to be read ahead now.
    pub(super) wants: bool,
}

impl Sequence {
    /// Returns whether a read leaves out bytes of the sequence, and begins in what was read ahead
    /// of it.
    fn skips_to(&self, offset: u64) -> bool {
        offset > self.next && offset < self.ahead
    }

    /// Continues the sequence. Returns true when it is to be read ahead from now on, with a window
    /// of at most `most` bytes: after so many reads.
    fn advance(&mut self, range: ByteRange, most: u64, after_reads: u32) -> bool {
        if range.offset == self.next {
            self.run = self.run.saturating_add(1);
        } else {
            self.narrow();
        }
        self.next = range.offset + range.length;
        self.ahead = self.ahead.max(self.next);
        if self.wants || self.run < after_reads || most < LEAST_WINDOW || self.ahead - self.next > self.window / 2 {
            return false;
        }
        let wider = if self.window == 0 { range.length * FIRST_WINDOW } else { self.window.saturating_mul(2) };
        self.window = wider.max(LEAST_WINDOW).min(most);
        self.wants = true;
        true
    }

    /// Halves the window; below the smallest one the sequence has to prove itself again.
    pub(super) fn narrow(&mut self) {
        self.window /= 2;
        if self.window < LEAST_WINDOW {
            (self.window, self.run, self.ahead) = (0, 0, self.next);
        }
    }

    /// Returns the next range to be read ahead, in whole blocks below `size`; `None` when all of
    /// the window was.
    pub(super) fn next_range(&self, size: u64, most: u64) -> Option<ByteRange> {
        let window_end = (self.next + self.window.min(most)) / BLOCK * BLOCK;
        let end = window_end.min(size.next_multiple_of(BLOCK));
        let offset = self.ahead / BLOCK * BLOCK;
        if offset >= end {
            return None;
        }
        // steps end at multiples of their length; the first one is not short, nor is the rest
        let step_end = ((offset + STEP / 2) / STEP + 1) * STEP;
        let to = if end < step_end + STEP / 2 { end } else { step_end };
        Some(ByteRange { offset, length: to - offset })
    }
}

/// Result of a read's place in its target.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// The sequence that is to be read ahead from now on.
    pub(super) wants: Option<u64>,
    /// True when its window opened.
    pub(super) opened: bool,
    /// The sequence that was read ahead and has lost its place.
    pub(super) ended: Option<u64>,
}

/// The sequences of a target.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    pub(super) list: Vec<Sequence>,
    /// Number of reads of the target.
    reads: u64,
    /// Bytes that were read ahead of the target and used, and not used.
    used: u64,
    unused: u64,
}

impl Sequences {
    /// Notes a read of a guest: it continues a sequence, or begins number `nth`. Windows have at
    /// most `most` bytes.
    pub(super) fn note(&mut self, range: ByteRange, nth: u64, now: Time, most: u64) -> Noted {
        self.reads += 1;
        let (reads, after_reads) = (self.reads, self.after_reads());
        if let Some(sequence) = self.continued_at(range.offset) {
            let was_open = sequence.window > 0;
            (sequence.used, sequence.at) = (reads, now);
            let wants = sequence.advance(range, most, after_reads).then_some(sequence.nth);
            return Noted { wants, opened: !was_open && sequence.window > 0, ended: None };
        }
        let next = range.offset + range.length;
        let ended = self.admit(Sequence { nth, next, ahead: next, window: 0, run: 0, used: reads, at: now, wants: false });
        Noted { ended, ..Noted::default() }
    }

    /// Returns the number of reads that continue a sequence before it is read ahead.
    fn after_reads(&self) -> u32 {
        let (used, all) = (self.used + ALLOWANCE, self.used + self.unused + ALLOWANCE);
        let [while_useful, while_doubtful, while_useless] = AFTER_READS;
        match () {
            () if used * 2 >= all => while_useful,
            () if used * 4 >= all => while_doubtful,
            () => while_useless,
        }
    }

    /// Notes bytes that were read ahead: those that guests used, and those that they did not.
    pub(super) fn judge(&mut self, used: u64, unused: u64) {
        self.used += used;
        self.unused += unused;
        if self.used + self.unused > REMEMBERED {
            self.used /= 2;
            self.unused /= 2;
        }
    }

    /// Returns the sequence that a read continues.
    fn continued_at(&mut self, offset: u64) -> Option<&mut Sequence> {
        let exact = self.list.iter().position(|sequence| sequence.next == offset);
        let at = exact.or_else(|| self.list.iter().position(|sequence| sequence.skips_to(offset)))?;
        self.list.get_mut(at)
    }

    /// Adds a sequence, in the place of the one that was continued least lately if there is no
    /// other place. Sequences that are read ahead keep theirs while they are continued. Returns one
    /// that was read ahead and has lost it.
    fn admit(&mut self, sequence: Sequence) -> Option<u64> {
        if self.list.len() < SEQUENCES {
            self.list.push(sequence);
            return None;
        }
        let reads = self.reads;
        let others = self.list.iter_mut().filter(|old| old.window == 0 || reads > old.used + STALE_READS);
        let old = others.min_by_key(|old| old.used)?;
        let old = std::mem::replace(old, sequence);
        (old.window > 0).then_some(old.nth)
    }
}
