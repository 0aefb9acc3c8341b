//! Secrets of 256 random bits: tokens, codes of links, sessions. Only their digests are kept.
//!
//! A secret of this length cannot be guessed, so one round of SHA-256 protects it as well as a slow
//! hash protects a password.

use std::io;

use aws_lc_rs::{constant_time, digest};
use millpond_device::entropy;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a secret, and of its digest.
const LENGTH: usize = 32;

/// Digest of a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; LENGTH]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

impl Digest {
    /// Returns the digest of a secret as its bearer gives it.
    pub fn of(secret: &str) -> Digest {
        let mut bytes = [0; LENGTH];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref());
        Digest(bytes)
    }

    /// Compares two digests in a time that does not depend on their content.
    pub fn is(&self, other: &Digest) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

/// Returns a new secret in hexadecimal digits after a prefix, which scanners for leaked secrets find.
///
/// # Errors
/// The host has no random numbers.
pub fn new_secret(prefix: &str) -> io::Result<String> {
    Ok(format!("{prefix}{}", hex(&entropy::<LENGTH>()?)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        let digit = |at: usize| text.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let mut bytes = [0; LENGTH];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = digit(at).ok_or_else(|| serde::de::Error::custom("a digest has 64 hexadecimal digits"))?;
        }
        Ok(Digest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_random_and_its_digest_is_sha256() {
        let (one, two) = (new_secret("x_").expect("random"), new_secret("x_").expect("random"));
        assert!(one != two && one.len() == 66 && one.starts_with("x_"));
        assert!(Digest::of(&one).is(&Digest::of(&one)) && !Digest::of(&one).is(&Digest::of(&two)));
        let known = "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"";
        assert_eq!(serde_json::to_string(&Digest::of("abc")).expect("text"), known);
        assert_eq!(serde_json::from_str::<Digest>(known).expect("digest"), Digest::of("abc"));
        for wrong in ["\"ab\"", "\"zz7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"", "1"] {
            assert!(serde_json::from_str::<Digest>(wrong).is_err(), "{wrong}");
        }
    }
}
