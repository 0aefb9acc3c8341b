//! Replay of the committed corpus.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::testing::option;

#[test]
#[allow(clippy::disallowed_methods, reason = "reads the committed corpus")]
fn the_corpus_of_sessions_passes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nbd_session");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        assert!(std::panic::catch_unwind(|| fuzz_session(&bytes)).is_ok(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 20, "only {count} files in {}", folder.display());
}

proptest::proptest! {
    #[test]
    fn bytes_at_random_pass(choice: u8, bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        fuzz_session(&[&[choice | 12], &bytes[..]].concat());
        fuzz_session(&[&[choice & !12], &3u32.to_be_bytes()[..], &bytes].concat());
    }
}

/// Generates a request with fields near their limits, and a payload that may be shorter than the
/// length field.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![Just(0u64), 0..0x1000u64, (0..80u64).prop_map(|block| block * 4096), Just(1u64 << 18), any::<u64>()];
    let length = prop_oneof![Just(0u64), Just(512u64), Just(4096u64), 0..70_000u64, any::<u64>()];
    let payload = proptest::collection::vec(any::<u8>(), 0..600);
    (0..12u16, 0..64u16, any::<u64>(), number, length, payload, 0..3u8).prop_map(
        |(command, flags, cookie, offset, length, payload, style)| {
            // The fuzz body corrects the magic number.
            let mut bytes = vec![0; 4];
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            match style {
                0 => bytes.extend((length as u32).to_be_bytes()),
                _ => bytes.extend(length.to_be_bytes()),
            }
            if command == 1 || style == 2 {
                bytes.extend(payload);
            }
            bytes
        },
    )
}

proptest::proptest! {
    /// A case has 32 requests on average: `PROPTEST_CASES=32000` runs a million.
    #[test]
    fn requests_at_random_pass(choice: u8, requests in proptest::collection::vec(request(), 1..64)) {
        fuzz_session(&[&[choice | 12], &requests.concat()[..]].concat());
    }

    /// Random options in handshakes that offer or require encryption.
    #[test]
    fn options_at_random_pass(choice: u8, options in proptest::collection::vec((0..13u32, proptest::collection::vec(any::<u8>(), 0..40)), 1..8)) {
        let options: Vec<u8> = options.iter().flat_map(|(number, data)| option(*number, data)).collect();
        fuzz_session(&[&[choice & !12], &3u32.to_be_bytes()[..], &options].concat());
    }
}
