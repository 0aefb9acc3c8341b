//! A short fuzz run: valid structures with flipped bits, extreme numbers, cut ends and parts of
//! other structures.

use std::path::PathBuf;

use super::super::samples;
use super::*;
use millpond_testing::Random;

/// Damages a structure. Half of the damage is near the start, where most fields are.
fn damage(bytes: &mut Vec<u8>, foreign: &[u8], random: &mut Random) {
    let reach = if random.index(2) == 0 { bytes.len() } else { bytes.len().min(300) };
    match random.index(5) {
        0 | 1 => {
            for _ in 0..=random.index(4) {
                let at = random.index(reach);
                bytes[at] ^= 1 << random.index(8);
            }
        }
        2 => {
            let absurd = [u64::MAX, 1 << 63, 1 << 40, 1 << 32, u64::from(u32::MAX), 1 << 16, 0][random.index(7)].to_le_bytes();
            let width = 1 << random.index(4);
            let at = random.index(reach);
            bytes.iter_mut().skip(at).zip(&absurd[..width]).for_each(|(byte, new)| *byte = *new);
        }
        3 => bytes.truncate(random.index(reach)),
        _ => {
            let (from, at) = (random.index(foreign.len()), random.index(reach));
            let length = random.index(600);
            bytes.iter_mut().skip(at).zip(foreign[from..].iter().take(length)).for_each(|(byte, new)| *byte = *new);
        }
    }
}

#[test]
fn every_structure_survives_its_encoding() {
    for (name, kind, bytes) in samples() {
        assert_eq!(check(kind, &bytes), Ok(bytes), "{name}");
    }
}

#[test]
fn damaged_structures_are_refused_or_equal() {
    let samples = samples();
    let mut random = Random::new(1);
    let (mut refused, mut read) = ([0; Kind::ALL.len()], [0; Kind::ALL.len()]);
    for round in 0..4000 {
        for (name, kind, whole) in &samples {
            let mut bytes = whole.clone();
            damage(&mut bytes, &samples[random.index(samples.len())].2, &mut random);
            let resealed = round % 2 == 0;
            if resealed {
                put_checksum_right(*kind, &mut bytes);
            }
            let read_again = check(*kind, &bytes);
            match &read_again {
                Ok(again) if kind.holds_checksum() && !resealed => {
                    assert_eq!(again, whole, "{name}, round {round}: damage that shows nothing")
                }
                Ok(_) => read[*kind as usize] += 1,
                Err(_) => refused[*kind as usize] += 1,
            }
        }
    }
    assert!(refused.iter().chain(&read).all(|n| *n > 100), "the damage is too kind or too wild: refused {refused:?}, read {read:?}");
}

#[test]
fn every_length_is_refused_or_whole() {
    for (name, kind, whole) in samples() {
        for length in 0..whole.len() {
            if let Ok(again) = check(kind, &whole[..length]) {
                assert!(
                    matches!(
                        kind,
                        Kind::ChunkPage
                            | Kind::Deadlist
                            | Kind::DeadDirectory
                            | Kind::DeadPiece
                            | Kind::ObjectIndex
                            | Kind::SnapshotPage
                            | Kind::NamePage
                            | Kind::DoomedList
                    ),
                    "{name} cut to {length}"
                );
                assert_eq!(again, whole[..length], "{name} cut to {length}");
            }
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "reads the committed corpus")]
fn the_corpus_of_structures_passes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/disk_structure");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        assert!(std::panic::catch_unwind(|| fuzz_structure(&bytes)).is_ok(), "{}", path.display());
        count += 1;
    }
    assert!(count >= samples().len(), "only {count} files in {}", folder.display());
}
