//! Opening of devices that are used through the kernel's page cache.

use crate::Planted;

/// The page cache of one device or file.
pub trait PageCache {
    /// Writes dirty pages to the device. Pages that cannot be written stay dirty, or are marked
    /// clean all the same.
    fn write_back(&mut self);
    /// Drops clean pages, so that they are read from the device.
    fn forget(&mut self);
}

/// Synchronises the page cache with the device; the first step of opening.
///
/// Data read through the page cache may never have reached the device: when the kernel cannot write
/// a page back, it marks the page clean all the same, and returns it until the memory is needed. A
/// pool that stopped for a failed flush and is imported again would take such pages for stored
/// data, call them durable, and lose them at the next power cut. So dirty pages are written where
/// possible, and the cache is dropped: reads from then on return what the device has. A page that
/// cannot be written stays dirty, and the next flush reports it; or it is dropped, and the import
/// notices that its data is missing.
pub fn open_through(cache: &mut impl PageCache, planted: Option<Planted>) {
    if Planted::TrustPageCache.is_in(planted) {
        return;
    }
    cache.write_back();
    cache.forget();
}
