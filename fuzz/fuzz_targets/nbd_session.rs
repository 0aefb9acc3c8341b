//! A whole NBD connection from hostile bytes: `cargo fuzz run nbd_session`. The body lives in `millpond_export::testing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_export::testing::fuzz_session(data));
