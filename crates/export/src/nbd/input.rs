//! The bytes a client sent that are not parsed yet, in one buffer that is lent out for each receive.

use millpond_block::{Buf, BufPool};

/// Size of a session's input buffer in bytes: several large socket reads, and far more than any message that is parsed in place.
pub const INPUT_BYTES: usize = 256 << 10;

/// The unparsed rest is moved to the front when less than this is free behind it.
const COMPACT_BELOW: usize = 64 << 10;

/// Where one receive puts its bytes: the free part of the input buffer, or the missing part of a large write's payload. Owned by the
/// loop while the receive is in flight; the space does not move when this value does.
#[derive(Debug)]
pub struct RecvBuf {
    buf: Buf,
    from: usize,
    to: usize,
    payload: bool,
}

impl RecvBuf {
    pub(super) fn new(buf: Buf, from: usize, to: usize, payload: bool) -> RecvBuf {
        debug_assert!(from < to && to <= buf.size());
        RecvBuf { buf, from, to, payload }
    }

    /// The bytes to fill from the front; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.buf.bytes_mut().get_mut(self.from..self.to).unwrap_or_default()
    }

    /// True when exactly this many bytes are known to follow on the stream (the rest of a large write): waiting for all of them in
    /// one operation is right.
    pub fn is_payload(&self) -> bool {
        self.payload
    }

    /// Gives the buffer up after its session is gone.
    pub fn recycle(self, pool: &mut BufPool) {
        pool.give(self.buf);
    }

    pub(super) fn into_filled(self, n: usize) -> (Buf, usize) {
        assert!(n <= self.to - self.from, "more bytes received than there was space for");
        (self.buf, self.from + n)
    }
}

/// The input buffer. Empty (and holding no memory) until the first receive.
#[derive(Default)]
pub(super) struct Input {
    buf: Option<Buf>,
    start: usize,
    end: usize,
}

impl Input {
    /// What is not parsed yet; empty while the buffer is out.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buf.as_ref().and_then(|buf| buf.bytes().get(self.start..self.end)).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first `n` bytes are done with.
    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "more input consumed than there is");
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Consumes at most `most` bytes and says how many.
    pub(super) fn skip(&mut self, most: u64) -> u64 {
        let here = self.end - self.start;
        let n = usize::try_from(most).map_or(here, |most| most.min(here));
        self.consume(n);
        n as u64
    }

    /// Moves the buffer out, with room for at most `window` bytes.
    pub(super) fn lend(&mut self, window: usize, pool: &mut BufPool) -> RecvBuf {
        let mut buf = self.buf.take().unwrap_or_else(|| pool.take(INPUT_BYTES));
        if self.start > 0 && buf.size() - self.end < COMPACT_BELOW {
            buf.bytes_mut().copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let to = buf.size().min(self.end.saturating_add(window));
        RecvBuf::new(buf, self.end, to, false)
    }

    pub(super) fn take_back(&mut self, recv: RecvBuf, n: usize) {
        let (buf, end) = recv.into_filled(n);
        self.buf = Some(buf);
        self.end = end;
    }

    pub(super) fn recycle(&mut self, pool: &mut BufPool) {
        if let Some(buf) = self.buf.take() {
            pool.give(buf);
        }
    }
}
