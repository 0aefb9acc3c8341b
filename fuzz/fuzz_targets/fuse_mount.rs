//! Requests of a mount from hostile bytes: `cargo fuzz run fuse_mount`. The body lives in `millpond_export::testing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_export::testing::fuzz_mount(data));
