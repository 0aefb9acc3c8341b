//! Compares the model with the results of CrystalDiskMark 8 for both drives (C-cdm), under the same
//! load and without a real clock.

use super::super::{Drive, Model};
use super::*;
use crate::load::Rng;

/// Size of the test file in bytes.
const SPAN: u64 = 4 << 30;
/// Time from an answer to the next request.
const TURN: Nanos = 30_000;

/// Returns MB/s of a load with `depth` requests in flight, over five seconds after a warm-up
/// second.
fn mb_s(model: &str, op: Op, block: u64, depth: u64, random: bool) -> f64 {
    const SECOND: Nanos = 1_000_000_000;
    let mut drive = Drive::new(&model.parse::<Model>().unwrap(), SPAN);
    let mut rng = Rng::new(7);
    let mut next = 0;
    let mut pick = |id: u64| {
        next += 1;
        let index = if random { rng.below(SPAN / block) } else { next % (SPAN / block) };
        Request { id, op, offset: index * block, length: block }
    };
    (0..depth).for_each(|id| drive.submit(0, pick(id)));
    let (mut done, mut bytes) = (Vec::new(), 0);
    while let Some(at) = drive.next() {
        drive.advance(at, &mut done);
        for done in done.drain(..) {
            if (SECOND..6 * SECOND).contains(&done.at) {
                bytes += block;
            }
            if done.at < 6 * SECOND {
                drive.submit(done.at + TURN, pick(done.id));
            }
        }
    }
    bytes as f64 / 5e6
}

#[test]
fn both_drives_show_their_published_figures() {
    let cases = [(1u64 << 20, 8, false), (1 << 20, 1, false), (4096, 32, true), (4096, 1, true)];
    let published = [
        ("mn08aca14t", Op::Read, [271.152, 270.276, 1.785, 0.658]),
        ("mn08aca14t", Op::Write, [255.845, 83.587, 1.137, 0.619]),
        ("st14000nm001g", Op::Read, [281.158, 279.057, 2.137, 0.721]),
        ("st14000nm001g", Op::Write, [270.648, 274.467, 13.794, 8.230]),
    ];
    let mut wrong = Vec::new();
    for (model, op, figures) in published {
        for ((block, depth, random), figure) in cases.into_iter().zip(figures) {
            let here = mb_s(model, op, block, depth, random);
            let ratio = here / figure;
            eprintln!("{model} {op:?} {block} q{depth}: {here:.3} of {figure}: {ratio:.2}");
            if ratio.max(1.0 / ratio) > 1.1 {
                wrong.push(format!("{model} {op:?} {block} q{depth}: {here:.3} instead of {figure} MB/s"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const SLOW: SpindleShape = SpindleShape {
    revolution: 8_000_000,
    rate: 250_000_000,
    capacity: 1 << 40,
    read_settle: 1_000_000,
    write_settle: 1_000_000,
    full_seek: 0,
    read_depth: 32,
    write_depth: 32,
    bus: 500_000_000,
    command: 10_000,
    answer: 0,
    cache: Some(CacheShape { bytes: 1 << 20, accept: 100_000, aside: u64::MAX }),
};

/// Returns the completions of requests that arrive at the same time.
fn answers(requests: &[(Op, u64, u64)]) -> Vec<(u64, Nanos)> {
    let mut drive = Spindle::new(SLOW);
    for (id, (op, offset, length)) in (0..).zip(requests) {
        drive.submit(0, Request { id, op: *op, offset: *offset, length: *length });
    }
    let mut done = Vec::new();
    drive.advance(Nanos::MAX, &mut done);
    done.sort_by_key(|d| d.id);
    done.into_iter().map(|d| (d.id, d.at)).collect()
}

#[test]
fn a_flush_waits_for_the_platter_and_a_cached_write_does_not() {
    let track = 2_000_000;
    let found = answers(&[(Op::Write, 7 * track + 500_000, 4096), (Op::Flush, 0, 0)]);
    assert_eq!(found[0].1, 100_000 + 8_192);
    // the seek ends within a quarter of a revolution; then the block passes the head
    assert_eq!(found[1].1, 2_000_000 + 16_384 + 10_000);
}

#[test]
fn a_full_cache_makes_writes_wait() {
    let found = answers(&[(Op::Write, 0, 1 << 20), (Op::Write, 1 << 20, 1 << 20)]);
    let first_is_written = transfer(1 << 20, SLOW.rate);
    assert!(found[1].1 >= first_is_written + 100_000, "{found:?}");
}

#[test]
fn what_is_cached_is_read_at_once() {
    let found = answers(&[(Op::Write, 1 << 30, 65536), (Op::Read, 1 << 30, 4096)]);
    assert!(found[1].1 < 100_000, "{found:?}");
}

#[test]
fn the_nearest_goes_first() {
    let track = 2_000_000;
    let found = answers(&[(Op::Read, 0, 4096), (Op::Read, 3 * track + 1_500_000, 4096), (Op::Read, 5 * track + 500_000, 4096)]);
    assert!(found[2].1 < found[1].1, "{found:?}");
}
