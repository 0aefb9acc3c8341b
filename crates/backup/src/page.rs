//! Lists of ids: a page has 4096 chunks of a volume, the root of a backup its pages. Both are stored as
//! chunks, so backups share the pages in which nothing changed.

use crate::id::ID_BYTES;
use crate::{BackupError, ChunkId, Purpose};

/// Chunks in a page.
pub const SLOTS: usize = 4096;

/// Returns the stored content of a list; a list of zeroes only is the chunk of zeroes.
pub fn encode(ids: &[ChunkId]) -> Vec<u8> {
    ids.iter().flat_map(|id| *id.bytes()).collect()
}

/// Reads a list of `count` ids.
///
/// # Errors
/// It has another length.
pub fn decode(of: Purpose, content: &[u8], count: usize, name: &str) -> Result<Vec<ChunkId>, BackupError> {
    if content.len() != count * ID_BYTES {
        return Err(BackupError::Damaged { of, name: name.to_owned(), why: "it is no list of chunks of this length".to_owned() });
    }
    Ok(content
        .chunks_exact(ID_BYTES)
        .map(|bytes| {
            let mut id = [0; ID_BYTES];
            id.copy_from_slice(bytes);
            ChunkId::from_bytes(id)
        })
        .collect())
}
