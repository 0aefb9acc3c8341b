//! The functions that fuzzers run; tests call them too, so each test run replays the corpus.

use super::sample::batch;
use crate::{
    Addr, BatchHeader, CacheHead, CacheSegment, Checkpoint, ChunkRecord, Claim, DeadDirectory, DeadGroup, DeadRecord, DoomedName, Encoder,
    FormatError, Label, NODE_BYTES, NameRecord, Node, ObjectHead, ObjectRef, Root, SnapshotRecord, crc32c,
};

/// A structure with a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Label`].
    Label,
    /// [`Root`].
    Root,
    /// [`BatchHeader`] with its items and their records.
    Batch,
    /// [`Node`].
    Node,
    /// [`Checkpoint`].
    Checkpoint,
    /// A page of [`ChunkRecord`]s.
    ChunkPage,
    /// [`DeadRecord`]s.
    Deadlist,
    /// References to an object's parts.
    ObjectIndex,
    /// A page of snapshots of the catalog.
    SnapshotPage,
    /// [`CacheHead`].
    CacheHead,
    /// [`CacheSegment`].
    CacheSegment,
    /// [`Claim`].
    Claim,
    /// [`DeadDirectory`].
    DeadDirectory,
    /// A piece of a deadlist.
    DeadPiece,
    /// [`ObjectHead`].
    ObjectHead,
    /// [`KeyPage`](crate::KeyPage).
    KeyPage,
    /// A page of [`NameRecord`]s.
    NamePage,
    /// [`DoomedName`]s.
    DoomedList,
}

impl Kind {
    /// All kinds, in the order of the first byte of a fuzz input.
    pub const ALL: [Kind; 18] = [
        Kind::Label,
        Kind::Root,
        Kind::Batch,
        Kind::Node,
        Kind::Checkpoint,
        Kind::ChunkPage,
        Kind::Deadlist,
        Kind::ObjectIndex,
        Kind::SnapshotPage,
        Kind::CacheHead,
        Kind::CacheSegment,
        Kind::Claim,
        Kind::DeadDirectory,
        Kind::DeadPiece,
        Kind::ObjectHead,
        Kind::KeyPage,
        Kind::NamePage,
        Kind::DoomedList,
    ];

    /// True for structures that include their checksum; for the others, the referring structure has
    /// it.
    pub fn holds_checksum(self) -> bool {
        matches!(
            self,
            Kind::Label | Kind::Root | Kind::Batch | Kind::CacheHead | Kind::CacheSegment | Kind::Claim | Kind::ObjectHead | Kind::KeyPage
        )
    }
}

/// Decodes a structure, encodes it again, and decodes the result.
///
/// # Errors
/// The parser's error.
///
/// # Panics
/// When the second decoding gives another value, or the encoding is longer than the input.
pub fn check(kind: Kind, bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let again = encoded_again(kind, bytes)?;
    assert!(again.len() <= bytes.len(), "{kind:?}: {} bytes hold more than fits into them", bytes.len());
    assert_eq!(encoded_again(kind, &again).as_ref(), Ok(&again), "{kind:?} does not read what it writes");
    Ok(again)
}

/// Encodes a decoded structure. Encodings are unique: equal bytes are equal values.
fn encoded_again(kind: Kind, bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut e = Encoder::default();
    match kind {
        Kind::Label => return Label::decode(bytes).map(|label| label.encode().to_vec()),
        Kind::Root => return Root::decode(bytes).map(|root| root.encode().to_vec()),
        Kind::Batch => return BatchHeader::decode(bytes).map(|(header, items)| batch(&header, &items)),
        Kind::CacheHead => return CacheHead::decode(bytes).map(|head| head.encode().to_vec()),
        Kind::CacheSegment => return CacheSegment::decode(bytes).map(|segment| segment.encode().to_vec()),
        Kind::Claim => return Claim::decode(bytes).map(|claim| claim.encode().to_vec()),
        Kind::ObjectHead => return ObjectHead::decode(bytes).map(|head| head.encode().to_vec()),
        Kind::KeyPage => return crate::KeyPage::decode(bytes).map(|page| page.encode().to_vec()),
        Kind::Node => {
            let mut out = vec![0; NODE_BYTES];
            let node = Node::decode(bytes)?;
            node.encode(Addr::from_memory(Node::address(bytes).unwrap_or(0)), &mut out);
            return Ok(out);
        }
        Kind::Checkpoint => return Checkpoint::decode(bytes).map(|checkpoint| checkpoint.encode()),
        Kind::ChunkPage => ChunkRecord::decode_page(bytes)?.iter().for_each(|chunk| chunk.encode(&mut e)),
        Kind::Deadlist => DeadRecord::decode_list(bytes)?.iter().for_each(|record| record.encode(&mut e)),
        Kind::DeadDirectory => return DeadDirectory::decode(bytes).map(|list| list.encode()),
        Kind::DeadPiece => {
            // a list of an older version is a piece, too, but is never written
            DeadGroup::all(bytes)?;
            return DeadRecord::decode_piece(bytes).map(|records| DeadRecord::encode_piece(&records));
        }
        Kind::NamePage => return NameRecord::decode_page(bytes).map(|page| NameRecord::encode_page(&page)),
        Kind::DoomedList => return DoomedName::decode_list(bytes).map(|list| DoomedName::encode_list(&list)),
        Kind::SnapshotPage => return SnapshotRecord::decode_page(bytes).map(|page| SnapshotRecord::encode_page(page.iter())),
        Kind::ObjectIndex => ObjectRef::decode_index(bytes)?.iter().for_each(|part| part.encode(&mut e)),
    }
    Ok(e.into_bytes())
}

/// Updates the checksum inside a structure, if it has one.
pub fn put_checksum_right(kind: Kind, bytes: &mut [u8]) {
    let (covered, at) = match kind {
        Kind::Label | Kind::Root | Kind::CacheHead | Kind::CacheSegment | Kind::Claim | Kind::ObjectHead | Kind::KeyPage => (4092, 4092),
        Kind::Node => (NODE_BYTES - 4, NODE_BYTES - 4),
        Kind::Batch => (BatchHeader::peek_pages(bytes).unwrap_or(1) * 4096, 92),
        _ => return,
    };
    let in_place = kind == Kind::Batch;
    if let (true, Some(sum)) = (in_place, bytes.get_mut(at..at + 4)) {
        sum.fill(0);
    }
    let Some(crc) = bytes.get(..covered).map(crc32c) else { return };
    if let Some(sum) = bytes.get_mut(at..at + 4) {
        sum.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checks a structure from arbitrary bytes. The low bits of the first byte choose the kind, bit 7
/// updates the checksum; the rest is the structure.
pub fn fuzz_structure(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let Some(kind) = Kind::ALL.get(usize::from(choice & 0x7f) % Kind::ALL.len()).copied() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 0x80 != 0 {
        put_checksum_right(kind, &mut bytes);
    }
    drop(check(kind, &bytes));
}

#[cfg(test)]
mod tests;
