//! Received bytes that are not parsed yet, in one buffer that the loop borrows for each receive.

use millpond_block::{Buf, BufPool};

/// Size of a session's input buffer in bytes: several large socket reads, and far more than any
/// message that is parsed in place.
pub const INPUT_BYTES: usize = 256 << 10;

/// If less than this many bytes are free at the end of the buffer, the unparsed bytes are moved to
/// its front.
const COMPACT_BELOW: usize = 64 << 10;

/// Destination of one receive: the free part of the input buffer, or the missing part of a large
/// write's payload. The loop owns it while the receive is in flight; the bytes do not move when
/// this value moves.
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

    /// Returns the space to fill from the front; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.buf.bytes_mut().get_mut(self.from..self.to).unwrap_or_default()
    }

    /// Returns true if the space is for the payload of a large write. Then all of its bytes will
    /// follow on the stream, and the loop can wait for them in one operation.
    pub fn is_payload(&self) -> bool {
        self.payload
    }

    /// Returns the buffer to `pool` after the session has ended.
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
    /// Returns the unparsed bytes; empty while the loop has the buffer.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buf.as_ref().and_then(|buf| buf.bytes().get(self.start..self.end)).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "more input consumed than there is");
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Removes at most `most` bytes and returns their number.
    pub(super) fn skip(&mut self, most: u64) -> u64 {
        let here = self.end - self.start;
        let n = usize::try_from(most).map_or(here, |most| most.min(here));
        self.consume(n);
        n as u64
    }

    /// Hands the buffer out for a receive of at most `window` bytes.
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
