//! Names of chunks.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of an id.
pub(crate) const ID_BYTES: usize = 32;

/// SHA-256 of the content of a chunk, or zeroes for a chunk of zeroes, which is not stored. Written
/// as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId([u8; ID_BYTES]);

impl ChunkId {
    /// The chunk of zeroes.
    pub const ZERO: ChunkId = ChunkId([0; ID_BYTES]);

    /// Returns the id of a content.
    pub fn of(content: &[u8]) -> ChunkId {
        if content.iter().all(|byte| *byte == 0) {
            return ChunkId::ZERO;
        }
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(digest(&SHA256, content).as_ref());
        ChunkId(id)
    }

    /// True for the chunk of zeroes.
    pub fn is_zero(&self) -> bool {
        *self == ChunkId::ZERO
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }

    /// Returns the id with these bytes.
    pub fn from_bytes(bytes: [u8; ID_BYTES]) -> ChunkId {
        ChunkId(bytes)
    }

    /// Returns the chunk that a file of the target is named after.
    pub(crate) fn of_path(path: &str) -> Option<ChunkId> {
        path.rsplit('/').next()?.parse().ok()
    }

    /// Returns the name in the target.
    pub(crate) fn path(&self) -> String {
        let name = self.to_string();
        format!("chunks/{}/{name}", name.get(..2).unwrap_or("00"))
    }
}

/// Text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the id of a chunk, 64 hexadecimal digits")]
pub struct NoId;

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ChunkId {
    type Err = NoId;

    fn from_str(text: &str) -> Result<ChunkId, NoId> {
        let mut id = [0; ID_BYTES];
        if text.len() != 2 * ID_BYTES || !text.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit)) {
            return Err(NoId);
        }
        for (at, byte) in id.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or(NoId)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NoId)?;
        }
        Ok(ChunkId(id))
    }
}

impl Serialize for ChunkId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChunkId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChunkId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
