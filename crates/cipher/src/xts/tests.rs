use std::panic::{AssertUnwindSafe, catch_unwind};

use aws_lc_rs::cipher::{AES_256, EncryptingKey, UnboundCipherKey};
use millpond_testing::Random;

use super::*;
use crate::vectors;

/// XTS as IEEE 1619 defines it, from single AES blocks.
struct Twin {
    content: EncryptingKey,
    tweak: EncryptingKey,
}

impl Twin {
    fn new(key: &[u8; Xts::KEY_BYTES]) -> Twin {
        let half = |half: &[u8]| EncryptingKey::ecb(UnboundCipherKey::new(&AES_256, half).unwrap()).unwrap();
        Twin { content: half(&key[..32]), tweak: half(&key[32..]) }
    }

    fn encrypt(&self, tweak: [u8; TWEAK_BYTES], block: &[u8]) -> Vec<u8> {
        let aes = |key: &EncryptingKey, value: u128| {
            let mut bytes = value.to_le_bytes();
            key.encrypt(&mut bytes).unwrap();
            u128::from_le_bytes(bytes)
        };
        let mut mask = aes(&self.tweak, u128::from_le_bytes(tweak));
        let mut encrypted = Vec::new();
        for piece in block.chunks_exact(16) {
            let value = u128::from_le_bytes(piece.try_into().unwrap());
            encrypted.extend((aes(&self.content, value ^ mask) ^ mask).to_le_bytes());
            mask = mask << 1 ^ if mask >> 127 == 1 { 0x87 } else { 0 };
        }
        encrypted
    }
}

fn key(random: &mut Random) -> [u8; Xts::KEY_BYTES] {
    let mut key = [0; Xts::KEY_BYTES];
    random.fill(&mut key);
    key
}

fn number(random: &mut Random) -> u64 {
    random.below(1 << 31) << 33 | random.below(1 << 31) << 2 | random.below(4)
}

#[test]
fn vectors_of_ieee_1619_and_of_nist() {
    let vectors = vectors::read(include_str!("../../vectors/xts.txt"));
    assert_eq!(vectors.len(), 10);
    for vector in &vectors {
        let (key, tweak, plain, encrypted) = (vector.array("KEY"), vector.array("TWEAK"), vector.get("IN"), vector.get("OUT"));
        for (direction, from, to) in [(ENCRYPT, plain, encrypted), (DECRYPT, encrypted, plain)] {
            let (mut context, mut out) = (Context::new(&key, direction), vec![0; from.len()]);
            context.copy(&tweak, from, &mut out);
            assert_eq!(out, to);
            out.copy_from_slice(from);
            context.in_place(&tweak, &mut out);
            assert_eq!(out, to, "in place");
        }
    }
}

/// One cipher is used for blocks of all lengths and in both directions in any order.
#[test]
fn the_cipher_equals_its_twin() {
    let random = &mut Random::new(45);
    for _ in 0..4 {
        let key = key(random);
        let (mut cipher, twin) = (Xts::new(&key), Twin::new(&key));
        for _ in 0..64 {
            let units = 1 + random.index(MAX_UNITS);
            let plain = random.bytes(units * UNIT);
            let tweak = Tweak { address: number(random), block: number(random) };
            let mut out = vec![0; plain.len()];
            cipher.encrypt(tweak, &plain, &mut out);
            let encrypted = out.clone();
            assert_eq!(encrypted, twin.encrypt(tweak.bytes(), &plain), "{tweak:?}");
            cipher.decrypt_in_place(tweak, &mut out);
            assert_eq!(out, plain, "{tweak:?}");
            cipher.encrypt_in_place(tweak, &mut out);
            assert_eq!(out, encrypted, "{tweak:?}");
            out.fill(0);
            cipher.decrypt(tweak, &encrypted, &mut out);
            assert_eq!(out, plain, "{tweak:?}");
        }
    }
}

/// The address sanitizer does not see writes of assembly.
#[test]
fn nothing_beside_the_target_is_written() {
    const GUARD: usize = 256;
    let random = &mut Random::new(5);
    let mut cipher = Xts::new(&key(random));
    let tweak = Tweak { address: 1, block: 1 };
    for length in (1..=MAX_UNITS).map(|units| units * UNIT) {
        let from = random.bytes(length);
        let mut to = vec![0xee; length + 2 * GUARD];
        let middle = GUARD..GUARD + length;
        cipher.encrypt(tweak, &from, &mut to[middle.clone()]);
        cipher.decrypt_in_place(tweak, &mut to[middle.clone()]);
        assert_eq!(to[middle.clone()], from);
        cipher.encrypt_in_place(tweak, &mut to[middle.clone()]);
        cipher.decrypt(tweak, &from, &mut to[middle.clone()]);
        assert!([&to[..GUARD], &to[GUARD + length..]].concat().iter().all(|byte| *byte == 0xee), "{length}");
    }
}

#[test]
fn each_bit_of_the_tweak_changes_each_piece() {
    let mut cipher = Xts::new(&key(&mut Random::new(3)));
    let plain = [7; 512];
    let mut encrypted = |tweak: Tweak| {
        let mut out = [0; 512];
        cipher.encrypt(tweak, &plain, &mut out);
        out
    };
    let tweak = Tweak { address: 0x1234_5678_9abc, block: 77 };
    assert_eq!(tweak.bytes()[..9], [0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0, 0, 77]);
    let first = encrypted(tweak);
    for bit in 0..64 {
        let (address, block) = (tweak.address ^ 1 << bit, tweak.block ^ 1 << bit);
        for other in [Tweak { address, ..tweak }, Tweak { block, ..tweak }] {
            let other = encrypted(other);
            assert!(first.chunks(16).zip(other.chunks(16)).all(|(a, b)| a != b), "bit {bit}");
        }
    }
}

#[test]
fn other_lengths_than_those_of_blocks_are_refused() {
    let mut cipher = Xts::new(&key(&mut Random::new(4)));
    let tweak = Tweak { address: 1, block: 1 };
    let mut refused = |length: usize| {
        let mut bytes = vec![0; length];
        let encrypted = catch_unwind(AssertUnwindSafe(|| cipher.encrypt_in_place(tweak, &mut bytes))).is_err();
        let decrypted = catch_unwind(AssertUnwindSafe(|| cipher.decrypt_in_place(tweak, &mut bytes))).is_err();
        assert_eq!(encrypted, decrypted);
        encrypted
    };
    for length in [0, 16, 511, 513, 4095, 4096 + 16, 4096 + 512] {
        assert!(refused(length), "{length}");
    }
    assert!((1..=8).all(|units| !refused(units * 512)));
    let copied = catch_unwind(AssertUnwindSafe(|| cipher.encrypt(tweak, &[0; 1024], &mut [0; 512])));
    assert!(copied.is_err(), "a shorter target");
}

#[test]
#[should_panic(expected = "whose halves are equal")]
fn equal_halves_are_refused() {
    drop(Xts::new(&[5; Xts::KEY_BYTES]));
}

#[test]
fn a_cipher_may_go_to_another_thread() {
    let random = &mut Random::new(6);
    let key = key(random);
    let (mut cipher, plain) = (Xts::new(&key), random.bytes(4096));
    let tweak = Tweak { address: 9, block: 8 };
    let encrypted = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut out = vec![0; plain.len()];
            cipher.encrypt(tweak, &plain, &mut out);
            drop(cipher);
            out
        });
        other.join().unwrap()
    });
    assert_eq!(encrypted, Twin::new(&key).encrypt(tweak.bytes(), &plain));
}
