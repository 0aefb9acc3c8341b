//! Replay of the committed corpus.

use std::path::PathBuf;

use super::*;

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
