//! Encoding of replies in the negotiated style.

use millpond_block::{BufSlice, IoSlices, Run};

use super::context::Context;
use super::output::Output;
use super::wire::{self, ANNOUNCED_MAX_PAYLOAD, CHUNK_DONE, Errno, Style, chunk};

/// Maximum number of data bytes in one chunk: the announced maximum payload.
const MAX_CHUNK: usize = ANNOUNCED_MAX_PAYLOAD as usize;

/// Fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestKey {
    pub(super) cookie: u64,
    pub(super) offset: u64,
}

impl Style {
    /// Reports success without data.
    pub(super) fn success(self, output: &mut Output, asked: RequestKey) {
        match self {
            Style::Simple | Style::Structured => output.push(&wire::simple_reply(None, asked.cookie)),
            Style::Extended => self.chunk(output, asked, true, chunk::NONE, 0),
        }
    }

    /// Reports an error; `why` is for people.
    pub(super) fn error(self, output: &mut Output, asked: RequestKey, error: Errno, why: &str) {
        if self == Style::Simple {
            return output.push(&wire::simple_reply(Some(error), asked.cookie));
        }
        self.chunk(output, asked, true, chunk::ERROR, 6 + why.len());
        output.push(&(error as u32).to_be_bytes());
        output.push(&(why.len() as u16).to_be_bytes());
        output.push(why.as_bytes());
    }

    /// Sends the data of a read. Adjacent pieces share a chunk. Pieces of zeroes are sent as holes,
    /// unless `whole` requires a single chunk.
    pub(super) fn data(self, output: &mut Output, asked: RequestKey, data: IoSlices, whole: bool) {
        if self == Style::Simple {
            output.push(&wire::simple_reply(None, asked.cookie));
            return output.push_data(data);
        }
        if let [only] = data.as_slice()
            && !only.is_zeroes()
            && (1..=MAX_CHUNK).contains(&only.len())
        {
            self.content(output, asked, true, asked.offset, only.len());
            return output.push_data(data);
        }
        self.chunks(output, asked, data, whole);
    }

    fn chunks(self, output: &mut Output, asked: RequestKey, data: IoSlices, whole: bool) {
        let mut left: usize = data.iter().map(BufSlice::len).sum();
        if left == 0 {
            return self.chunk(output, asked, true, chunk::NONE, 0);
        }
        let one = whole && data.iter().any(|piece| !piece.is_zeroes());
        let mut at = asked.offset;
        let mut pieces = data.into_iter().filter(|piece| !piece.is_empty());
        let mut next = pieces.next();
        while let Some(first) = next.take() {
            let hole = first.is_zeroes() && !one;
            let (mut length, mut run) = (0, IoSlices::new());
            let mut piece = Some(first);
            while let Some(found) = piece.take() {
                let room = MAX_CHUNK - length;
                if (found.is_zeroes() && !one) != hole || room == 0 {
                    next = Some(found);
                    break;
                }
                let taken = found.len().min(room);
                length += taken;
                if taken < found.len() {
                    next = Some(found.slice(taken..found.len()));
                    run.push(found.slice(0..taken));
                    break;
                }
                run.push(found);
                piece = pieces.next();
            }
            left -= length;
            if hole {
                self.chunk(output, asked, left == 0, chunk::OFFSET_HOLE, 12);
                output.push(&at.to_be_bytes());
                output.push(&(length as u32).to_be_bytes());
            } else {
                self.content(output, asked, left == 0, at, length);
                output.push_data(run);
            }
            at += length as u64;
        }
    }

    /// Sends the extents of one context. They begin at the request's offset.
    pub(super) fn status(self, output: &mut Output, asked: RequestKey, done: bool, context: Context, runs: &[Run]) {
        if self == Style::Extended {
            self.chunk(output, asked, done, chunk::BLOCK_STATUS_EXT, 8 + 16 * runs.len());
            output.push(&context.id.to_be_bytes());
            output.push(&(runs.len() as u32).to_be_bytes());
            for run in runs {
                output.push(&run.length.to_be_bytes());
                output.push(&u64::from(context.flags(run.set)).to_be_bytes());
            }
            return;
        }
        self.chunk(output, asked, done, chunk::BLOCK_STATUS, 4 + 8 * runs.len());
        output.push(&context.id.to_be_bytes());
        for run in runs {
            // a run is not longer than the requested range, which has 32 bits
            output.push(&(run.length as u32).to_be_bytes());
            output.push(&context.flags(run.set).to_be_bytes());
        }
    }

    fn content(self, output: &mut Output, asked: RequestKey, done: bool, at: u64, length: usize) {
        self.chunk(output, asked, done, chunk::OFFSET_DATA, 8 + length);
        output.push(&at.to_be_bytes());
    }

    /// Sends the header of a chunk. Payloads have at most [`MAX_CHUNK`] bytes and a few bytes of
    /// fields.
    fn chunk(self, output: &mut Output, asked: RequestKey, done: bool, kind: u16, length: usize) {
        let flags = if done { CHUNK_DONE } else { 0 };
        match self {
            Style::Extended => output.push(&wire::extended_reply(flags, kind, asked.cookie, asked.offset, length as u64)),
            Style::Simple | Style::Structured => output.push(&wire::structured_reply(flags, kind, asked.cookie, length as u32)),
        }
    }
}

#[cfg(test)]
mod tests;
