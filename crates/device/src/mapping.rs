//! Reads files in memory (tmpfs) through mappings.
//!
//! A read of a file in tmpfs is a system call and a look-up of the page, which take longer than the
//! copy of 4 KiB. In a mapping the processor looks the page up, and only the copy remains.
//!
//! A program with the right to write to the file may truncate it, and access to a page that is gone
//! ends a process with SIGBUS. So a handler puts an empty page there and marks the mapping as
//! broken; the reader discards what it copied, and reads the file by system calls from then on.
//! Signals for other addresses go to the handler that was installed before.
//!
//! Shared memory that is also written to, such as a guest's, has the same problem: its user watches
//! it with a [`Guard`].

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

/// Maximum mappings of the process: 64 devices of each of four pools (further devices are read by
/// system calls), and the memory of a thousand guests.
const MAX_MAPPINGS: usize = 4096;
const PAGE: usize = 4096;

/// Address ranges of mappings, for the handler. A place is free while `end` is 0.
static PLACES: [Place; MAX_MAPPINGS] = [const { Place::new() }; MAX_MAPPINGS];
/// The action for SIGBUS before ours; `None` if the handler could not be installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

#[derive(Debug)]
struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
    /// Page size of the file in bytes.
    page: AtomicUsize,
    /// True when the mapping is written to.
    writable: AtomicBool,
}

impl Place {
    const fn new() -> Place {
        Place {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            page: AtomicUsize::new(PAGE),
            writable: AtomicBool::new(false),
        }
    }

    /// Takes a free place; `None` when there is none, or no handler.
    fn take() -> Option<&'static Place> {
        BEFORE.get_or_init(install).as_ref()?;
        PLACES.iter().find(|place| !place.taken.swap(true, Ordering::AcqRel))
    }

    /// Starts to watch a range.
    fn watch(&self, start: usize, length: usize, page: usize, writable: bool) {
        self.broken.store(false, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.writable.store(writable, Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
        self.end.store(start + length, Ordering::Release);
    }

    fn give_back(&self) {
        self.end.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    fn holds(&self, address: usize) -> bool {
        address < self.end.load(Ordering::Acquire) && address >= self.start.load(Ordering::Acquire)
    }
}

/// A mapping of a file for reading.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    place: &'static Place,
}

impl Mapping {
    /// Maps the first `length` bytes; `None` when the host or the process has no room for it, which
    /// is not an error.
    pub fn new(file: BorrowedFd<'_>, length: u64) -> Option<Mapping> {
        let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
        let place = Place::take()?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use; the
        // kernel checks descriptor and length.
        let mapped =
            unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd(), 0) };
        let base = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED);
        let Some(base) = base else {
            place.give_back();
            return None;
        };
        place.watch(base.addr().get(), length, PAGE, false);
        Some(Mapping { base, length, place })
    }

    /// Copies the bytes at `offset` into `target`. Returns false when they must be read by a system
    /// call: they are beyond the mapping, or the file was found to be shorter.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        let inside = usize::try_from(offset).ok().filter(|from| from.checked_add(target.len()).is_some_and(|end| end <= self.length));
        let Some(from) = inside else { return false };
        if self.is_broken() {
            return false;
        }
        // SAFETY: the range is within the mapping, which lives as long as `self` and does not
        // overlap a buffer of ours. Other programs may write to the file meanwhile, as during a
        // read: the caller compares checksums. The handler replaces a page that is gone.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(from), target.as_mut_ptr(), target.len()) };
        // the handler runs in this thread, between the instructions of the copy
        compiler_fence(Ordering::SeqCst);
        !self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.place.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of a mapping that `new` made and that nothing else
        // refers to.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        self.place.give_back();
    }
}

/// Watches memory that another program may take away: access to a page that is gone marks the guard
/// as broken instead of ending the process, and an empty private page takes its place. The guard
/// must be dropped only when the memory is no longer accessed.
#[derive(Debug)]
pub struct Guard {
    place: &'static Place,
}

impl Guard {
    /// Watches `length` bytes that are mapped at `start`, for reading and writing, from a file with
    /// pages of `page` bytes. `None` when too many ranges are watched.
    pub fn new(start: *const u8, length: usize, page: usize) -> Option<Guard> {
        let place = Place::take()?;
        place.watch(start.expose_provenance(), length, page.max(PAGE), true);
        Some(Guard { place })
    }

    /// True when a page was found to be gone.
    pub fn is_broken(&self) -> bool {
        // the handler runs in the thread that touches the page
        compiler_fence(Ordering::SeqCst);
        self.place.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.place.give_back();
    }
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: both structures are plain data for which zeroes are valid; the handler calls only
    // what a signal handler may call, and runs on the alternate stack where the thread has one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) == 0).then_some(before)
    }
}

/// Replaces a page that is gone. For other addresses the previous handler is restored, and the
/// signal occurs again.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`; for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() }.addr();
    if let Some(place) = PLACES.iter().find(|place| place.holds(address)) {
        place.broken.store(true, Ordering::Relaxed);
        let bytes = place.page.load(Ordering::Relaxed);
        let page = ptr::with_exposed_provenance_mut::<c_void>(address / bytes * bytes);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = if place.writable.load(Ordering::Relaxed) { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the page is in a mapping of ours, or in a mapping of shared memory that a `Guard`
        // watches: no code relies on the page that was there. mmap is a bare system call.
        if unsafe { libc::mmap(page, bytes, protection, flags, -1, 0) } != libc::MAP_FAILED {
            return;
        }
    }
    let before = BEFORE.get().and_then(Option::as_ref).map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `before` is what sigaction(2) returned, or null, which changes nothing.
    unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
}

#[cfg(test)]
mod tests;
