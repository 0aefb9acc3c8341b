//! A disk in memory that answers in a chosen order.

use millpond_block::{
    Answer, Buf, BufSlice, ByteRange, Completion, Disk, DiskError, Features, Geometry, IoSlices, Op, Payload, Query, Request, Run,
    SectorProfile, Since, Tag,
};

/// Order in which requests are answered. They take effect in the order of submission in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of submission.
    InOrder,
    /// The latest request first.
    Reversed,
    /// In a random order that depends on the seed, which must not be 0.
    Shuffled(u64),
}

impl Order {
    fn choose(&mut self, count: usize) -> Option<usize> {
        let last = count.checked_sub(1)?;
        Some(match self {
            Order::InOrder => 0,
            Order::Reversed => last,
            Order::Shuffled(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                (*state % count as u64) as usize
            }
        })
    }
}

/// Granularity of the map, in bytes.
const BLOCK: usize = 4096;

/// A disk in memory.
pub struct MemoryDisk {
    bytes: Vec<u8>,
    geometry: Geometry,
    features: Features,
    order: Order,
    /// Maximum length in bytes of a piece of a read's data. A piece of zeroes is marked as such.
    piece: usize,
    /// True if requests need not be aligned to sectors.
    by_bytes: bool,
    /// Error with which the next requests are answered, instead of being served.
    failing: Option<DiskError>,
    done: Vec<Completion>,
    answers: Vec<Answer>,
    saved: Vec<Vec<u8>>,
    /// Every request submitted, with true if its payload was handed over as a buffer.
    pub log: Vec<(Request, bool)>,
    /// Ranges of each prefetch hint.
    pub expected: Vec<Vec<ByteRange>>,
    /// Bytes of memory left for requests; `None`: unlimited.
    pub room: Option<u64>,
}

impl MemoryDisk {
    /// Makes a disk of `size` bytes of zeroes.
    pub fn new(size: usize, sector: SectorProfile) -> MemoryDisk {
        MemoryDisk {
            bytes: vec![0; size],
            geometry: Geometry { size: size as u64, sector },
            features: Features { read_only: false, write_cache: true },
            order: Order::InOrder,
            piece: usize::MAX,
            by_bytes: false,
            failing: None,
            done: Vec::new(),
            answers: Vec::new(),
            saved: Vec::new(),
            log: Vec::new(),
            expected: Vec::new(),
            room: None,
        }
    }

    /// Returns the disk with answers in `order`.
    pub fn with_order(mut self, order: Order) -> MemoryDisk {
        self.order = order;
        self
    }

    /// Returns the disk with read data in pieces of `piece` bytes.
    pub fn with_pieces(mut self, piece: usize) -> MemoryDisk {
        self.piece = piece;
        self
    }

    /// Returns the disk with requests of any alignment, as for a file.
    pub fn with_bytes(mut self) -> MemoryDisk {
        self.by_bytes = true;
        self
    }

    /// Returns the disk with `bytes` as its content, which must have the disk's size.
    pub fn with_content(mut self, bytes: Vec<u8>) -> MemoryDisk {
        assert_eq!(bytes.len() as u64, self.geometry.size);
        self.bytes = bytes;
        self
    }

    /// Returns the disk with writes refused or allowed.
    pub fn with_read_only(mut self, read_only: bool) -> MemoryDisk {
        self.features.read_only = read_only;
        self
    }

    /// Answers later requests with this error; `None` serves them again.
    pub fn fail(&mut self, error: Option<DiskError>) {
        self.failing = error;
    }

    /// Saves the present content, so that queries can compare with it.
    pub fn save(&mut self) -> Since {
        self.saved.push(self.bytes.clone());
        Since(self.saved.len() as u64 - 1)
    }

    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the next answer to a request.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        let at = self.order.choose(self.done.len())?;
        Some(self.done.remove(at))
    }

    /// Takes the next answer to a query.
    pub fn pop_answer(&mut self) -> Option<Answer> {
        let at = self.order.choose(self.answers.len())?;
        Some(self.answers.remove(at))
    }

    /// Returns runs of blocks that are not zeroes, or differ from the saved content.
    fn runs(&self, query: &Query) -> Vec<Run> {
        let nothing = vec![0; self.bytes.len()];
        let old = query.since.map_or(&nothing, |since| self.saved.get(since.0 as usize).expect("a state that was saved"));
        let mut runs: Vec<Run> = Vec::new();
        let mut at = query.range.offset as usize;
        let end = at + query.range.length as usize;
        while at < end {
            let block = at / BLOCK * BLOCK..(at / BLOCK + 1) * BLOCK;
            let (stop, set) = (block.end.min(end), self.bytes[block.clone()] != old[block]);
            let length = (stop - at) as u64;
            let full = runs.len() == query.most;
            match runs.last_mut() {
                Some(last) if last.set == set => last.length += length,
                _ if full => break,
                _ => runs.push(Run { length, set }),
            }
            at = stop;
        }
        runs
    }

    fn serve(&mut self, request: Request, payload: &[u8]) -> Result<IoSlices, DiskError> {
        let range = request.range.offset as usize..(request.range.offset + request.range.length) as usize;
        match request.op {
            Op::Read => return Ok(pieces(&self.bytes[range], self.piece)),
            Op::Write => self.bytes[range].copy_from_slice(payload),
            Op::Discard | Op::WriteZeroes { .. } => self.bytes[range].fill(0),
            Op::Flush | Op::Cache => {}
        }
        Ok(IoSlices::new())
    }
}

fn pieces(bytes: &[u8], most: usize) -> IoSlices {
    bytes
        .chunks(most.min(bytes.len().max(1)))
        .map(|chunk| {
            let mut buf = Buf::zeroed(chunk.len());
            buf.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
            let make = if chunk.iter().all(|byte| *byte == 0) { BufSlice::zeroes } else { BufSlice::new };
            make(buf, 0..chunk.len())
        })
        .collect()
}

impl MemoryDisk {
    /// Reserves memory for a request; returns false if there is not enough.
    pub fn take_room(&mut self, bytes: u64) -> bool {
        let Some(room) = &mut self.room else { return true };
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(*room);
        left.is_some()
    }
}

impl Disk for MemoryDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn features(&self) -> Features {
        self.features
    }

    fn expect(&mut self, reads: &[ByteRange]) {
        self.expected.push(reads.to_vec());
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        self.take_room(bytes)
    }

    /// # Panics
    /// When the session lets an invalid request through, or the payload has the wrong length.
    fn submit(&mut self, tag: Tag, request: Request, payload: Payload<'_>) {
        let checked = match self.by_bytes {
            true => request.validate_bytes(&self.geometry, &self.features),
            false => request.validate(&self.geometry, &self.features),
        };
        assert_eq!(checked, Ok(()), "{request:?} was let through");
        let length = request.range.length as usize;
        self.log.push((request, matches!(payload, Payload::Owned(_))));
        let result = match (self.failing, payload) {
            (Some(error), _) => Err(error),
            (None, Payload::None) => {
                assert_ne!(request.op, Op::Write, "a write without payload");
                self.serve(request, &[])
            }
            (None, Payload::Copy(bytes)) => self.serve(request, bytes),
            (None, Payload::Owned(buf)) => self.serve(request, &buf.bytes()[..length]),
        };
        self.done.push(Completion { tag, result });
    }

    fn query(&mut self, tag: Tag, query: Query) {
        assert_eq!(query.validate(&self.geometry), Ok(()), "{query:?} was let through");
        let result = self.failing.map_or_else(|| Ok(self.runs(&query)), Err);
        self.answers.push(Answer { tag, result });
    }
}
