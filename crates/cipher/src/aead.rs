//! AES-256-GCM-SIV (RFC 8452): encrypts and authenticates keys and metadata.
//!
//! A nonce that is used twice shows whether two contents are equal, and nothing else. Other modes of
//! GCM give their authentication key away then, and two hosts that write to copies of the devices use
//! nonces twice.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// The content does not belong to its tag: it was changed, or the key, the nonce or the clear part is
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is another one, or the content was changed")]
pub struct Unauthentic;

/// A key that encrypts and authenticates. Dropping it erases it.
pub struct Aead(LessSafeKey);

impl Aead {
    /// Bytes of a key.
    pub const KEY_BYTES: usize = 32;

    /// Takes a key. The caller erases its own copy.
    pub fn new(key: &[u8; Aead::KEY_BYTES]) -> Aead {
        let key = UnboundKey::new(&AES_256_GCM_SIV, key).expect("the key has the length of the algorithm");
        Aead(LessSafeKey::new(key))
    }

    /// Encrypts `content` in place, and returns the tag of content and `clear`, which is authenticated
    /// with it and stays as it is.
    pub fn encrypt(&self, nonce: [u8; NONCE_BYTES], clear: &[u8], content: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(clear), content);
        let tag = tag.expect("content of a structure is shorter than the bound of 64 GiB");
        tag.as_ref().try_into().expect("the tag has the length of the algorithm")
    }

    /// Decrypts `content` in place.
    ///
    /// # Errors
    /// [`Unauthentic`] when it is not what [`encrypt`](Self::encrypt) returned for this key, nonce and
    /// `clear`. Then the content is zeroes.
    pub fn decrypt(&self, nonce: [u8; NONCE_BYTES], clear: &[u8], content: &mut [u8], tag: &[u8; TAG_BYTES]) -> Result<(), Unauthentic> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.0.open_in_place_separate_tag(nonce, Aad::from(clear), tag, content).is_ok();
        if opened {
            return Ok(());
        }
        // the interface of the library leaves open what is there now
        content.fill(0);
        Err(Unauthentic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn vectors_of_rfc_8452() {
        let vectors = vectors::read(include_str!("../vectors/gcm_siv.txt"));
        assert_eq!(vectors.len(), 21);
        for vector in vectors {
            let (key, nonce, clear) = (Aead::new(&vector.array("KEY")), vector.array("NONCE"), vector.get("AD"));
            let mut content = vector.get("IN").to_vec();
            let tag = key.encrypt(nonce, clear, &mut content);
            assert_eq!((content.as_slice(), tag), (vector.get("OUT"), vector.array("TAG")));
            assert_eq!(key.decrypt(nonce, clear, &mut content, &tag), Ok(()));
            assert_eq!(content, vector.get("IN"));
        }
    }

    #[test]
    fn a_change_of_any_part_is_found() {
        let (key, nonce, clear) = (Aead::new(&[3; 32]), [4; NONCE_BYTES], [5; 20]);
        let mut content = [6; 50];
        let tag = key.encrypt(nonce, &clear, &mut content);
        let refused = |key: &Aead, nonce, clear: &[u8], mut content: [u8; 50], tag| {
            let found = key.decrypt(nonce, clear, &mut content, &tag) == Err(Unauthentic);
            found && content == [0; 50]
        };
        assert!(!refused(&key, nonce, &clear, content, tag));
        for bit in 0..50 * 8 {
            let mut changed = content;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&key, nonce, &clear, changed, tag), "bit {bit} of the content");
        }
        for bit in 0..TAG_BYTES * 8 {
            let mut changed = tag;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&key, nonce, &clear, content, changed), "bit {bit} of the tag");
        }
        assert!(refused(&key, nonce, &clear[..19], content, tag));
        assert!(refused(&key, [5; NONCE_BYTES], &clear, content, tag));
        assert!(refused(&Aead::new(&[2; 32]), nonce, &clear, content, tag));
    }
}
