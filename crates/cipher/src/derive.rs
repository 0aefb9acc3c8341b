//! Derivation of keys: HKDF-SHA-256 (RFC 5869).

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

/// Maximum bytes of one derivation, by RFC 5869: 255 times the length of a hash.
const MAX_BYTES: usize = 255 * 32;

/// Number of bytes to derive.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `out` with bytes that follow from a secret, a salt and a purpose. Nothing about the secret
/// follows from them, nor from them those of another purpose.
///
/// The parts of `purpose` are joined without marks between them: all but the last must have fixed
/// lengths.
///
/// # Panics
/// When `out` has more than 8,160 bytes, which is an error of the caller.
pub fn derive(secret: &[u8], salt: &[u8], purpose: &[&[u8]], out: &mut [u8]) {
    assert!(out.len() <= MAX_BYTES, "{} bytes are more than a derivation gives", out.len());
    let source = Salt::new(HKDF_SHA256, salt).extract(secret);
    let filled = source.expand(purpose, Length(out.len())).and_then(|key| key.fill(out));
    filled.expect("HKDF of a length within its bound succeeds");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn vectors_of_rfc_5869() {
        let vectors = vectors::read(include_str!("../vectors/hkdf.txt"));
        assert_eq!(vectors.len(), 3);
        for vector in vectors {
            let mut out = vec![0; vector.get("OUT").len()];
            derive(vector.get("SECRET"), vector.get("SALT"), &[vector.get("INFO")], &mut out);
            assert_eq!(out, vector.get("OUT"));
        }
    }

    #[test]
    fn parts_of_a_purpose_are_joined() {
        let derived = |purpose: &[&[u8]]| {
            let mut out = [0; 64];
            derive(&[1; 32], &[], purpose, &mut out);
            out
        };
        assert_eq!(derived(&[b"one", b"two"]), derived(&[b"onetwo"]));
        assert_ne!(derived(&[b"one", b"two"]), derived(&[b"one", b"twp"]));
        // longer than the library's buffer for purposes
        assert_eq!(derived(&[&[7; 50], &[7; 50]]), derived(&[&[7; 100]]));
    }

    #[test]
    #[should_panic(expected = "more than a derivation gives")]
    fn a_derivation_has_a_bound() {
        derive(&[1; 32], &[], &[], &mut [0; MAX_BYTES + 1]);
    }
}
