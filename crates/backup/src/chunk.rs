//! Stored form of a chunk: a head of 8 bytes, and the content, compressed where that saves space.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `MPCK` |
//! | 4 | version, 1 |
//! | 5 | 0: as it is, 1: zstd |
//! | 6..8 | 0 |

use crate::{BackupError, ChunkId, Purpose};

const MAGIC: [u8; 4] = *b"MPCK";
const HEAD: usize = 8;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
/// Fastest level that compresses well; the target is slower than it.
const LEVEL: i32 = 3;

/// Returns the stored form.
pub fn encode(content: &[u8]) -> Vec<u8> {
    let packed = zstd::bulk::compress(content, LEVEL).ok().filter(|packed| packed.len() < content.len() / 16 * 15);
    let (codec, body) = packed.as_deref().map_or((PLAIN, content), |packed| (ZSTD, packed));
    let mut stored = Vec::with_capacity(HEAD + body.len());
    stored.extend_from_slice(&MAGIC);
    stored.extend_from_slice(&[1, codec, 0, 0]);
    stored.extend_from_slice(body);
    stored
}

/// Returns the content of a stored form of such a target, which must have the hash of its name.
///
/// # Errors
/// [`BackupError::Damaged`].
pub fn decode(of: Purpose, id: ChunkId, stored: &[u8]) -> Result<Vec<u8>, BackupError> {
    let wrong = |why: &str| BackupError::Damaged { of, name: id.path(), why: why.to_owned() };
    let (head, body) = stored.split_at_checked(HEAD).ok_or_else(|| wrong("it is cut"))?;
    if head.get(..4) != Some(&MAGIC) {
        return Err(wrong("it is no chunk"));
    }
    let content = match (head.get(4), head.get(5)) {
        (Some(1), Some(&PLAIN)) => body.to_vec(),
        // a hostile one cannot take more memory than a chunk has
        (Some(1), Some(&ZSTD)) => zstd::bulk::decompress(body, of.chunk_len()).map_err(|_| wrong("it cannot be decompressed"))?,
        (Some(1), _) => return Err(wrong("it has an unknown codec")),
        _ => return Err(wrong("it is of a newer version")),
    };
    if content.len() > of.chunk_len() || ChunkId::of(&content) != id {
        return Err(wrong("its content does not have the hash of its name"));
    }
    Ok(content)
}
