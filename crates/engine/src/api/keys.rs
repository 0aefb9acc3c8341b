//! The key table.

use millpond_format::{KeyId, KeyWrap};

/// A change of the key table. It is durable on all devices in service when it is answered; after a crash
/// before that it may have taken effect or not. Needs the feature
/// [`ENCRYPTION`](millpond_format::ENCRYPTION).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyCommand {
    /// Puts a wrap in the place of the one with its key and number, or adds it.
    Put {
        /// The wrap. Its key id, salt, nonce and domain come from the caller's source of entropy.
        wrap: Box<KeyWrap>,
        /// Whether the key is to be new. Otherwise it has a wrap already.
        is_new: bool,
    },
    /// Erases wraps.
    Erase {
        /// The key.
        key: KeyId,
        /// The wrap to erase, which is not the last one of the key; `None`: all, and so the key.
        number: Option<u8>,
    },
}

/// The key table of a pool; empty in a pool without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTable {
    /// All wraps that are known; those of one key are neighbours.
    pub wraps: Vec<KeyWrap>,
    /// Numbers of pages that are damaged on all devices in service. A missing device may have them: until it
    /// is back, the keys in them are not known.
    pub unknown: Vec<u16>,
    /// Numbers of pages that the import found on out-of-date devices alone, and took from there. Changes
    /// that were made without these devices are lost, so a wrap that was erased may be there.
    pub outdated: Vec<u16>,
}
