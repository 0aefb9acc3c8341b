//! Data keys, their wraps, and the keys of the cipher that are derived from them.

use zeroize::{Zeroize, Zeroizing};

use crate::{Aead, NONCE_BYTES, TAG_BYTES, Unauthentic, Xts, derive};

#[cfg(test)]
mod tests;

/// Bytes of a wrapped data key: the encrypted key, and a tag.
pub const WRAPPED_BYTES: usize = DataKey::BYTES + TAG_BYTES;

/// First part of the purpose of a derived key for blocks.
const XTS_PURPOSE: &[u8] = b"millpond xts 1";
/// A key of the cipher is for the blocks of 2^24 chunks: at most 64 TiB, so two of its AES blocks
/// collide with a chance of 2^-45.
const SPAN_SHIFT: u32 = 24;

/// 8 random bytes of a family in a pool, so that two pools with one data key share no key of the
/// cipher. No secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(pub [u8; 8]);

/// The 2^24 consecutive chunk ids whose blocks have one key of the cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySpan(u64);

impl KeySpan {
    /// Returns the span of a chunk, by its id.
    pub fn of_chunk(chunk: u64) -> KeySpan {
        KeySpan(chunk >> SPAN_SHIFT)
    }
}

/// 32 random bytes from which all keys of a family are derived. They never change.
pub struct DataKey(Box<[u8; DataKey::BYTES]>);

impl DataKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// Takes the bytes of a key, and erases them at their old place.
    pub fn take(bytes: &mut [u8; DataKey::BYTES]) -> DataKey {
        let mut key = DataKey::zero();
        key.0.copy_from_slice(bytes);
        bytes.zeroize();
        key
    }

    /// A place for a key, at an address that stays: moving an array would leave copies behind.
    fn zero() -> DataKey {
        DataKey(Box::new([0; DataKey::BYTES]))
    }

    /// Returns the key, encrypted by another one. `clear` is authenticated with it.
    pub fn wrap(&self, by: &Aead, nonce: [u8; NONCE_BYTES], clear: &[u8]) -> [u8; WRAPPED_BYTES] {
        let mut wrapped = [0; WRAPPED_BYTES];
        let (key, tag) = wrapped.split_at_mut(DataKey::BYTES);
        key.copy_from_slice(self.0.as_slice());
        tag.copy_from_slice(&by.encrypt(nonce, clear, key));
        wrapped
    }

    /// Opens a wrap.
    ///
    /// # Errors
    /// [`Unauthentic`] when the wrap, `clear` or the nonce was changed, or it is by another key.
    pub fn from_wrap(wrapped: &[u8; WRAPPED_BYTES], by: &Aead, nonce: [u8; NONCE_BYTES], clear: &[u8]) -> Result<DataKey, Unauthentic> {
        let (encrypted, tag) = wrapped.split_first_chunk::<{ DataKey::BYTES }>().ok_or(Unauthentic)?;
        let tag = <&[u8; TAG_BYTES]>::try_from(tag).map_err(|_| Unauthentic)?;
        let mut key = DataKey::zero();
        key.0.copy_from_slice(encrypted);
        by.decrypt(nonce, clear, key.0.as_mut_slice(), tag)?;
        Ok(key)
    }

    /// Returns the cipher of the blocks of a family in the chunks of a span. Its key is 64 bytes of
    /// HKDF-SHA-256 without salt; the purpose is `millpond xts 1`, the domain, and the upper bits of
    /// the chunk id in 8 bytes, little-endian.
    pub fn xts(&self, domain: Domain, span: KeySpan) -> Xts {
        let mut key = Zeroizing::new([0; Xts::KEY_BYTES]);
        derive(self.0.as_slice(), &[], &[XTS_PURPOSE, &domain.0, &span.0.to_le_bytes()], key.as_mut_slice());
        Xts::new(&key)
    }
}

impl Drop for DataKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
