//! Requests per second that the engine carries on one thread, over a device in memory: the bound of
//! a pool whatever its devices, protocols and other processors do. `cargo bench -p millpond-engine`.
//!
//! The time of the device, which copies bytes, is measured apart and not counted. Checksums are the
//! engine's work; they are timed apart over blocks of the same size that were copied just before, as
//! in the engine, and shown beside its time.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a bench reads the clock, and prints what it measured"
)]

use std::time::{Duration, Instant};

use millpond_block::{ByteRange, CacheMode, DeviceGeometry, Io, IoDone, IoKind, Op, Payload, Request, SectorProfile, Tag};
use millpond_engine::{CatalogCommand, Command, Compression, Engine, GroupSpec, Layout, PoolId, PoolSpec, Reply, Target, Time, Tuning};
use millpond_format::crc32c;
use millpond_testing::Random;

const DEVICE: usize = 2 << 30;
const VOLUME: u64 = 256 << 20;
/// Length of a measurement.
const TIME: Duration = Duration::from_millis(700);
const REPETITIONS: usize = 5;
/// Requests in flight.
const DEPTHS: [u64; 3] = [1, 32, 128];

/// The engine and its device.
struct Pool {
    engine: Engine,
    media: Vec<u8>,
    now: u64,
    tag: u64,
    /// A volume for small requests, and one for large ones, whose blocks stay next to each other.
    targets: Vec<Target>,
    /// Time of the device.
    device: Duration,
    random: Random,
}

/// A case, and its results: seconds of the engine for a request, by repetition.
struct Case {
    op: Op,
    bytes: u64,
    depth: u64,
    seconds: Vec<f64>,
}

impl Pool {
    fn new() -> Pool {
        let geometry = DeviceGeometry { size: DEVICE as u64, logical_sector: 512, physical_sector: 4096 };
        let spec = PoolSpec {
            name: "bench".into(),
            id: PoolId([7; 16]),
            groups: vec![GroupSpec::data(Layout::Linear)],
            extent_bytes: None,
            features: true,
        };
        let engine = Engine::create(spec, vec![geometry], Tuning::default(), Time(1)).expect("a pool");
        let (media, random) = (vec![0; DEVICE], Random::new(5));
        let mut pool = Pool { engine, media, now: 1, tag: 1, targets: Vec::new(), device: Duration::ZERO, random };
        pool.settle();
        for name in ["small", "large"] {
            let create = CatalogCommand::CreateVolume {
                name: name.into(),
                size: VOLUME,
                sector: SectorProfile::S512e,
                cache: CacheMode::Writeback,
                compression: Compression::Off,
            };
            pool.engine.command(Tag(1), Command::Catalog(create));
            pool.settle();
            let Some((_, Ok(Reply::Volume(volume)))) = pool.engine.pop_reply() else { panic!("no volume") };
            pool.targets.push(Target::Head(volume));
        }
        // every byte of the device is touched, and the volumes are written in order
        for nth in 0..8 {
            for at in (0..VOLUME).step_by(64 << 10) {
                pool.submit(nth % 2, Op::Write, at, &vec![(at >> 16) as u8; 64 << 10]);
                pool.step();
            }
        }
        pool.settle();
        pool
    }

    fn submit(&mut self, volume: usize, op: Op, offset: u64, bytes: &[u8]) {
        self.tag += 1;
        let request = Request { op, range: ByteRange { offset, length: bytes.len() as u64 }, fua: false };
        let payload = if op == Op::Write { Payload::Copy(bytes) } else { Payload::None };
        self.engine.submit(self.targets[volume], Tag(self.tag), request, payload);
    }

    fn perform(&mut self, io: Io) {
        let mut back = None;
        match io.kind {
            IoKind::Read { offset, length, mut buf } => {
                buf.bytes_mut()[..length].copy_from_slice(&self.media[offset as usize..offset as usize + length]);
                back = Some(buf);
            }
            IoKind::Write { offset, pieces } => {
                let mut at = offset as usize;
                for piece in pieces {
                    self.media[at..at + piece.len()].copy_from_slice(piece.bytes());
                    at += piece.len();
                }
            }
            IoKind::Zero { offset, length } => self.media[offset as usize..(offset + length) as usize].fill(0),
            IoKind::Flush | IoKind::Discard { .. } => {}
        }
        self.engine.io_done(IoDone { id: io.id, result: Ok(()), buf: back });
    }

    /// Performs what the engine wants of its device; returns whether that was anything.
    fn carry_out(&mut self) -> bool {
        let ios: Vec<Io> = std::iter::from_fn(|| self.engine.pop_io()).collect();
        let any = !ios.is_empty();
        let begun = Instant::now();
        ios.into_iter().for_each(|io| self.perform(io));
        self.device += begun.elapsed();
        any
    }

    /// Runs a turn as the daemon does: requests first, then other work. Returns the number of answers.
    fn step(&mut self) -> u64 {
        self.engine.answer(Time(self.now));
        while self.carry_out() {
            self.engine.answer(Time(self.now));
        }
        let mut answers = 0;
        while let Some(done) = self.engine.pop_completion() {
            self.engine.buffers().give_data(done.result.expect("success"));
            answers += 1;
        }
        self.engine.turn(Time(self.now));
        self.carry_out();
        answers
    }

    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            self.now += 1;
            let more = self.engine.turn(Time(self.now));
            let any = self.carry_out();
            while self.engine.pop_completion().is_some() {}
            if !more && !any {
                return;
            }
        }
        panic!("no rest");
    }

    /// Returns the engine's time for a request, in seconds.
    fn measure(&mut self, case: &Case) -> f64 {
        let payload = vec![self.random.index(255) as u8; case.bytes as usize];
        let (mut flying, mut answered) = (0, 0);
        self.device = Duration::ZERO;
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            self.now = 1_000_000 + begun.elapsed().as_millis() as u64;
            while flying < case.depth {
                let at = self.random.index((VOLUME / case.bytes) as usize) as u64 * case.bytes;
                self.submit(usize::from(case.bytes > 4096), case.op, at, &payload);
                flying += 1;
            }
            let answers = self.step();
            (flying, answered) = (flying - answers, answered + answers);
        }
        let time = begun.elapsed().saturating_sub(self.device);
        while flying > 0 {
            flying -= self.step();
        }
        time.as_secs_f64() / answered as f64
    }
}

/// Returns the time of the checksums of a request in seconds, of bytes that were just copied.
fn checksums(bytes: usize) -> f64 {
    const ROUNDS: usize = 20_000;
    let (from, mut to) = (vec![3; bytes], vec![0; bytes]);
    let mut time = Duration::ZERO;
    let mut sum = 0;
    for _ in 0..ROUNDS * 4096 / bytes {
        to.copy_from_slice(&from);
        let begun = Instant::now();
        sum ^= to.chunks(4096).map(crc32c).fold(0, |all, one| all ^ one);
        time += begun.elapsed();
    }
    std::hint::black_box(sum);
    time.as_secs_f64() / (ROUNDS * 4096 / bytes) as f64
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let mut pool = Pool::new();
    let cases = [(Op::Read, 4096), (Op::Write, 4096), (Op::Read, 64 << 10), (Op::Write, 64 << 10)];
    let mut cases: Vec<Case> =
        cases.iter().flat_map(|(op, bytes)| DEPTHS.map(|depth| Case { op: *op, bytes: *bytes, depth, seconds: Vec::new() })).collect();
    for _ in 0..REPETITIONS {
        // in turns, so that what changes slowly affects all
        for case in &mut cases {
            let seconds = pool.measure(case);
            case.seconds.push(seconds);
        }
    }
    println!("| request | in flight | per second | us | of it checksums, us | per second without checksums |");
    println!("|---|---|---|---|---|---|");
    for case in &mut cases {
        let mut sums: Vec<f64> = (0..REPETITIONS).map(|_| checksums(case.bytes as usize)).collect();
        let (all, sums) = (median(&mut case.seconds), median(&mut sums));
        println!(
            "| {} KiB {} | {} | {:.0} | {:.2} | {:.2} | {:.0} |",
            case.bytes >> 10,
            if case.op == Op::Read { "read" } else { "write" },
            case.depth,
            1.0 / all,
            all * 1e6,
            sums * 1e6,
            1.0 / (all - sums).max(1e-9),
        );
    }
}
