//! Names of bucket segments: which object each of them is, and which objects are to be deleted.
//!
//! A bucket segment is a segment whose content is one object of a bucket
//! (`docs/decisions/0043-bucket-capacity.md`). A checkpoint has pages of their names, as it has pages
//! of the chunk table, and one list of doomed names. Both are parts of the checkpoint, which has
//! their checksums.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{MAX_OBJECT_BYTES, NO_SEGMENT, ObjectName, SECTOR_BYTES, SegmentId, Term};

#[cfg(test)]
mod tests;

/// Number of consecutive segment ids in a page of names.
pub const NAMES_PER_PAGE: u32 = 128;
/// Fewest and most pages of an object: its head and one more, and the longest object.
const PAGES: (u16, u16) = (2, (MAX_OBJECT_BYTES / SECTOR_BYTES as u64) as u16);
/// Flag of a doomed name: the object may not exist, or appear later.
const IN_DOUBT: u16 = 1;
/// Flag of a doomed name in doubt: the object was deleted once.
const DELETED: u16 = 1 << 1;

/// Returns whether an object can have so many pages, with its head.
pub(crate) fn is_object_length(pages: u16) -> bool {
    (PAGES.0..=PAGES.1).contains(&pages)
}

/// Name of the object of a bucket segment: 12 bytes. No other object ever has it. The order is that
/// of terms, then imports, then counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    /// Term of the import that wrote the object.
    pub term: Term,
    /// Number of the import under that term.
    pub import: u16,
    /// Number of the object under that import; below 2^48.
    pub count: u64,
}

impl SegmentName {
    /// Bytes of an encoded name.
    pub const BYTES: usize = 12;
    /// Number of counts: 48 bits.
    pub const COUNTS: u64 = 1 << 48;

    /// Appends the name.
    ///
    /// # Panics
    /// With a count of more than 48 bits, which is an error of the caller.
    pub fn encode(&self, e: &mut Encoder) {
        assert!(self.count < SegmentName::COUNTS, "a count of more than 48 bits would be cut to that of another object");
        e.u32(self.term.0);
        e.u16(self.import);
        let [count @ .., _, _] = self.count.to_le_bytes();
        e.raw(&count);
    }

    /// Reads a name.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<SegmentName, FormatError> {
        let (term, import) = (Term(d.u32()?), d.u16()?);
        let [a, b, c, x, y, z] = d.bytes()?;
        Ok(SegmentName { term, import, count: u64::from_le_bytes([a, b, c, x, y, z, 0, 0]) })
    }
}

impl From<SegmentName> for ObjectName {
    fn from(name: SegmentName) -> ObjectName {
        ObjectName::Segment { term: name.term, import: name.import, count: name.count }
    }
}

/// The object of a bucket segment.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | segment | 4 | |
/// | name | 12 | term 4, import 2, count 6 |
/// | pages | 2 | pages of the object, with its head: 2 to 4096 |
/// | flags | 2 | 0 |
///
/// A page of names has those of [`NAMES_PER_PAGE`] consecutive segment ids that have an object, in
/// order of the ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRecord {
    /// The segment.
    pub segment: SegmentId,
    /// Name of its object.
    pub name: SegmentName,
    /// Pages of the object, with its head.
    pub pages: u16,
}

impl NameRecord {
    /// Bytes of a record.
    pub const BYTES: usize = 4 + SegmentName::BYTES + 4;

    /// Number of the page that has the record of a segment.
    pub fn page_of(segment: SegmentId) -> u32 {
        segment.0 / NAMES_PER_PAGE
    }

    /// Encodes a page: records of the segments of one page, in order.
    pub fn encode_page<'a>(records: impl IntoIterator<Item = &'a NameRecord>) -> Vec<u8> {
        let mut e = Encoder::default();
        for record in records {
            e.u32(record.segment.0);
            record.name.encode(&mut e);
            e.u16(record.pages);
            e.u16(0);
        }
        e.into_bytes()
    }

    /// Decodes a page: records until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off within a record, a number is out of range, or a segment is
    /// out of order or of another page than the first one.
    pub fn decode_page(bytes: &[u8]) -> Result<Vec<NameRecord>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut page: Vec<NameRecord> = Vec::with_capacity((bytes.len() / NameRecord::BYTES).min(NAMES_PER_PAGE as usize));
        while d.remaining() > 0 {
            let (segment, name, pages) = (SegmentId(d.u32()?), SegmentName::decode(&mut d)?, d.u16()?);
            let follows = |last: &NameRecord| last.segment < segment && NameRecord::page_of(last.segment) == NameRecord::page_of(segment);
            if segment == NO_SEGMENT || !page.last().is_none_or(follows) {
                return Err(FormatError::Field("segment"));
            }
            if !is_object_length(pages) {
                return Err(FormatError::Field("pages"));
            }
            if d.u16()? != 0 {
                return Err(FormatError::Field("flags"));
            }
            page.push(NameRecord { segment, name, pages });
        }
        Ok(page)
    }
}

/// State of an object that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doomed {
    /// It exists until it is deleted.
    There {
        /// Pages of the object, with its head.
        pages: u16,
    },
    /// An import ended before it knew whether it had written the object, so the object may not exist,
    /// or may appear later. It is deleted twice.
    InDoubt {
        /// True after the first time.
        deleted: bool,
    },
}

/// Name of an object that is to be deleted.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | name | 12 | term 4, import 2, count 6 |
/// | pages | 2 | pages of the object; 0 when it is in doubt |
/// | flags | 2 | bit 0: in doubt; bit 1: in doubt, and deleted once |
/// | generation | 8 | of the first root that lists the name |
///
/// The list is in order of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoomedName {
    /// Name of the object.
    pub name: SegmentName,
    /// State of the object.
    pub object: Doomed,
    /// Generation of the first root that lists the name.
    pub generation: u64,
}

impl DoomedName {
    /// Bytes of a name in the list.
    pub const BYTES: usize = SegmentName::BYTES + 12;

    /// Encodes a list, whose names are in order.
    pub fn encode_list<'a>(names: impl IntoIterator<Item = &'a DoomedName>) -> Vec<u8> {
        let mut e = Encoder::default();
        for doomed in names {
            let (pages, flags) = match doomed.object {
                Doomed::There { pages } => (pages, 0),
                Doomed::InDoubt { deleted } => (0, IN_DOUBT | if deleted { DELETED } else { 0 }),
            };
            doomed.name.encode(&mut e);
            e.u16(pages);
            e.u16(flags);
            e.u64(doomed.generation);
        }
        e.into_bytes()
    }

    /// Decodes a list: names until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off within a name, a number is out of range, or names are out of
    /// order.
    pub fn decode_list(bytes: &[u8]) -> Result<Vec<DoomedName>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut list: Vec<DoomedName> = Vec::with_capacity(bytes.len() / DoomedName::BYTES);
        while d.remaining() > 0 {
            let (name, pages, flags) = (SegmentName::decode(&mut d)?, d.u16()?, d.u16()?);
            let object = match (flags, pages) {
                (0, pages) if is_object_length(pages) => Doomed::There { pages },
                (IN_DOUBT, 0) => Doomed::InDoubt { deleted: false },
                (flags, 0) if flags == IN_DOUBT | DELETED => Doomed::InDoubt { deleted: true },
                (0 | IN_DOUBT, _) => return Err(FormatError::Field("pages")),
                (flags, _) if flags == IN_DOUBT | DELETED => return Err(FormatError::Field("pages")),
                _ => return Err(FormatError::Field("flags")),
            };
            if list.last().is_some_and(|last| last.name >= name) {
                return Err(FormatError::Field("name"));
            }
            list.push(DoomedName { name, object, generation: d.counter("generation")? });
        }
        Ok(list)
    }
}
