//! A vhost-user queue in hostile hands: `cargo fuzz run vhost_user_queue`. The body lives in `millpond_export::testing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    millpond_export::testing::fuzz_queue(data);
});
