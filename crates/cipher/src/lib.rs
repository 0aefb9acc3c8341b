//! Ciphers: AES-256-XTS for blocks, AES-256-GCM-SIV for keys and metadata, and HKDF-SHA-256, by which
//! all keys are derived (`docs/decisions/0045-encryption.md`).
//!
//! *Architecture Invariant:* no I/O and no randomness: keys and nonces are passed in. No type with a
//! secret has `Debug`, and each erases its memory when it is dropped. `unsafe` is confined to `xts`.
#![deny(unsafe_code)]

mod aead;
mod derive;
mod key;
#[cfg(test)]
mod vectors;
#[allow(unsafe_code)]
mod xts;

pub use aead::{Aead, NONCE_BYTES, TAG_BYTES, Unauthentic};
pub use derive::derive;
pub use key::{DataKey, Domain, KeySpan, WRAPPED_BYTES};
pub use xts::{Tweak, Xts};
