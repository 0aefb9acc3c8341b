//! Time of the ciphers for a block of 4 KiB, on one processor, with everything in its caches: the cost
//! of encryption for each block read or written. `cargo bench -p millpond-cipher`.
//!
//! `OPENSSL_ia32cap=:~0x600c0230000` in the environment shows it for processors without VAES, those
//! before about 2020.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a bench reads the clock, and prints what it measured"
)]

use std::hint::black_box;
use std::time::Instant;

use millpond_cipher::{Aead, DataKey, Domain, KeySpan, NONCE_BYTES, TAG_BYTES, Tweak, Xts};
use millpond_testing::Random;

const BLOCK: usize = 4096;
/// Calls of a measurement.
const CALLS: u64 = 20_000;
const REPETITIONS: usize = 9;

/// Keys and buffers.
struct Bench {
    data_key: DataKey,
    xts: Xts,
    aead: Aead,
    from: Vec<u8>,
    to: Vec<u8>,
    /// The block, encrypted by `aead`, and its tag.
    encrypted: (Vec<u8>, [u8; TAG_BYTES]),
}

/// A case: its name, and one call with the number of the call.
type Case = (&'static str, fn(&mut Bench, u64));

const NONCE: [u8; NONCE_BYTES] = [3; NONCE_BYTES];
const CASES: [Case; 8] = [
    ("copy", |bench, _| bench.to.copy_from_slice(&bench.from)),
    ("XTS: encrypt", |bench, nth| bench.xts.encrypt(tweak(nth), &bench.from, &mut bench.to)),
    ("XTS: decrypt", |bench, nth| bench.xts.decrypt(tweak(nth), &bench.from, &mut bench.to)),
    ("XTS: encrypt in place", |bench, nth| bench.xts.encrypt_in_place(tweak(nth), &mut bench.to)),
    ("XTS: decrypt in place", |bench, nth| bench.xts.decrypt_in_place(tweak(nth), &mut bench.to)),
    ("XTS: derive a key", |bench, nth| {
        drop(black_box(bench.data_key.xts(Domain([1; 8]), KeySpan::of_chunk(nth << 24))));
    }),
    ("GCM-SIV: copy, encrypt", |bench, _| {
        bench.to.copy_from_slice(&bench.from);
        black_box(bench.aead.encrypt(NONCE, &[], &mut bench.to));
    }),
    ("GCM-SIV: copy, decrypt", |bench, _| {
        bench.to.copy_from_slice(&bench.encrypted.0);
        bench.aead.decrypt(NONCE, &[], &mut bench.to, &bench.encrypted.1).expect("its own tag");
    }),
];

fn tweak(nth: u64) -> Tweak {
    Tweak { address: nth, block: nth }
}

impl Bench {
    fn new() -> Bench {
        let data_key = DataKey::take(&mut [7; DataKey::BYTES]);
        let xts = data_key.xts(Domain([1; 8]), KeySpan::of_chunk(0));
        let (aead, from) = (Aead::new(&[9; Aead::KEY_BYTES]), Random::new(1).bytes(BLOCK));
        let mut encrypted = from.clone();
        let tag = aead.encrypt(NONCE, &[], &mut encrypted);
        Bench { data_key, xts, aead, from, to: vec![0; BLOCK], encrypted: (encrypted, tag) }
    }

    /// Returns the time of a call in nanoseconds.
    fn measure(&mut self, call: fn(&mut Bench, u64)) -> f64 {
        let begun = Instant::now();
        for nth in 0..CALLS {
            call(self, nth);
            black_box(&self.to);
        }
        begun.elapsed().as_secs_f64() * 1e9 / CALLS as f64
    }
}

fn main() {
    let mut bench = Bench::new();
    let mut figures = CASES.map(|_| Vec::new());
    for _ in 0..REPETITIONS {
        // in turns, so that what changes slowly affects all
        for ((_, call), figures) in CASES.iter().zip(&mut figures) {
            figures.push(bench.measure(*call));
        }
    }
    println!("| 4 KiB | ns, median | ns, least |");
    println!("|---|---|---|");
    for ((name, _), figures) in CASES.iter().zip(&mut figures) {
        figures.sort_by(f64::total_cmp);
        println!("| {name} | {:.0} | {:.0} |", figures[REPETITIONS / 2], figures[0]);
    }
}
