//! Longest duration of a call of the engine, in a pool of a thousand volumes and ten thousand
//! snapshots: guests wait for it. Prints processor time by phase: `MILLPOND_BENCH=1 cargo test
//! --release -p millpond-engine --test engine turns -- --nocapture`.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "a bench is asked for, and prints what it measured")]

use std::time::Duration;

use millpond_block::Op;
use millpond_engine::{CatalogCommand, Command, Compression, Engine, Layout, SnapshotId, Target, Time, Tuning, VolumeId, VolumeOptions};
use rustix::time::{ClockId, clock_gettime};

use crate::harness::Harness;

const VOLUMES: u64 = 1000;
const SNAPSHOTS: u64 = 10;
const BLOCK: usize = 4096;

fn spent<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let begin = now();
    let result = call();
    (result, now() - begin)
}

/// A harness whose calls are timed.
struct Timed {
    harness: Harness,
    calls: Vec<(Duration, &'static str)>,
}

impl Timed {
    fn call<T>(&mut self, what: &'static str, call: impl FnOnce(&mut Harness) -> T) -> T {
        let (result, time) = spent(|| call(&mut self.harness));
        self.calls.push((time, what));
        result
    }

    /// Runs turns until nothing is left to do; device operations are not timed.
    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            self.harness.now += 1;
            let now = Time(self.harness.now);
            let more = self.call("turn", |harness| harness.engine.turn(now));
            let mut any = false;
            while let Some(io) = self.harness.engine.pop_io() {
                any = true;
                self.harness.perform(io);
            }
            if !more && !any {
                return;
            }
        }
        panic!("no rest: {}", self.harness.engine.space_report());
    }

    fn command(&mut self, command: impl Into<Command>) {
        let command = command.into();
        self.call("command", |harness| harness.start(command));
        self.settle();
        self.harness.engine.pop_reply().expect("a reply").1.expect("done");
    }

    /// Writes blocks, sixteen at a time. Returns the number of refused writes.
    fn write(&mut self, blocks: impl Iterator<Item = (VolumeId, u64)>, byte: u8) -> usize {
        let mut refused = 0;
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            for (volume, block) in blocks.by_ref().take(16) {
                self.call("write", |harness| harness.write(Target::Head(volume), block * BLOCK as u64, &[byte; BLOCK]));
            }
            self.settle();
            while let Some(done) = self.harness.engine.pop_completion() {
                refused += usize::from(done.result.is_err());
            }
        }
        refused
    }

    /// Prints the longest calls since the last phase.
    fn phase(&mut self, name: &str) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_unstable();
        let at = |part: f64| calls[((calls.len() - 1) as f64 * part) as usize].0.as_secs_f64() * 1e3;
        let longest: Vec<String> =
            calls.iter().rev().take(3).map(|(time, what)| format!("{what} {:.2}", time.as_secs_f64() * 1e3)).collect();
        println!("{name}: {} calls, median {:.3} ms, 99.9 % {:.2} ms, longest {}", calls.len(), at(0.5), at(0.999), longest.join(", "));
    }
}

#[test]
fn turns_of_a_pool_with_many_of_everything() {
    if std::env::var_os("MILLPOND_BENCH").is_none() {
        return;
    }
    let mut timed = Timed { harness: Harness::with(&[6 << 10], Layout::Linear, Tuning::default()), calls: Vec::new() };
    let volumes: Vec<VolumeId> = (0..VOLUMES)
        .map(|nth| {
            let volume = timed.harness.volume(&format!("disk{nth}"), 64 << 20, Compression::Off);
            let options = VolumeOptions { reservation: 1 << 20, ..VolumeOptions::default() };
            timed.command(CatalogCommand::SetOptions { volume, options });
            volume
        })
        .collect();
    timed.phase("1,000 volumes with reservations");
    for nth in 0..SNAPSHOTS {
        timed.write(volumes.iter().flat_map(|volume| [nth, nth + 1, 100 + nth * 7].map(|block| (*volume, block))), nth as u8 + 1);
        let targets = |volume: &VolumeId| (*volume, format!("s{nth}"));
        if nth % 2 == 0 {
            for group in volumes.chunks(250) {
                timed.command(CatalogCommand::Snapshot {
                    targets: group.iter().map(targets).collect(),
                    description: String::new(),
                    expires: None,
                    lock_millis: None,
                });
            }
        } else {
            for volume in &volumes {
                timed.command(CatalogCommand::Snapshot {
                    targets: vec![targets(volume)],
                    description: String::new(),
                    expires: None,
                    lock_millis: None,
                });
            }
        }
    }
    timed.phase("10,000 snapshots, half of them of 250 volumes at one instant");
    timed.command(Command::Checkpoint);
    timed.phase("a checkpoint");
    timed.write((0..20_000u64).map(|nth| (volumes[(nth * 7919 % VOLUMES) as usize], nth * 31 % 16_000)), 99);
    timed.phase("20,000 writes all over");
    let old: Vec<SnapshotId> = timed.harness.engine.snapshots().iter().filter(|found| found.name == "s3").map(|found| found.id).collect();
    for batch in [&old[..1], &old[1..]] {
        timed.command(CatalogCommand::DestroySnapshots { snapshots: batch.to_vec() });
        timed.phase(&format!("{} snapshots destroyed", batch.len()));
    }
    for volume in &volumes[..50] {
        timed.command(CatalogCommand::DestroyVolume { volume: *volume });
    }
    timed.phase("50 volumes with their snapshots destroyed");
    let many = volumes[50];
    for nth in 0..10_000u64 {
        timed.write([(many, nth % 64), (many, nth * 17 % 16_000)].into_iter(), nth as u8);
        timed.command(CatalogCommand::Snapshot {
            targets: vec![(many, format!("n{nth}"))],
            description: String::new(),
            expires: None,
            lock_millis: None,
        });
    }
    timed.phase("10,000 snapshots of one volume");
    let odd: Vec<SnapshotId> = timed.harness.engine.snapshots().iter().filter(|s| s.volume == many).map(|s| s.id).step_by(2).collect();
    timed.command(CatalogCommand::DestroySnapshots { snapshots: odd });
    timed.phase("every second one of them destroyed at once");
    timed.harness.request(Target::Head(many), Op::Flush, 0, 0, &[]).expect("flushed");
    timed.harness.engine = Engine::import(
        timed
            .harness
            .media
            .iter()
            .map(|m| millpond_block::DeviceGeometry { size: m.len() as u64, logical_sector: 512, physical_sector: 4096 })
            .collect(),
        timed.harness.tuning.clone(),
        Time(timed.harness.now),
    );
    timed.settle();
    timed.phase("import");
    timed.command(CatalogCommand::DestroyVolume { volume: many });
    timed.phase("that volume destroyed");
    let mut refused = 0;
    for (nth, round) in volumes[51..].chunks(100).enumerate() {
        refused += timed.write(round.iter().flat_map(|volume| (0..16_000).map(|block| (*volume, block))), nth as u8);
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "it is full: {}", timed.harness.engine.space_report());
    timed.phase("filled to the end");
    timed.write((0..5_000u64).map(|nth| (volumes[51 + (nth * 7919 % 900) as usize], nth * 31 % 16_000)), 99);
    timed.phase("5,000 writes when it is full");
    for volume in &volumes[51..151] {
        timed.command(CatalogCommand::DestroyVolume { volume: *volume });
    }
    timed.phase("100 volumes of a full pool destroyed");
    timed.command(Command::Close);
    timed.phase("closed");
}
