//! A short fuzz run: valid structures with flipped bits, extreme numbers, cut ends and parts of
//! other structures.

use std::path::PathBuf;

use super::super::samples;
use super::*;

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

/// Damages a structure. Half of the damage is near the start, where most fields are.
fn damage(bytes: &mut Vec<u8>, foreign: &[u8], chance: &mut Chance) {
    let reach = if chance.below(2) == 0 { bytes.len() } else { bytes.len().min(300) };
    match chance.below(5) {
        0 | 1 => {
            for _ in 0..=chance.below(4) {
                let at = chance.below(reach);
                bytes[at] ^= 1 << chance.below(8);
            }
        }
        2 => {
            let absurd = [u64::MAX, 1 << 63, 1 << 40, 1 << 32, u64::from(u32::MAX), 1 << 16, 0][chance.below(7)].to_le_bytes();
            let width = 1 << chance.below(4);
            let at = chance.below(reach);
            bytes.iter_mut().skip(at).zip(&absurd[..width]).for_each(|(byte, new)| *byte = *new);
        }
        3 => bytes.truncate(chance.below(reach)),
        _ => {
            let (from, at) = (chance.below(foreign.len()), chance.below(reach));
            let length = chance.below(600);
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
    let mut chance = Chance(1);
    let (mut refused, mut read) = ([0; Kind::ALL.len()], [0; Kind::ALL.len()]);
    for round in 0..4000 {
        for (name, kind, whole) in &samples {
            let mut bytes = whole.clone();
            damage(&mut bytes, &samples[chance.below(samples.len())].2, &mut chance);
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
                        Kind::ChunkPage | Kind::Deadlist | Kind::DeadDirectory | Kind::DeadPiece | Kind::ObjectIndex | Kind::SnapshotPage
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
