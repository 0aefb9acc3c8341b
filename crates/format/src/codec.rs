//! Little-endian encoding into a byte vector and bounded decoding from a slice.

use crate::{ChunkId, Unknown};

/// Reason why bytes could not be decoded. Display is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end too early.
    #[error("truncated")]
    Truncated,
    /// Another structure, or none: the magic number differs.
    #[error("not a Millpond structure")]
    Magic,
    /// A format version that this program does not know.
    #[error("format version {0} is not this program's")]
    Version(u16),
    /// Bits of features that this program lacks and would have to know.
    #[error("needs {0}")]
    Incompatible(Unknown),
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The value of the named field is out of range.
    #[error("field '{0}' is out of range")]
    Field(&'static str),
}

/// Appends little-endian values.
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty encoder with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Encoder {
        Encoder { bytes: Vec::with_capacity(bytes) }
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, v: u16) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, v: u32) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }

    /// Appends four bytes for each value, without a count.
    pub fn u32s(&mut self, values: impl ExactSizeIterator<Item = u32>) {
        let from = self.bytes.len();
        self.bytes.resize(from + 4 * values.len(), 0);
        self.bytes[from..].chunks_exact_mut(4).zip(values).for_each(|(to, v)| to.copy_from_slice(&v.to_le_bytes()));
    }

    /// Appends eight bytes for each value, without a count.
    pub fn u64s(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        let from = self.bytes.len();
        self.bytes.resize(from + 8 * values.len(), 0);
        self.bytes[from..].chunks_exact_mut(8).zip(values).for_each(|(to, v)| to.copy_from_slice(&v.to_le_bytes()));
    }

    /// Appends raw bytes.
    pub fn raw(&mut self, v: &[u8]) {
        self.bytes.extend_from_slice(v);
    }

    /// Appends a length of 2 bytes and a string; one of more than 65,535 bytes is cut at a
    /// character boundary.
    pub fn string(&mut self, v: &str) {
        let mut end = v.len().min(usize::from(u16::MAX));
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(u16::try_from(end).unwrap_or(u16::MAX));
        self.raw(v.get(..end).unwrap_or_default().as_bytes());
    }

    /// Appends a 4-byte count of the items that follow; no structure has 2^32 items or more.
    ///
    /// # Panics
    /// When the count does not fit into 32 bits, which is an error of the caller.
    pub fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).expect("counts fit in 32 bits"));
    }

    /// Bytes encoded so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True when nothing was encoded yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the encoded bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Removes the content and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Reads little-endian values, never beyond the end of its input.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Reads from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes }
    }

    /// Reads the next `n` bytes.
    pub fn raw(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(FormatError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(FormatError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        self.array::<1>().map(|[b]| b)
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads an array of bytes.
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        self.array()
    }

    /// Reads a string with its length of 2 bytes.
    pub fn string(&mut self) -> Result<String, FormatError> {
        let n = usize::from(self.u16()?);
        let raw = self.raw(n)?;
        String::from_utf8(raw.to_vec()).map_err(|_| FormatError::Field("string"))
    }

    /// Reads a count of items that have at least `least` bytes each. Refuses a count that the
    /// remaining input cannot hold, so a length on disk never makes a decoder allocate more memory
    /// than the size of the input justifies.
    pub fn count(&mut self, least: usize) -> Result<usize, FormatError> {
        let n = self.u32()? as usize;
        if n.checked_mul(least.max(1)).is_none_or(|need| need > self.rest.len()) {
            return Err(FormatError::Truncated);
        }
        Ok(n)
    }

    /// Reads a number that only grows by small steps (generations, epochs, positions, clocks).
    /// Values from 2^62 on are refused: no medium lives long enough to reach them, and additions to
    /// smaller values cannot overflow.
    pub fn counter(&mut self, name: &'static str) -> Result<u64, FormatError> {
        self.u64().and_then(|n| if n < 1 << 62 { Ok(n) } else { Err(FormatError::Field(name)) })
    }

    /// Reads a chunk id. Refuses ids of more than 40 bits, because an address would cut them to the
    /// id of another chunk.
    pub fn chunk(&mut self) -> Result<ChunkId, FormatError> {
        self.u64().and_then(|n| if n < 1 << 40 { Ok(ChunkId(n)) } else { Err(FormatError::Field("chunk")) })
    }

    /// Refuses input that is not read completely: bytes after the structure would be lost when it
    /// is written again.
    pub fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FormatError::Field("length")) }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
}
