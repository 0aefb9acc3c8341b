//! Replay of the committed corpus, and a short fuzz run: streams with flipped bits, extreme numbers,
//! cut ends, and frames that are removed, repeated and swapped.

use std::path::PathBuf;

use jiff::Timestamp;
use millpond_api::{VolumeCache, VolumeCompression, VolumeSector};
use millpond_testing::Random;

use super::*;
use crate::stream::StreamSnapshot;

/// Inputs of the run; `MILLPOND_FUZZ_INPUTS` sets another number.
const INPUTS: usize = 20_000;

fn snapshot(n: u64, blocks: u64) -> StreamSnapshot {
    StreamSnapshot {
        identity: SnapshotIdentity::new(&"5".repeat(32), n, n, 1_000 + n),
        name: format!("s{n}"),
        created: Timestamp::UNIX_EPOCH,
        description: String::new(),
        size: blocks * BLOCK,
    }
}

/// Writes a stream of two snapshots, on a base or whole.
fn stream(compression: VolumeCompression, on_base: bool, position: u64) -> Vec<u8> {
    let head = StreamHead {
        volume: "tank/v".to_owned(),
        sector: VolumeSector::S512e,
        cache: VolumeCache::Writeback,
        compression,
        base: on_base.then(|| snapshot(1, 4)),
        snapshots: vec![snapshot(2, 6), snapshot(3, 3)],
    };
    let block = |value: u8| vec![value; BLOCK as usize];
    let mut out = FrameWriter::new(Vec::new(), &head).expect("memory");
    let mut write = || -> std::io::Result<()> {
        out.snapshot(0, position)?;
        out.data(position, &block(1))?;
        out.data(position + BLOCK, &[block(2), block(0)].concat())?;
        out.zero(5 * BLOCK, BLOCK)?;
        out.complete(0)?;
        out.snapshot(1, 0)?;
        out.zero(0, 2 * BLOCK)?;
        out.data(2 * BLOCK, &block(3))?;
        out.complete(1)
    };
    write().expect("memory");
    out.end().expect("memory")
}

/// Valid inputs.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    use VolumeCompression::{Lz4, Off, Zstd};
    let input = |how: u8, stream: Vec<u8>| [vec![how], stream].concat();
    vec![
        ("whole-plain", input(0, stream(Off, false, 0))),
        ("whole-lz4", input(TURNS, stream(Lz4, false, 0))),
        ("whole-zstd", input(RESEAL, stream(Zstd, false, 0))),
        ("changes-lz4", input(HAS_BASE, stream(Lz4, true, 0))),
        ("changes-turns", input(HAS_BASE | TURNS | RESEAL, stream(Lz4, true, 0))),
        ("changes-without-base", input(RESEAL, stream(Lz4, true, 0))),
        ("rest-lz4", input(HAS_BASE | RESEAL, stream(Lz4, true, 2 * BLOCK))),
    ]
}

/// Inputs of the corpus: valid ones, and one for each kind of damage.
fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = samples();
    let valid = all[3].1.clone();
    let at: Vec<usize> = borders(&valid[1..]).iter().map(|at| at + 1).collect();
    let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut input = valid.clone();
        input[0] |= RESEAL;
        change(&mut input);
        input
    };
    let number = |place: usize, value: u64| resealed(&|input| input[place..place + 8].copy_from_slice(&value.to_le_bytes()));
    all.extend([
        ("empty", Vec::new()),
        ("nothing-came", vec![0]),
        ("another-file", vec![0; 100]),
        ("later-version", [&valid[..13], &[2], &valid[14..]].concat()),
        ("wrong-checksum", [&valid[..at[2] + 3], &[0xff], &valid[at[2] + 4..]].concat()),
        ("cut-in-a-frame", valid[..at[3] + 40].to_vec()),
        ("cut-between-frames", resealed(&|input| input.truncate(at[4]))),
        ("head-cut", resealed(&|input| input.truncate(at[0] + 100))),
        ("head-longer-than-all", number(at[0] + 4, u64::from(u32::MAX))),
        ("offset-overflows", number(at[2] + 8, u64::MAX - BLOCK + 1)),
        ("length-overflows", number(at[2] + 16, u64::MAX - BLOCK + 1)),
        ("data-of-a-gigabyte", number(at[2] + 16, 1 << 30)),
        ("unknown-kind", resealed(&|input| input[at[2]] = 9)),
        ("unknown-compression", resealed(&|input| input[at[2] + 1] = 9)),
        ("snapshot-out-of-range", number(at[1] + 8, 2)),
        ("snapshot-left-out", resealed(&|input| drop(input.drain(at[1]..at[6])))),
        ("frame-twice", resealed(&|input| drop(input.splice(at[3]..at[3], valid[at[2]..at[3]].to_vec())))),
        ("begins-with-the-second", resealed(&|input| drop(input.drain(at[1]..at[7])))),
    ]);
    all
}

/// Returns where the frames of a stream begin, and its end.
fn borders(stream: &[u8]) -> Vec<usize> {
    let (mut at, mut all) = (16, vec![16]);
    while let Some(stored) = stream.get(at + 4..at + 8) {
        at += 32 + u32::from_le_bytes(stored.try_into().expect("four")) as usize;
        all.push(at.min(stream.len()));
    }
    all
}

/// Damages an input.
fn damage(input: &mut Vec<u8>, foreign: &[u8], random: &mut Random) {
    if input.len() < 64 {
        return;
    }
    // the head of a stream and most heads of frames are near the borders of frames
    let borders: Vec<usize> = borders(&input[1..]).iter().map(|at| at + 1).collect();
    let place = |random: &mut Random, length: usize| match random.index(3) {
        0 => random.index(length),
        1 => (borders[random.index(borders.len())] + random.index(32)).min(length - 1),
        _ => (borders[0] + random.index(900)).min(length - 1),
    };
    let length = input.len();
    let frame = |random: &mut Random| {
        let n = random.index(borders.len() - 1);
        (borders[n].min(length), borders[n + 1].min(length))
    };
    match random.index(8) {
        0 | 1 => (0..=random.index(3)).for_each(|_| {
            let at = place(random, length);
            input[at] ^= 1 << random.index(8);
        }),
        2 => {
            let absurd = [u64::MAX, 1 << 63, 1 << 60, 1 << 40, 1 << 30, 1 << 20, BLOCK, 0][random.index(8)].to_le_bytes();
            let at = borders[random.index(borders.len())] + [0, 4, 8, 16][random.index(4)];
            input.iter_mut().skip(at).zip(&absurd).for_each(|(byte, new)| *byte = *new);
        }
        3 => input.truncate(1 + random.index(length)),
        4 => drop(input.drain(frame(random).0..)),
        5 => {
            let (from, to) = frame(random);
            input.drain(from..to);
        }
        6 => {
            let (from, to) = frame(random);
            let copy = input[from..to].to_vec();
            let at = frame(random).0;
            input.splice(at..at, copy);
        }
        _ => {
            let (from, at) = (random.index(foreign.len()), place(random, length));
            let count = random.index(600);
            input.iter_mut().skip(at).zip(foreign[from..].iter().take(count)).for_each(|(byte, new)| *byte = *new);
        }
    }
}

#[test]
fn samples_are_received() {
    for (name, input) in samples() {
        let wanted = if name == "rest-lz4" || name == "changes-without-base" { Verdict::ReadOnly } else { Verdict::Received };
        assert_eq!(fuzz_stream(&input), wanted, "{name}");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the number of inputs is given to a long run")]
fn damaged_streams_are_refused_or_received_as_they_are() {
    let inputs = std::env::var("MILLPOND_FUZZ_INPUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(INPUTS);
    let samples = samples();
    let mut random = Random::new(1);
    let mut counts = [0usize; 4];
    for round in 0..inputs {
        let mut input = samples[random.index(samples.len())].1.clone();
        let foreign = &samples[random.index(samples.len())].1;
        for _ in 0..=random.index(3) {
            damage(&mut input, foreign, &mut random);
        }
        if round % 4 != 0 {
            input[0] |= RESEAL;
        }
        let verdict = std::panic::catch_unwind(|| fuzz_stream(&input));
        assert!(verdict.is_ok(), "round {round}: {} bytes", input.len());
        counts[verdict.expect("no panic") as usize] += 1;
    }
    assert!(counts.iter().all(|n| *n > inputs / 100), "the damage is too kind or too wild: {counts:?}");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "reads the committed corpus")]
fn the_corpus_of_streams_passes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/snapshot_stream");
    if std::env::var_os("MILLPOND_WRITE_CORPUS").is_some() {
        corpus().iter().for_each(|(name, input)| std::fs::write(folder.join(name), input).expect("written"));
    }
    let mut counts = [0usize; 4];
    for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let verdict = std::panic::catch_unwind(|| fuzz_stream(&bytes));
        assert!(verdict.is_ok(), "{}", path.display());
        counts[verdict.expect("no panic") as usize] += 1;
    }
    assert!(counts.iter().all(|n| *n > 0), "{counts:?} files in {}", folder.display());
}
