//! Where a target keeps its files: a directory, or a bucket.

#[cfg(feature = "bucket")]
pub mod bucket;
pub mod directory;

use std::sync::atomic::AtomicBool;

use crate::StoreError;

/// Right to use a target, until it is dropped.
pub trait Lock: Send + Sync {
    /// Checks that others still respect it.
    ///
    /// # Errors
    /// [`StoreError::Late`]: nothing may be written or deleted any more.
    fn check(&self) -> Result<(), StoreError>;
}

/// Files by name. Names are relative, with `/` between folders.
pub trait Store: Send + Sync {
    /// Name for messages.
    fn name(&self) -> String;

    /// Writes a whole file, also in the place of another one. After a power cut it is there whole or
    /// not at all, or still the one before; after [`settle`](Store::settle) it is there.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError>;

    /// Writes a whole file as [`put`](Store::put) does, unless there is one of that name with other
    /// content; returns false then. Of commands that do this at the same time, one writes it, where the
    /// directory or bucket can do that.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool, StoreError>;

    /// Reads a whole file of at most `most` bytes.
    ///
    /// # Errors
    /// [`StoreError::Missing`]; [`StoreError::Io`], also when it is longer.
    fn get(&self, name: &str, most: u64) -> Result<Vec<u8>, StoreError>;

    /// True if there is such a file. [`settle`](Store::settle) counts it as written.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn has(&self, name: &str) -> Result<bool, StoreError>;

    /// Names and lengths in bytes of all files below a folder, in any order. [`settle`](Store::settle)
    /// counts them as written, and all others below the folder as deleted: the command that deleted them
    /// may have been killed before that was durable.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn list(&self, folder: &str, each: &mut dyn FnMut(String, u64)) -> Result<(), StoreError>;

    /// Deletes files; those that are not there count as deleted.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn delete(&self, names: &[String]) -> Result<(), StoreError>;

    /// On return, everything that was written, found or deleted before stays so after a power cut.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn settle(&self) -> Result<(), StoreError>;

    /// Takes the target for this command: `alone`, or with others that add to it. Waits for others, until
    /// `stop` is set.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when others have it for long; [`StoreError::Stopped`]; [`StoreError::Io`].
    fn lock(&self, alone: bool, stop: &AtomicBool) -> Result<Box<dyn Lock>, StoreError>;
}
