//! Replies to be sent: small parts are gathered in one buffer, data of reads is referenced, and
//! both are handed out as one batch per send.

use millpond_block::{BufPool, BufSlice, IoSlices};

/// Capacity in bytes above which the buffer of gathered bytes is shrunk after a send, so that one
/// long list of exports does not stay in memory.
const KEPT_HEAD: usize = 64 << 10;

#[derive(Debug)]
enum Part {
    /// This many of the gathered bytes, after those of the previous parts.
    Head(usize),
    /// Bytes in a disk's buffer.
    Data(BufSlice),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Head(len) => *len,
            Part::Data(piece) => piece.len(),
        }
    }
}

/// Bytes to send, in order. The loop owns the batch while the send is in flight; the bytes do not
/// move when this value moves.
#[derive(Debug, Default)]
pub struct SendBatch {
    head: Vec<u8>,
    parts: Vec<Part>,
    /// Number of parts that are sent completely.
    done: usize,
    done_head: usize,
    /// Bytes sent of the first part that is not sent completely.
    offset: usize,
    left: usize,
}

impl SendBatch {
    /// Returns the number of bytes that are not sent yet.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Returns true if everything is sent. Batches that [`Session::send`](super::Session::send)
    /// returns are never empty.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the bytes that are not sent yet, in order. No slice is empty. There may be more
    /// slices than one system call takes (1,024).
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut head = self.done_head;
        let mut skip = self.offset;
        self.parts.iter().skip(self.done).map(move |part| {
            let bytes = match part {
                Part::Head(len) => {
                    head += len;
                    self.head.get(head - len..head).unwrap_or_default()
                }
                Part::Data(piece) => piece.bytes(),
            };
            bytes.get(std::mem::take(&mut skip)..).unwrap_or_default()
        })
    }

    /// Returns the number of slices.
    pub fn slice_count(&self) -> usize {
        self.parts.len() - self.done
    }

    /// Returns the buffers to `pool` after the session has ended.
    pub fn recycle(mut self, pool: &mut BufPool) {
        self.reset(pool);
    }

    fn push_head(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.head.extend_from_slice(bytes);
        self.left += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Head(len)) => *len += bytes.len(),
            _ => self.parts.push(Part::Head(bytes.len())),
        }
    }

    fn push_data(&mut self, piece: BufSlice) {
        if !piece.is_empty() {
            self.left += piece.len();
            self.parts.push(Part::Data(piece));
        }
    }

    fn advance(&mut self, n: usize) {
        assert!(n <= self.left, "more bytes sent than there were");
        self.left -= n;
        self.offset += n;
        while let Some(part) = self.parts.get(self.done)
            && self.offset >= part.len()
        {
            self.offset -= part.len();
            self.done += 1;
            if let Part::Head(len) = part {
                self.done_head += len;
            }
        }
    }

    fn reset(&mut self, pool: &mut BufPool) {
        for part in self.parts.drain(..) {
            if let Part::Data(piece) = part
                && let Some(buf) = piece.into_buf()
            {
                pool.give(buf);
            }
        }
        self.head.clear();
        self.head.shrink_to(KEPT_HEAD);
        (self.done, self.done_head, self.offset, self.left) = (0, 0, 0, 0);
    }
}

/// Collects replies while the previous batch is being sent.
#[derive(Default)]
pub(super) struct Output {
    next: SendBatch,
    /// Batch that was sent in part and continues first.
    rest: Option<SendBatch>,
    /// Empty batch, kept for its memory.
    spare: Option<SendBatch>,
    /// Length in bytes of the batch that the loop has.
    lent: Option<usize>,
}

impl Output {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.next.push_head(bytes);
    }

    pub(super) fn push_data(&mut self, data: IoSlices) {
        for piece in data {
            self.next.push_data(piece);
        }
    }

    pub(super) fn unsent(&self) -> usize {
        self.next.left + self.rest.as_ref().map_or(0, SendBatch::len) + self.lent.unwrap_or(0)
    }

    pub(super) fn lend(&mut self) -> Option<SendBatch> {
        if self.lent.is_some() {
            return None;
        }
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None if self.next.is_empty() => return None,
            None => std::mem::replace(&mut self.next, self.spare.take().unwrap_or_default()),
        };
        self.lent = Some(batch.left);
        Some(batch)
    }

    pub(super) fn take_back(&mut self, mut batch: SendBatch, n: usize, pool: &mut BufPool) {
        assert!(self.lent.take().is_some(), "a batch came back that was not out");
        batch.advance(n);
        if batch.is_empty() {
            batch.reset(pool);
            self.spare = Some(batch);
        } else {
            self.rest = Some(batch);
        }
    }

    /// Discards the batches that the loop does not have.
    pub(super) fn discard(&mut self, pool: &mut BufPool) {
        self.next.reset(pool);
        if let Some(rest) = self.rest.take() {
            rest.recycle(pool);
        }
    }
}

#[cfg(test)]
mod tests;
