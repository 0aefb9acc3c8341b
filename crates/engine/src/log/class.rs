//! Lifetime classes: one stream of the log each.

/// Lifetime class of chunks of nodes.
pub(crate) const META_CLASS: u8 = 255;
/// Class of segments of checkpoint objects.
pub(crate) const OBJECT_CLASS: u8 = 254;
/// Stream of blocks that replace short-lived ones (SepBIT, FAST'22, class 1).
pub(crate) const SHORT: usize = 0;
/// Stream of new blocks, blocks that replace long-lived ones, and records (class 2).
pub(crate) const LONG: usize = 1;
/// Stream of compressed blocks.
pub(crate) const PACKED: usize = 2;
/// Stream of small writes that go to special devices.
pub(crate) const SMALL: usize = 3;
/// First of the cleaner's four streams for lifetimes (classes 3 to 6).
pub(crate) const CLEANED: usize = 4;
/// Stream of the cleaner for blocks that stay on special devices.
pub(crate) const KEPT: usize = 8;
/// The streams that guests write to.
pub(crate) const GUESTS: std::ops::Range<usize> = SHORT..CLEANED;

/// True for a stream that is written to special devices.
pub(crate) fn is_special(stream: usize) -> bool {
    matches!(stream, SMALL | KEPT)
}
