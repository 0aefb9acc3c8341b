//! The protocol between the daemon and a process that reads chunks of publications for it: requests on
//! standard input, answers in any order on standard output.
//!
//! | bytes of a request | |
//! |---|---|
//! | 0..8 | number of the request |
//! | 8..16 | number of the chunk |
//! | 16..24 | size of the volume in bytes |
//! | 24..56 | root of the publication |
//!
//! | bytes of an answer | |
//! |---|---|
//! | 0..8 | number of the request |
//! | 8..12 | kind: 0 zero, 1 data, 2 missing, 3 damaged, 4 to be asked again |
//! | 12..16 | length of the rest |
//! | 16.. | the data, or the reason as text |
//!
//! Numbers are little-endian.

/// Most bytes of the rest of an answer: those of the largest chunk.
pub const MOST: usize = 4 << 20;

/// A request for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRequest {
    /// Number of the request.
    pub id: u64,
    /// Number of the chunk in its volume.
    pub chunk: u64,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Root of the publication.
    pub root: [u8; 32],
}

impl ChunkRequest {
    /// Length in bytes.
    pub const BYTES: usize = 56;

    /// Returns the bytes.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.id, self.chunk, self.size].map(u64::to_le_bytes);
        [numbers.concat(), self.root.to_vec()].concat()
    }

    /// Reads a request.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> ChunkRequest {
        let mut root = [0; 32];
        root.iter_mut().zip(bytes.iter().skip(24)).for_each(|(to, from)| *to = *from);
        ChunkRequest { id: number(bytes, 0), chunk: number(bytes, 8), size: number(bytes, 16), root }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkAnswer {
    /// The chunk is all zero.
    Zero,
    /// Its content.
    Data(Vec<u8>),
    /// The target does not have it.
    Missing,
    /// It is not as it was written: the reason.
    Damaged(String),
    /// The target does not answer, and is to be asked again: the reason.
    Again(String),
}

/// The beginning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// Number of the request.
    pub id: u64,
    kind: u32,
    /// Length in bytes of what follows, at most [`MOST`].
    pub rest: usize,
}

impl AnswerHead {
    /// Length in bytes.
    pub const BYTES: usize = 16;

    /// Reads it; `None` if no answer begins so.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<AnswerHead> {
        let second = number(bytes, 8);
        let kind = u32::try_from(second & u64::from(u32::MAX)).ok()?;
        let rest = usize::try_from(second >> 32).ok()?;
        (kind <= 4 && rest <= MOST).then_some(AnswerHead { id: number(bytes, 0), kind, rest })
    }

    /// Returns the answer with this rest.
    pub fn answer(&self, rest: Vec<u8>) -> ChunkAnswer {
        let text = |rest: Vec<u8>| String::from_utf8_lossy(&rest).into_owned();
        match self.kind {
            0 => ChunkAnswer::Zero,
            1 => ChunkAnswer::Data(rest),
            2 => ChunkAnswer::Missing,
            3 => ChunkAnswer::Damaged(text(rest)),
            _ => ChunkAnswer::Again(text(rest)),
        }
    }
}

impl ChunkAnswer {
    /// Returns the bytes of the answer to the request of this number. What is longer than [`MOST`] is damage.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let (kind, rest): (u32, &[u8]) = match self {
            ChunkAnswer::Zero => (0, &[]),
            ChunkAnswer::Data(data) => (1, data),
            ChunkAnswer::Missing => (2, &[]),
            ChunkAnswer::Damaged(why) => (3, why.as_bytes()),
            ChunkAnswer::Again(why) => (4, why.as_bytes()),
        };
        let (kind, rest) = if rest.len() > MOST { (3, &[][..]) } else { (kind, rest) };
        let length = u32::try_from(rest.len()).unwrap_or(0);
        [&id.to_le_bytes()[..], &kind.to_le_bytes(), &length.to_le_bytes(), rest].concat()
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied();
    u64::from_le_bytes(eight.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let request = ChunkRequest { id: 7, chunk: 1 << 40, size: u64::MAX, root: std::array::from_fn(|at| at as u8) };
        assert_eq!(ChunkRequest::decode(request.encode().as_slice().try_into().expect("its length")), request);
        for answer in [
            ChunkAnswer::Zero,
            ChunkAnswer::Data(vec![3; 70_000]),
            ChunkAnswer::Missing,
            ChunkAnswer::Damaged("rot".to_owned()),
            ChunkAnswer::Again("away".to_owned()),
        ] {
            let bytes = answer.encode(9);
            let (head, rest) = bytes.split_first_chunk::<{ AnswerHead::BYTES }>().expect("a head");
            let head = AnswerHead::decode(head).expect("a head");
            assert_eq!((head.id, head.rest, head.answer(rest.to_vec())), (9, rest.len(), answer));
        }
    }

    #[test]
    fn no_answer_is_longer_than_a_chunk() {
        let mut head = [0; AnswerHead::BYTES];
        head[8] = 1;
        head[12..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(AnswerHead::decode(&head), None);
        head[8] = 5;
        head[12..].fill(0);
        assert_eq!(AnswerHead::decode(&head), None);
        let answer = ChunkAnswer::Data(vec![0; MOST + 1]);
        assert_eq!(answer.encode(1).len(), AnswerHead::BYTES);
    }
}
