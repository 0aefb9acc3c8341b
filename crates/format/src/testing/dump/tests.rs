//! Golden files: the encoding of each structure stays the same.

use std::path::PathBuf;

use super::super::{Kind, samples};
use super::*;

#[test]
fn what_is_dumped_comes_back() {
    let mut bytes = vec![0u8; 1000];
    bytes[100..400].fill(7);
    bytes[990..].fill(9);
    for cut in [0, 1, 16, 17, 200, 400, 1000] {
        assert_eq!(undump(&dump(&bytes[..cut])), Some(bytes[..cut].to_vec()), "{cut}");
    }
    assert_eq!(undump("10\n0 zz\n"), None);
    assert_eq!(undump("10\n8 00112233445566778899\n"), None, "beyond the end");
}

/// `MILLPOND_GOLDEN=write cargo test -p millpond-format golden` writes the golden files and the
/// initial fuzz corpus.
#[test]
#[allow(clippy::disallowed_methods, reason = "reads and writes the golden files")]
fn golden_structures() {
    let top = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let write = std::env::var("MILLPOND_GOLDEN").is_ok_and(|word| word == "write");
    for (name, kind, bytes) in samples() {
        let golden = top.join(format!("golden/{name}.txt"));
        if write {
            let choice = Kind::ALL.iter().position(|other| *other == kind).unwrap() as u8 | 0x80;
            std::fs::write(&golden, dump(&bytes)).unwrap();
            std::fs::write(top.join("../../fuzz/corpus/disk_structure").join(name), [&[choice], &bytes[..]].concat()).unwrap();
        }
        let text = std::fs::read_to_string(&golden).unwrap();
        assert!(undump(&text) == Some(bytes), "{name}: other bytes than in version 1; a change of the format wants a new version");
    }
}
