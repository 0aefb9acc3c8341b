//! Page-aligned buffers, shared slices of them, and a pool that recycles them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment and grain of buffers in bytes; direct I/O on 4 KiB-sector devices needs it.
pub const PAGE: usize = 4096;

/// Maximum free buffers of one size class that the pool keeps.
const KEPT_PER_CLASS: usize = 256;
/// Size classes: PAGE << class, up to 64 MiB.
const CLASSES: usize = 15;
/// Maximum free bytes that the pool keeps in all classes.
const KEPT_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// An owned, page-aligned buffer whose size is a multiple of [`PAGE`]. A buffer from a pool has
/// arbitrary content.
pub struct Buf {
    pages: Box<[Page]>,
}

impl Buf {
    /// Allocates a zeroed buffer of at least `bytes` bytes, rounded up to whole pages.
    pub fn zeroed(bytes: usize) -> Buf {
        let pages = bytes.div_ceil(PAGE).max(1);
        Buf { pages: <[Page]>::new_box_zeroed_with_elems(pages).unwrap_or_else(|_| std::process::abort()) }
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.pages.as_bytes()
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_bytes()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({})", self.size())
    }
}

/// A shared, immutable slice of a [`Buf`], which other threads may read, too.
#[derive(Clone, Debug)]
pub struct BufSlice {
    buf: Arc<Buf>,
    start: usize,
    len: usize,
    zeroes: bool,
}

impl BufSlice {
    /// The part `range` of `buf`, which the caller knows to be all zeroes: a protocol may then send
    /// its length only.
    ///
    /// # Panics
    /// As [`BufSlice::new`].
    pub fn zeroes(buf: impl Into<Arc<Buf>>, range: Range<usize>) -> BufSlice {
        BufSlice { zeroes: true, ..BufSlice::new(buf, range) }
    }

    /// The part `range` of `buf`.
    ///
    /// # Panics
    /// When the range is outside the buffer, which is an error of the caller.
    pub fn new(buf: impl Into<Arc<Buf>>, range: Range<usize>) -> BufSlice {
        let buf = buf.into();
        assert!(range.start <= range.end && range.end <= buf.size(), "piece outside its buffer");
        BufSlice { buf, start: range.start, len: range.end - range.start, zeroes: false }
    }

    /// True for pieces that [`BufSlice::zeroes`] made, and parts of them. Other pieces may hold
    /// zeroes, too.
    pub fn is_zeroes(&self) -> bool {
        self.zeroes
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf.bytes()[self.start..self.start + self.len]
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the piece's buffer, the same for all pieces of it while one exists,
    /// and its size in bytes.
    pub fn buffer(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.buf).addr(), self.buf.size())
    }

    /// True when the piece covers its whole buffer.
    pub fn is_whole(&self) -> bool {
        self.len == self.buf.size()
    }

    /// A part of this piece.
    pub fn slice(&self, range: Range<usize>) -> BufSlice {
        assert!(range.end <= self.len, "slice outside its piece");
        BufSlice { zeroes: self.zeroes, ..BufSlice::new(Arc::clone(&self.buf), self.start + range.start..self.start + range.end) }
    }

    /// Appends the piece that follows this one in the same buffer. Returns false, without any effect,
    /// if `next` is another piece.
    pub fn append_next(&mut self, next: &BufSlice) -> bool {
        let follows = Arc::ptr_eq(&self.buf, &next.buf) && self.start + self.len == next.start && self.zeroes == next.zeroes;
        if follows {
            self.len += next.len;
        }
        follows
    }

    /// Returns the buffer if this was the last reference to it.
    pub fn into_buf(self) -> Option<Buf> {
        Arc::try_unwrap(self.buf).ok()
    }
}

/// The bytes of a read, in order.
pub type IoSlices = SmallVec<[BufSlice; 1]>;

/// Recycles buffers by power-of-two size class, so that the data path neither allocates nor zeroes.
#[derive(Debug)]
pub struct BufPool {
    free: [Vec<Buf>; CLASSES],
    kept: usize,
}

impl Default for BufPool {
    fn default() -> Self {
        Self { free: std::array::from_fn(|_| Vec::new()), kept: 0 }
    }
}

fn class_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as usize
}

impl BufPool {
    /// Returns the size in bytes of the buffer that [`take`](Self::take) returns for so many bytes.
    pub fn size_for(bytes: usize) -> usize {
        PAGE << class_of(bytes)
    }

    /// Takes a buffer of at least `bytes` bytes with arbitrary content.
    pub fn take(&mut self, bytes: usize) -> Buf {
        let class = class_of(bytes);
        match self.free.get_mut(class).and_then(Vec::pop) {
            Some(buf) => {
                self.kept -= buf.size();
                buf
            }
            None => Buf::zeroed(PAGE << class),
        }
    }

    /// Takes a buffer back for reuse, or frees it when the pool has enough.
    pub fn give(&mut self, buf: Buf) {
        let size = buf.size();
        let class = class_of(size);
        if !size.is_power_of_two() || self.kept + size > KEPT_BYTES {
            return;
        }
        if let Some(list) = self.free.get_mut(class)
            && list.len() < KEPT_PER_CLASS
        {
            self.kept += size;
            list.push(buf);
        }
    }

    /// Takes the buffers of pieces back, except those that are still referenced elsewhere.
    pub fn give_data(&mut self, data: impl IntoIterator<Item = BufSlice>) {
        for piece in data {
            if let Some(buf) = piece.into_buf() {
                self.give(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_buffers_are_known_before_and_from_their_pieces() {
        let mut bufs = BufPool::default();
        for pages in 1..70 {
            let buf = bufs.take(pages * PAGE);
            assert_eq!(buf.size(), BufPool::size_for(pages * PAGE), "{pages} pages");
            let all = BufSlice::new(buf, 0..pages * PAGE);
            let last = all.slice((pages - 1) * PAGE..pages * PAGE);
            assert_eq!((last.buffer(), last.buffer().1), (all.buffer(), BufPool::size_for(pages * PAGE)));
        }
        let [one, other] = [(); 2].map(|()| BufSlice::new(Buf::zeroed(PAGE), 0..PAGE));
        assert_ne!(one.buffer(), other.buffer());
    }

    #[test]
    fn neighbours_in_one_buffer_become_one_piece() {
        let all = BufSlice::new(Buf::zeroed(4 * PAGE), 0..4 * PAGE);
        let mut piece = all.slice(0..PAGE);
        assert!(piece.append_next(&all.slice(PAGE..3 * PAGE)));
        assert_eq!(piece.len(), 3 * PAGE);
        // a gap, an overlap, another buffer, and zeroes that a protocol may leave out
        assert!(!all.slice(0..PAGE).append_next(&all.slice(2 * PAGE..3 * PAGE)));
        assert!(!all.slice(0..2 * PAGE).append_next(&all.slice(PAGE..3 * PAGE)));
        assert!(!piece.append_next(&BufSlice::new(Buf::zeroed(4 * PAGE), 3 * PAGE..4 * PAGE)));
        assert!(!piece.append_next(&BufSlice::zeroes(Arc::clone(&all.buf), 3 * PAGE..4 * PAGE)));
        assert_eq!(piece.len(), 3 * PAGE);
    }
}
