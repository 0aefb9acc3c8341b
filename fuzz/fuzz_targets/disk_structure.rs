//! Every structure on a medium from hostile bytes: `cargo fuzz run disk_structure`. The body lives in `millpond_format::testing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_format::testing::fuzz_structure(data));
