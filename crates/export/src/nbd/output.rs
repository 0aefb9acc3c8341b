//! Replies on their way out: small bytes gathered in one buffer, read data by reference, lent out as one batch per send.

use millpond_block::{BufPool, Data, Piece};

/// A batch's gathered bytes are not kept for reuse beyond this capacity, so that one long export list does not stay in memory.
const KEPT_HEAD: usize = 64 << 10;

#[derive(Debug)]
enum Part {
    /// This many of the gathered bytes, after those of the parts before.
    Head(usize),
    /// Bytes of a disk's buffer.
    Data(Piece),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Head(len) => *len,
            Part::Data(piece) => piece.len(),
        }
    }
}

/// Bytes to send, in order. Owned by the loop while the send is in flight; the bytes do not move when this value does.
#[derive(Debug, Default)]
pub struct SendBatch {
    head: Vec<u8>,
    parts: Vec<Part>,
    /// Parts sent in full, and the gathered bytes of them.
    done: usize,
    done_head: usize,
    /// Bytes sent of the part after them.
    offset: usize,
    left: usize,
}

impl SendBatch {
    /// Bytes that are not sent yet.
    pub fn len(&self) -> usize {
        self.left
    }

    /// True when everything is sent; a batch that [`Session::send`](super::Session::send) hands out never is.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// What is not sent yet, in order; no slice is empty. There may be more of them than one system call takes (1,024).
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

    /// Number of slices.
    pub fn slice_count(&self) -> usize {
        self.parts.len() - self.done
    }

    /// Gives the buffers up after the session is gone.
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

    fn push_data(&mut self, piece: Piece) {
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

/// Collects replies while the batch before is being sent.
#[derive(Default)]
pub(super) struct Output {
    next: SendBatch,
    /// Sent in part; goes first.
    rest: Option<SendBatch>,
    /// Empty, kept for its memory.
    spare: Option<SendBatch>,
    /// Bytes of the batch that is out.
    lent: Option<usize>,
}

impl Output {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.next.push_head(bytes);
    }

    pub(super) fn push_data(&mut self, data: Data) {
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

    /// Drops what is not out.
    pub(super) fn discard(&mut self, pool: &mut BufPool) {
        self.next.reset(pool);
        if let Some(rest) = self.rest.take() {
            rest.recycle(pool);
        }
    }
}

#[cfg(test)]
mod tests;
