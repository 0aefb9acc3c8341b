//! The first 4 KiB of every object in a bucket.
//!
//! The head says what the object is and which import wrote it, so an object under a wrong name, of
//! another pool, or cut off is recognised. It also settles a create whose answer was lost: an object
//! with one's own session is one's own.

use crate::claim::Holder;
use crate::codec::{Encoder, FormatError};
use crate::label::{SECTOR_BYTES, open, seal};
use crate::object_name::MAX_OBJECT_NAME;
use crate::{ObjectName, PoolId, Term, crc32c};

#[cfg(test)]
mod tests;

/// Bytes of a head.
pub const OBJECT_HEAD_BYTES: usize = SECTOR_BYTES;
/// Longest object, in bytes: a segment of 16 MiB. An object is one request, never a multipart upload.
pub const MAX_OBJECT_BYTES: u64 = 16 << 20;

const MAGIC: &[u8; 8] = b"MPONDOBJ";
const VERSION: u16 = 1;
/// Longest host name, in bytes, as in a claim.
const HOST_NAME_MAX: usize = 255;

/// Head of an object.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDOBJ` |
/// | version | 2 | 1 |
/// | pool id | 16 | |
/// | term | 4 | of the import that wrote the object |
/// | host | 16 | identity of its host |
/// | session | 16 | random, new with every import |
/// | length | 8 | bytes of the whole object: 4 KiB to 16 MiB |
/// | payload checksum | 4 | CRC-32C of the bytes after the head |
/// | name | 2 + n | the object's own name |
/// | host name | 2 + n | at most 255 bytes |
/// | checksum | 4 | CRC-32C of the head before it; the last 4 bytes of the 4096 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHead {
    /// The pool.
    pub pool: PoolId,
    /// Term of the import that wrote the object.
    pub term: Term,
    /// Host and session of that import.
    pub holder: Holder,
    /// The object's own name.
    pub name: ObjectName,
    /// Bytes of the whole object, with this head.
    pub length: u64,
    /// CRC-32C of the bytes after the head.
    pub payload_checksum: u32,
}

/// Reason why an object is not the expected one. Display is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectFault {
    /// The head is damaged or no head.
    #[error("its head is damaged: {0}")]
    Head(#[from] FormatError),
    /// The object is of another pool.
    #[error("it belongs to pool {0}")]
    Pool(PoolId),
    /// The object was written under another name.
    #[error("it is the object {0}")]
    Name(ObjectName),
    /// The number of bytes is not that of the head.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// Bytes that are there.
        found: u64,
        /// Bytes according to the head.
        expected: u64,
    },
    /// The bytes after the head are damaged.
    #[error("its content is damaged: checksum mismatch")]
    Payload,
}

impl ObjectHead {
    /// Returns the object: the head of `payload`, and `payload`.
    pub fn seal(pool: PoolId, term: Term, holder: Holder, name: ObjectName, payload: &[u8]) -> Vec<u8> {
        let length = (OBJECT_HEAD_BYTES + payload.len()) as u64;
        let head = ObjectHead { pool, term, holder, name, length, payload_checksum: crc32c(payload) };
        [&head.encode()[..], payload].concat()
    }

    /// Returns the first 4 KiB of the object.
    pub fn encode(&self) -> [u8; OBJECT_HEAD_BYTES] {
        let mut e = Encoder::with_capacity(OBJECT_HEAD_BYTES);
        e.raw(MAGIC);
        e.u16(VERSION);
        e.raw(&self.pool.0);
        e.u32(self.term.0);
        e.raw(&self.holder.host);
        e.raw(&self.holder.session);
        e.u64(self.length);
        e.u32(self.payload_checksum);
        e.string(&self.name.to_string());
        e.string(crate::claim::cut(&self.holder.name));
        seal(e)
    }

    /// Decodes the first 4 KiB of an object.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a head, are damaged, have a newer version, or a field is
    /// out of range.
    pub fn decode(bytes: &[u8]) -> Result<ObjectHead, FormatError> {
        let page = bytes.get(..OBJECT_HEAD_BYTES).ok_or(FormatError::Truncated)?;
        let mut d = open(page, MAGIC, VERSION)?;
        let (pool, term) = (PoolId(d.bytes()?), Term(d.u32()?));
        let (host, session) = (d.bytes()?, d.bytes()?);
        let (length, payload_checksum) = (d.u64()?, d.u32()?);
        if !(OBJECT_HEAD_BYTES as u64..=MAX_OBJECT_BYTES).contains(&length) {
            return Err(FormatError::Field("length"));
        }
        let (name, host_name) = (d.string()?, d.string()?);
        if name.len() > MAX_OBJECT_NAME {
            return Err(FormatError::Field("object name"));
        }
        if host_name.len() > HOST_NAME_MAX {
            return Err(FormatError::Field("host name"));
        }
        let (name, holder) = (ObjectName::parse(&name)?, Holder { host, name: host_name, session });
        // a name with another term would be an object that no import of this term can have written
        if name.term().is_some_and(|of| of != term) {
            return Err(FormatError::Field("term"));
        }
        Ok(ObjectHead { pool, term, holder, name, length, payload_checksum })
    }

    /// Reads the head of an object that was asked for by name. `length` is the length that the store
    /// gives for the object, if it is known.
    ///
    /// # Errors
    /// [`ObjectFault`] when it is not that object, or not whole.
    pub fn expect(bytes: &[u8], pool: PoolId, name: ObjectName, length: Option<u64>) -> Result<ObjectHead, ObjectFault> {
        let head = ObjectHead::decode(bytes)?;
        if head.pool != pool {
            return Err(ObjectFault::Pool(head.pool));
        }
        if head.name != name {
            return Err(ObjectFault::Name(head.name));
        }
        match length {
            Some(found) if found != head.length => Err(ObjectFault::Length { found, expected: head.length }),
            _ => Ok(head),
        }
    }

    /// Reads a whole object that was asked for by name: its head and the bytes after it.
    ///
    /// # Errors
    /// [`ObjectFault`] when it is not that object, not whole, or damaged.
    pub fn expect_whole(bytes: &[u8], pool: PoolId, name: ObjectName) -> Result<(ObjectHead, &[u8]), ObjectFault> {
        let head = ObjectHead::expect(bytes, pool, name, Some(bytes.len() as u64))?;
        let payload = bytes.get(OBJECT_HEAD_BYTES..).unwrap_or_default();
        if crc32c(payload) == head.payload_checksum { Ok((head, payload)) } else { Err(ObjectFault::Payload) }
    }
}
