//! The memory of the process, towards the system.

/// Gives memory that was freed and that the allocator keeps back to the system. Takes milliseconds for each gigabyte, and other threads that allocate
/// wait for a part of them.
///
/// Source: glibc, `malloc_trim(3)`. With other allocators nothing is done.
pub fn trim_heap() {
    // SAFETY: it has no preconditions, and touches nothing that is in use
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
