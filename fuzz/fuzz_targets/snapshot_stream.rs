//! A stream of snapshots from hostile bytes: `cargo fuzz run snapshot_stream`. The body lives in `millpond_images::testing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    millpond_images::testing::fuzz_stream(data);
});
