//! Opening what is used through the kernel's page cache.

use crate::Planted;

/// The page cache of one device or file.
pub trait PageCache {
    /// Writes what the cache has and the device has not. What cannot be written stays as it is, or counts as written all the same.
    fn write_back(&mut self);
    /// Drops what counts as written: from now on it is read from the device.
    fn forget(&mut self);
}

/// What opening does first.
///
/// Through the page cache, what is read may never have reached the device: when the kernel could not write a page back it calls it clean all the
/// same, and shows it until it needs the memory. A pool that stopped for a failed flush and is imported again would take such pages for
/// what is stored, call them durable, and lose them in the next power cut. So what can be written is, and the cache is dropped: what
/// is read from now on is what the device has. What cannot be written stays dirty, or is dropped; the next flush tells in the first case, and
/// the import misses it in the second.
pub fn open_through(cache: &mut impl PageCache, planted: Option<Planted>) {
    if Planted::TrustPageCache.is_in(planted) {
        return;
    }
    cache.write_back();
    cache.forget();
}
