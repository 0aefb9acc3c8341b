//! The key table: the wraps of all data keys of a pool.
//!
//! Each area of a device that holds roots has the table, [`KEY_TABLE_OFFSET`] bytes from its start:
//! [`KEY_PAGES`] pages. It is outside of log and checkpoints, and a page is overwritten in place, so
//! that no older checkpoint has a wrap that was removed (`docs/decisions/0045-encryption.md`). Of all
//! copies of a page the one with the highest generation counts. All wraps of a key are in one page.
//!
//! Nothing in the table is secret: data keys are encrypted in it.

use std::fmt;

use crate::codec::{Decoder, Encoder, FormatError};
use crate::label::{SECTOR_BYTES, open, seal};
use crate::{AREA_BYTES, KeyId, PoolId, RING_OFFSET, RING_SLOTS};

#[cfg(test)]
mod tests;

/// Offset of the key table within an area: behind the ring of roots.
pub const KEY_TABLE_OFFSET: u64 = 640 << 10;
/// Pages of the table.
pub const KEY_PAGES: u16 = 64;
/// Maximum number of wraps in a page.
pub const WRAPS_PER_PAGE: usize = 31;
/// Maximum number of wraps in a pool.
pub const MAX_WRAPS: usize = KEY_PAGES as usize * WRAPS_PER_PAGE;

const MAGIC: &[u8; 8] = b"MPONDKEY";
const VERSION: u16 = 1;
/// Offset of the wraps within a page.
const WRAPS_AT: usize = 64;
/// Bytes of a page before the reserve that precedes the wraps.
const HEAD: usize = 8 + 2 + 16 + 2 + 8;
/// Bytes of the fields of a wrap that are authenticated with the key.
const CLEAR: usize = 60;

/// Maximum memory of a derivation in KiB: 4 GiB. A host that loads a key spends it.
const MAX_MEMORY_KIB: u32 = 4 << 20;
/// Maximum passes over that memory.
const MAX_PASSES: u32 = 64;
/// Maximum lanes. Each needs [`LANE_KIB`] of the memory.
const MAX_LANES: u32 = 64;
const LANE_KIB: u32 = 8;

const _: () = assert!(RING_OFFSET + RING_SLOTS * SECTOR_BYTES as u64 <= KEY_TABLE_OFFSET);
const _: () = assert!(KEY_TABLE_OFFSET + KEY_PAGES as u64 * SECTOR_BYTES as u64 <= AREA_BYTES);
const _: () = assert!(HEAD <= WRAPS_AT && WRAPS_AT + WRAPS_PER_PAGE * KeyWrap::BYTES <= SECTOR_BYTES - 4);

/// Kind of the secret that a wrap opens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrapKind {
    /// A passphrase.
    Passphrase,
    /// The content of a key file.
    KeyFile,
    /// The output of a key command.
    Command,
    /// The pool key.
    PoolKey,
}

/// Derivation of the key of a wrap from the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// HKDF-SHA-256 (RFC 5869): for secrets that cannot be guessed.
    HkdfSha256,
    /// argon2id, version 1.3 (RFC 9106): for passphrases.
    Argon2id {
        /// Memory in KiB: at least 8 for each lane, at most 4 GiB.
        memory_kib: u32,
        /// Passes over the memory: 1 to 64.
        passes: u32,
        /// Lanes: 1 to 64.
        lanes: u32,
    },
}

/// A data key, encrypted with a key that is derived from a secret.
///
/// | offset | size | field | meaning |
/// |---|---|---|---|
/// | 0 | 8 | key id | 0: the place is free, and all of its bytes are 0 |
/// | 8 | 1 | number | of the wrap among those of its key |
/// | 9 | 1 | kind | 1 passphrase, 2 key file, 3 command, 4 pool key |
/// | 10 | 1 | derivation | 0 HKDF-SHA-256, 1 argon2id 1.3 |
/// | 11 | 1 | reserve | 0 |
/// | 12 | 4 | memory | of argon2id, in KiB; 0 otherwise |
/// | 16 | 4 | passes | of argon2id; 0 otherwise |
/// | 20 | 4 | lanes | of argon2id; 0 otherwise |
/// | 24 | 16 | salt | of the derivation |
/// | 40 | 12 | nonce | of AES-256-GCM-SIV |
/// | 52 | 8 | domain | of the family in this pool, random |
/// | 60 | 48 | data key | encrypted: 32 bytes, and a tag of 16 |
/// | 108 | 20 | reserve | 0 |
///
/// The pool id and the first 60 bytes are authenticated with the data key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyWrap {
    /// The data key.
    pub key: KeyId,
    /// Number of the wrap among those of its key.
    pub number: u8,
    /// Kind of the secret.
    pub kind: WrapKind,
    /// How the key of the wrap follows from the secret.
    pub derivation: Derivation,
    /// Salt of the derivation.
    pub salt: [u8; 16],
    /// Nonce of the encryption.
    pub nonce: [u8; 12],
    /// Domain of the family in this pool: two pools with one data key share no key of the cipher.
    pub domain: [u8; 8],
    /// The data key, encrypted, with its tag.
    pub wrapped: [u8; 48],
}

/// Names the wrap and shows nothing of it: a copy of a wrap opens with its secret after the wrap is
/// removed, so none may get into a trace or log.
impl fmt::Debug for KeyWrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyWrap { key, number, kind, .. } = self;
        f.debug_struct("KeyWrap").field("key", key).field("number", number).field("kind", kind).finish_non_exhaustive()
    }
}

impl KeyWrap {
    /// Bytes of a wrap.
    pub const BYTES: usize = 128;

    /// Returns the bytes that are authenticated with the data key: those of the pool id, and the fields
    /// before the encrypted key.
    pub fn clear_part(&self, pool: PoolId) -> Vec<u8> {
        let mut e = Encoder::with_capacity(16 + CLEAR);
        e.raw(&pool.0);
        self.encode_clear(&mut e);
        e.into_bytes()
    }

    fn encode_clear(&self, e: &mut Encoder) {
        e.u64(self.key.0);
        e.u8(self.number);
        e.u8(match self.kind {
            WrapKind::Passphrase => 1,
            WrapKind::KeyFile => 2,
            WrapKind::Command => 3,
            WrapKind::PoolKey => 4,
        });
        let (derivation, memory, passes, lanes) = match self.derivation {
            Derivation::HkdfSha256 => (0, 0, 0, 0),
            Derivation::Argon2id { memory_kib, passes, lanes } => (1, memory_kib, passes, lanes),
        };
        e.u8(derivation);
        e.u8(0);
        [memory, passes, lanes].into_iter().for_each(|number| e.u32(number));
        e.raw(&self.salt);
        e.raw(&self.nonce);
        e.raw(&self.domain);
    }

    fn encode(&self, e: &mut Encoder) {
        self.encode_clear(e);
        e.raw(&self.wrapped);
        e.raw(&[0; KeyWrap::BYTES - CLEAR - 48]);
    }

    /// Decodes a place of a page; `None` when it is free.
    fn decode(bytes: &[u8]) -> Result<Option<KeyWrap>, FormatError> {
        let mut d = Decoder::new(bytes);
        let key = KeyId(d.u64()?);
        if key.0 == 0 {
            return no_more(&mut d, "free place").map(|()| None);
        }
        let number = d.u8()?;
        let kind = match d.u8()? {
            1 => WrapKind::Passphrase,
            2 => WrapKind::KeyFile,
            3 => WrapKind::Command,
            4 => WrapKind::PoolKey,
            _ => return Err(FormatError::Field("kind")),
        };
        let (derivation, reserve) = (d.u8()?, d.u8()?);
        let derivation = match (derivation, d.u32()?, d.u32()?, d.u32()?) {
            (0, 0, 0, 0) => Derivation::HkdfSha256,
            (1, memory_kib, passes, lanes) => Derivation::Argon2id { memory_kib, passes, lanes },
            _ => return Err(FormatError::Field("derivation")),
        };
        if reserve != 0 || !derivation.is_bounded() {
            return Err(FormatError::Field("derivation"));
        }
        let (salt, nonce, domain, wrapped) = (d.bytes()?, d.bytes()?, d.bytes()?, d.bytes()?);
        no_more(&mut d, "wrap")?;
        Ok(Some(KeyWrap { key, number, kind, derivation, salt, nonce, domain, wrapped }))
    }
}

impl Derivation {
    /// Returns whether the cost is one that a host may spend for a table that was not authenticated
    /// yet, and argon2id is defined for it.
    fn is_bounded(self) -> bool {
        match self {
            Derivation::HkdfSha256 => true,
            Derivation::Argon2id { memory_kib, passes, lanes } => {
                let sound = (1..=MAX_LANES).contains(&lanes) && (1..=MAX_PASSES).contains(&passes);
                sound && (lanes * LANE_KIB..=MAX_MEMORY_KIB).contains(&memory_kib)
            }
        }
    }
}

/// Refuses bytes that are not 0: they would be lost when the page is written again.
fn no_more(d: &mut Decoder<'_>, name: &'static str) -> Result<(), FormatError> {
    let rest = d.raw(d.remaining())?;
    if rest.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(FormatError::Field(name)) }
}

/// A page of the key table.
///
/// | offset | size | field | meaning |
/// |---|---|---|---|
/// | 0 | 8 | magic | `MPONDKEY` |
/// | 8 | 2 | version | 1 |
/// | 10 | 16 | pool id | |
/// | 26 | 2 | number | place of the page in the table, 0 to 63 |
/// | 28 | 8 | generation | one more each time the page is written |
/// | 36 | 28 | reserve | 0 |
/// | 64 | 31 x 128 | wraps | [`KeyWrap`] each, in the order of key ids and numbers, then free places |
/// | 4032 | 60 | reserve | 0 |
/// | 4092 | 4 | checksum | CRC-32C of the page before it |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPage {
    /// The pool.
    pub pool: PoolId,
    /// Place of the page in the table.
    pub number: u16,
    /// One more each time the page is written.
    pub generation: u64,
    /// The wraps, in the order of key ids and numbers.
    pub wraps: Vec<KeyWrap>,
}

impl KeyPage {
    /// Returns the page to write.
    ///
    /// # Panics
    /// With more than [`WRAPS_PER_PAGE`] wraps, which is an error of the caller.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        assert!(self.wraps.len() <= WRAPS_PER_PAGE, "too many wraps in a page of the key table");
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(MAGIC);
        e.u16(VERSION);
        e.raw(&self.pool.0);
        e.u16(self.number);
        e.u64(self.generation);
        e.raw(&[0; WRAPS_AT - HEAD]);
        self.wraps.iter().for_each(|wrap| wrap.encode(&mut e));
        seal(e)
    }

    /// Decodes a page.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a page of a key table, are damaged, have a newer version,
    /// or a field is out of range. The caller checks pool and number.
    pub fn decode(page: &[u8]) -> Result<KeyPage, FormatError> {
        let mut d = open(page, MAGIC, VERSION)?;
        let (pool, number, generation) = (PoolId(d.bytes()?), d.u16()?, d.counter("generation")?);
        if number >= KEY_PAGES {
            return Err(FormatError::Field("page"));
        }
        if d.raw(WRAPS_AT - HEAD)?.iter().any(|byte| *byte != 0) {
            return Err(FormatError::Field("reserve"));
        }
        let mut wraps: Vec<KeyWrap> = Vec::new();
        let mut free = false;
        for _ in 0..WRAPS_PER_PAGE {
            let wrap = KeyWrap::decode(d.raw(KeyWrap::BYTES)?)?;
            // in order, so that no wrap is there twice; free places last, so that a page has one encoding
            let follows = |wrap: &KeyWrap| !free && wraps.last().is_none_or(|last| (last.key, last.number) < (wrap.key, wrap.number));
            if !wrap.as_ref().is_none_or(follows) {
                return Err(FormatError::Field("order of wraps"));
            }
            free = wrap.is_none();
            wraps.extend(wrap);
        }
        no_more(&mut d, "reserve")?;
        Ok(KeyPage { pool, number, generation, wraps })
    }

    /// Offset of a page within each area of a device.
    pub fn offset(number: u16) -> u64 {
        KEY_TABLE_OFFSET + u64::from(number) * SECTOR_BYTES as u64
    }
}
