//! Names of the objects of a pool in a bucket.
//!
//! Keys exist as text in this file alone. Numbers have a fixed width and are hexadecimal, so a list
//! by key is a list by number. The name of an object is never used again: it has the term of the
//! import that writes it, and a count that never goes back within that term
//! (`docs/decisions/0039-buckets.md`).

use std::fmt;

use crate::{FormatError, PoolId};

#[cfg(test)]
mod tests;

/// Longest name, in bytes: a pin.
pub const MAX_OBJECT_NAME: usize = 4 + 32 + 1 + 32;
/// Number of counts of segments: 48 bits.
const COUNTS: u64 = 1 << 48;

/// An import that writes to a bucket: one more than every earlier one. It is part of the name of
/// each object that the import writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term(pub u32);

impl Term {
    /// The term after this one, or `None` after 2^32 - 1 imports.
    pub fn next(self) -> Option<Term> {
        self.0.checked_add(1).map(Term)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a publication or of a probe: random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub [u8; 16]);

/// Name of an object.
///
/// | name | text | content |
/// |---|---|---|
/// | `Format` | `format` | pool id and features |
/// | `Term` | `term/TTTTTTTT` | the import that has this term |
/// | `Root` | `root/TTTTTTTT/NNNNNNNNNNNNNNNN` | an anchor |
/// | `Segment` | `seg/CC/TTTTTTTT.IIII-CCCCCCCCCCCC` | a segment; `CC` is the low byte of the count |
/// | `Ship` | `ship/TTTTTTTT.IIII/NNNNNNNNNNNNNNNN` | parts of local segments |
/// | `Beat` | `beat/TTTTTTTT` | figures of an import that had nothing to write |
/// | `Publication` | `pub/ID` | a snapshot for other pools |
/// | `Pin` | `pin/ID/POOL` | a pool that uses a publication |
/// | `Probe` | `probe/ID/NNNNNNNN` | an object of a probe, which deletes it |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectName {
    /// The pool.
    Format,
    /// An import.
    Term(Term),
    /// An anchor, by term and number.
    Root(Term, u64),
    /// A segment.
    Segment {
        /// Term of the import that wrote it.
        term: Term,
        /// Number of the import under that term.
        import: u16,
        /// Number of the object under that import; below 2^48.
        count: u64,
    },
    /// Parts of local segments.
    Ship {
        /// Term of the import that wrote it.
        term: Term,
        /// Number of the import under that term.
        import: u16,
        /// Number of the object under that import.
        number: u64,
    },
    /// Figures of an import.
    Beat(Term),
    /// A snapshot for other pools.
    Publication(ObjectId),
    /// Use of a publication by a pool.
    Pin(ObjectId, PoolId),
    /// An object of a probe.
    Probe(ObjectId, u32),
}

/// Names of one kind: the beginning that their texts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectFolder {
    /// All terms.
    Terms,
    /// Anchors of a term.
    Roots(Term),
    /// Segments whose count has this low byte.
    Segments(u8),
    /// Ships of an import.
    Ships(Term, u16),
    /// Publications.
    Publications,
    /// Pins of a publication.
    Pins(ObjectId),
    /// Objects of a probe.
    Probe(ObjectId),
}

struct Hex([u8; 16]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectName::Format => f.write_str("format"),
            ObjectName::Term(term) => write!(f, "term/{:08x}", term.0),
            ObjectName::Root(term, number) => write!(f, "root/{:08x}/{number:016x}", term.0),
            ObjectName::Segment { term, import, count } => {
                write!(f, "seg/{:02x}/{:08x}.{import:04x}-{count:012x}", count & 0xff, term.0)
            }
            ObjectName::Ship { term, import, number } => write!(f, "ship/{:08x}.{import:04x}/{number:016x}", term.0),
            ObjectName::Beat(term) => write!(f, "beat/{:08x}", term.0),
            ObjectName::Publication(id) => write!(f, "pub/{}", Hex(id.0)),
            ObjectName::Pin(id, pool) => write!(f, "pin/{}/{pool}", Hex(id.0)),
            ObjectName::Probe(id, number) => write!(f, "probe/{}/{number:08x}", Hex(id.0)),
        }
    }
}

impl fmt::Display for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectFolder::Terms => f.write_str("term/"),
            ObjectFolder::Roots(term) => write!(f, "root/{:08x}/", term.0),
            ObjectFolder::Segments(low) => write!(f, "seg/{low:02x}/"),
            ObjectFolder::Ships(term, import) => write!(f, "ship/{:08x}.{import:04x}/", term.0),
            ObjectFolder::Publications => f.write_str("pub/"),
            ObjectFolder::Pins(id) => write!(f, "pin/{}/", Hex(id.0)),
            ObjectFolder::Probe(id) => write!(f, "probe/{}/", Hex(id.0)),
        }
    }
}

impl ObjectName {
    /// The term in the name, if it has one.
    pub fn term(&self) -> Option<Term> {
        match self {
            ObjectName::Term(term)
            | ObjectName::Root(term, _)
            | ObjectName::Segment { term, .. }
            | ObjectName::Ship { term, .. }
            | ObjectName::Beat(term) => Some(*term),
            ObjectName::Format | ObjectName::Publication(_) | ObjectName::Pin(..) | ObjectName::Probe(..) => None,
        }
    }

    /// Reads a name. Only the text that [`fmt::Display`] writes is a name.
    ///
    /// # Errors
    /// [`FormatError::Field`] when the text is not a name.
    pub fn parse(text: &str) -> Result<ObjectName, FormatError> {
        let name = parsed(text).ok_or(FormatError::Field("object name"))?;
        // upper case, and a folder that is not the count's, would be second names of one object
        if name.to_string() == text { Ok(name) } else { Err(FormatError::Field("object name")) }
    }
}

fn parsed(text: &str) -> Option<ObjectName> {
    let (folder, rest) = text.split_once('/').unwrap_or((text, ""));
    Some(match folder {
        "format" => ObjectName::Format,
        "term" => ObjectName::Term(term(rest)?),
        "beat" => ObjectName::Beat(term(rest)?),
        "root" => {
            let (of, number) = rest.split_once('/')?;
            ObjectName::Root(term(of)?, hex(number)?)
        }
        "seg" => {
            let (import, count) = rest.split_once('/')?.1.split_once('-')?;
            let (term, import) = import_of(import)?;
            ObjectName::Segment { term, import, count: hex(count).filter(|count| *count < COUNTS)? }
        }
        "ship" => {
            let (import, number) = rest.split_once('/')?;
            let (term, import) = import_of(import)?;
            ObjectName::Ship { term, import, number: hex(number)? }
        }
        "pub" => ObjectName::Publication(ObjectId(bytes(rest)?)),
        "pin" => {
            let (id, pool) = rest.split_once('/')?;
            ObjectName::Pin(ObjectId(bytes(id)?), PoolId(bytes(pool)?))
        }
        "probe" => {
            let (id, number) = rest.split_once('/')?;
            ObjectName::Probe(ObjectId(bytes(id)?), u32::try_from(hex(number)?).ok()?)
        }
        _ => return None,
    })
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn term(digits: &str) -> Option<Term> {
    u32::try_from(hex(digits)?).ok().map(Term)
}

fn import_of(text: &str) -> Option<(Term, u16)> {
    let (of, import) = text.split_once('.')?;
    Some((term(of)?, u16::try_from(hex(import)?).ok()?))
}

fn bytes(digits: &str) -> Option<[u8; 16]> {
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}
