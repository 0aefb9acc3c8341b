//! `millpond-sim`: runs seeds, reports broken promises, and prints the command that repeats each.
#![forbid(unsafe_code)]
// The only file of the crate with a clock, threads and output. They belong to the caller, never to
// a world.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod buckets;
mod digests;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use millpond_block::CacheMode;
use millpond_engine::{Engine, Planted};
use millpond_sim::{FaultKind, Mode, Options, Outcome, Stats, quiet_panics, run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the storage engine over simulated devices, with faults and crashes, and judges every answer.
///
/// Exit status: 0 when nothing was found (with --planted: when the bug was found), 1 otherwise.
#[derive(Parser)]
#[command(name = "millpond-sim", version)]
struct Args {
    /// Run this seed
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "count", "soak", "planted"])]
    seed: Option<u64>,
    /// Print every event
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run the seeds from A up to but without B
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Run so many seeds
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// First seed of --count, --soak and --planted
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Run seeds for so long (90s, 10m, 2h)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    soak: Option<Duration>,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Go on after a finding
    #[arg(long)]
    keep_going: bool,
    /// Cut the power at every event of a short trace, instead of long worlds
    #[arg(long)]
    power_cut: bool,
    /// Plant a bug in the engine and prove that it is found; list: all the names
    #[arg(long, value_name = "NAME")]
    planted: Option<String>,
    /// Seeds within which a planted bug must be found
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_seeds: u64,
    /// This kind of fault in every world
    #[arg(long, value_name = "KIND", value_parser = fault)]
    fault: Option<FaultKind>,
    /// No faults but crashes
    #[arg(long, conflicts_with = "fault")]
    no_faults: bool,
    /// Pools of four times the size that are never filled up
    #[arg(long)]
    roomy: bool,
    /// Mirrors, and devices that come and go, in every world
    #[arg(long, conflicts_with = "fault")]
    mirrors: bool,
    /// Parity, and devices that come and go, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors"])]
    parity: bool,
    /// A cache, whose devices suffer anything, in every world
    #[arg(long)]
    caches: bool,
    /// Spares in every world, which take the places of devices that are lost
    #[arg(long, conflicts_with = "fault")]
    spares: bool,
    /// Devices are taken out of the pool, too, in every world
    #[arg(long, conflicts_with = "fault")]
    removals: bool,
    /// Groups are evened out and everything is read, in every world
    #[arg(long, conflicts_with = "fault")]
    work: bool,
    /// Chunk tables that fill a good part of a log, and a device that leaves, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes"])]
    long_tables: bool,
    /// Pools of thousands of segments that run full, and give space back, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables"])]
    full: bool,
    /// Writes after a checkpoint are damaged, and a rewind to the checkpoint is possible, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables", "full"])]
    rescue: bool,
    /// Daemons start again and import their pool by themselves, whatever devices have come by then, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables", "full", "rescue"])]
    restarts: bool,
    /// Caps of devices, limits of volumes and hosts that take the pool from each other, in every world
    #[arg(long, conflicts_with_all = ["long_tables", "full", "rescue", "restarts", "strict"])]
    gate: bool,
    /// Cache modes become stricter while requests are under way, in every world
    #[arg(long, conflicts_with_all = ["fault", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables", "full", "rescue", "restarts"])]
    strict: bool,
    /// Many clones that are promoted, in every world
    #[arg(long, conflicts_with_all = ["mirrors", "parity", "caches", "spares", "removals", "work", "long_tables", "full", "rescue", "restarts"])]
    clones: bool,
    /// Bases, whose blocks are fetched when they are read, and clones of them, in every world
    #[arg(long, conflicts_with_all = ["mirrors", "parity", "caches", "spares", "removals", "work", "long_tables", "full", "rescue", "restarts", "gate", "strict", "clones"])]
    bases: bool,
    /// Blocks are gathered, also those that snapshots share, in every world
    #[arg(long, conflicts_with_all = ["restarts", "gate", "bases"])]
    forwards: bool,
    /// The data class in a bucket, whose store is late, away and wrong, in every world
    #[arg(long, conflicts_with_all = ["parity", "long_tables"])]
    capacity: bool,
    /// Changes of the key table, in every world
    #[arg(long, conflicts_with_all = ["fault", "long_tables", "full", "rescue", "restarts", "strict", "clones", "bases"])]
    keys: bool,
    /// Devices behind a page cache, whose flushes fail, in every world
    #[arg(long, conflicts_with_all = ["fault", "no_faults", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables", "full", "rescue", "restarts", "gate", "strict", "clones", "bases", "keys"])]
    buffered: bool,
    /// Two hosts fight for the terms of a bucket, in every world
    #[arg(long, conflicts_with_all = ["fault", "no_faults", "roomy", "mirrors", "parity", "caches", "spares", "removals", "work", "power_cut", "bytes", "long_tables", "full", "rescue", "restarts", "gate", "strict", "clones", "bases", "buffered", "keys", "turn_limit", "compare", "record", "soak"])]
    buckets: bool,
    /// Cut the power at every event of roots that are written over those of a lap ago
    #[arg(long, requires = "power_cut")]
    laps: bool,
    /// Requests of any bytes, as files get them, in every world
    #[arg(long)]
    bytes: bool,
    /// A turn of the engine that takes its thread longer than so many milliseconds is a finding
    #[arg(long, value_name = "MS")]
    turn_limit: Option<u64>,
    /// Compare the digests of runs with those in a file: all in it, or those of this kind and these seeds
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "soak", "planted", "keep_going", "turn_limit", "record"])]
    compare: Option<PathBuf>,
    /// Write the digests of runs to a file: of this kind and these seeds, or again of all in it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "soak", "planted", "keep_going", "turn_limit"])]
    record: Option<PathBuf>,
    /// Length of worlds, per mille of the usual
    #[arg(long, value_name = "N", default_value_t = 1000)]
    scale: u64,
}

const PLANTED: [(&str, Planted); 61] = [
    ("skip-barrier", Planted::SkipBarrier),
    ("free-too-early", Planted::FreeTooEarly),
    ("apply-at-completion", Planted::ApplyAtCompletion),
    ("forget-deadlist-entry", Planted::ForgetDeadlistEntry),
    ("lose-discard-record", Planted::LoseDiscardRecord),
    ("cleaner-new-sequence", Planted::CleanerNewSequence),
    ("reuse-before-flush", Planted::ReuseBeforeFlush),
    ("skip-leveling", Planted::SkipLeveling),
    ("trust-cache", Planted::TrustCache),
    ("read-cache-by-place", Planted::ReadCacheByPlace),
    ("parity-from-rot", Planted::ParityFromRot),
    ("skim-one-copy", Planted::SkimOneCopy),
    ("late-answers-count", Planted::LateAnswersCount),
    ("lag-for-ever", Planted::LagForEver),
    ("old-table-counts", Planted::OldTableCounts),
    ("wipe-once", Planted::WipeOnce),
    ("free-piece-in-use", Planted::FreePieceInUse),
    ("stale-piece", Planted::StalePiece),
    ("cut-short", Planted::CutShort),
    ("crowd-the-log", Planted::CrowdTheLog),
    ("nothing-rests", Planted::NothingRests),
    ("deny-capacity", Planted::DenyCapacity),
    ("forget-reservations", Planted::ForgetReservations),
    ("nothing-unique", Planted::NothingUnique),
    ("forget-tags", Planted::ForgetTags),
    ("promote-keeps-deadlists", Planted::PromoteKeepsDeadlists),
    ("serve-unremembered", Planted::ServeUnremembered),
    ("trust-any-device", Planted::TrustAnyDevice),
    ("forget-left-behind", Planted::ForgetLeftBehind),
    ("join-apart", Planted::JoinApart),
    ("forget-new-labels", Planted::ForgetNewLabels),
    ("wait-for-nobody", Planted::WaitForNobody),
    ("hold-claims", Planted::HoldClaims),
    ("forget-held", Planted::ForgetHeld),
    ("leave-late", Planted::LeaveLate),
    ("burst-twice", Planted::BurstTwice),
    ("prepare-in-use", Planted::PrepareInUse),
    ("leave-given-up", Planted::LeaveGivenUp),
    ("loosen-under-way", Planted::LoosenUnderWay),
    ("trust-page-cache", Planted::TrustPageCache),
    ("leave-out-unasked", Planted::LeaveOutUnasked),
    ("gather-stale", Planted::GatherStale),
    ("forward-keeps-target", Planted::ForwardKeepsTarget),
    ("forward-forgotten", Planted::ForwardForgotten),
    ("codec-in-order", Planted::CodecInOrder),
    ("read-ahead-stale", Planted::ReadAheadStale),
    ("base-reads-zero", Planted::BaseReadsZero),
    ("base-clear-not-logged", Planted::BaseClearNotLogged),
    ("base-clear-whole", Planted::BaseClearWhole),
    ("base-fetch-by-order", Planted::BaseFetchByOrder),
    ("base-compare-hides", Planted::BaseCompareHides),
    ("base-forgotten", Planted::BaseForgotten),
    ("base-close-waits", Planted::BaseCloseWaits),
    ("base-entry-as-hole", Planted::BaseEntryAsHole),
    ("base-ahead-fails", Planted::BaseAheadFails),
    ("placed-early", Planted::PlacedEarly),
    ("bucket-by-order", Planted::BucketByOrder),
    ("placed-not-logged", Planted::PlacedNotLogged),
    ("meta-in-bucket", Planted::MetaInBucket),
    ("term-not-logged", Planted::TermNotLogged),
    ("gathered-twice", Planted::GatheredTwice),
];

fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    parsed.ok_or_else(|| "expected A..B, such as 0..1000".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.len() - text.chars().last().filter(|c| c.is_alphabetic()).map_or(0, char::len_utf8));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("expected a number and s, m or h, such as 10m".to_owned()),
    };
    number.parse::<u64>().map(|n| Duration::from_secs(n * factor)).map_err(|e| e.to_string())
}

fn fault(text: &str) -> Result<FaultKind, String> {
    let names = FaultKind::ALL.map(FaultKind::name).join(", ");
    FaultKind::ALL.into_iter().find(|k| k.name() == text).ok_or(format!("one of {names}"))
}

impl Args {
    fn mode(&self) -> Mode {
        if self.power_cut { Mode::PowerCut } else { Mode::World }
    }

    fn options(&self) -> Options {
        Options {
            trace: self.trace,
            faultless: self.no_faults,
            fault: self.fault,
            scale: self.scale,
            roomy: self.roomy,
            laps: self.laps,
            bytes: self.bytes,
            mirrors: self.mirrors,
            parity: self.parity,
            removals: self.removals,
            jobs: self.work,
            caches: self.caches,
            spares: self.spares,
            long_tables: self.long_tables,
            full: self.full,
            rescue: self.rescue,
            restarts: self.restarts,
            gate: self.gate,
            strict: self.strict,
            buffered: self.buffered,
            clones: self.clones,
            bases: self.bases,
            forwards: self.forwards,
            capacity: self.capacity,
            keys: self.keys,
            clock: self.turn_limit.map(|_| thread_time as fn() -> u64),
            ..Options::default()
        }
    }

    /// Returns the seeds that the options name, if they name any.
    fn named_seeds(&self) -> Option<Range<u64>> {
        let one = self.seed.map(|seed| seed..seed + 1);
        one.or_else(|| self.seeds.clone()).or_else(|| self.count.map(|count| self.from..self.from + count))
    }

    /// Returns the options that choose the kind of world, as words of a command line.
    fn kind(&self) -> Vec<String> {
        let flags = [
            ("--power-cut", self.power_cut),
            ("--roomy", self.roomy),
            ("--removals", self.removals),
            ("--work", self.work),
            ("--spares", self.spares),
            ("--caches", self.caches),
            ("--mirrors", self.mirrors),
            ("--parity", self.parity),
            ("--long-tables", self.long_tables),
            ("--full", self.full),
            ("--rescue", self.rescue),
            ("--restarts", self.restarts),
            ("--gate", self.gate),
            ("--strict", self.strict),
            ("--buffered", self.buffered),
            ("--clones", self.clones),
            ("--bases", self.bases),
            ("--forwards", self.forwards),
            ("--capacity", self.capacity),
            ("--keys", self.keys),
            ("--laps", self.laps),
            ("--bytes", self.bytes),
            ("--no-faults", self.no_faults),
        ];
        let mut words: Vec<String> = flags.iter().filter(|(_, given)| *given).map(|(flag, _)| (*flag).to_owned()).collect();
        words.extend(self.fault.map(|kind| format!("--fault={}", kind.name())));
        words.extend((self.scale != 1000).then(|| format!("--scale={}", self.scale)));
        words
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    quiet_panics();
    if let Some(file) = args.compare.as_ref().or(args.record.as_ref()) {
        let good = digests::run(file, &args).unwrap_or_else(|error| {
            eprintln!("{}: {error}", file.display());
            false
        });
        return if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if args.buckets {
        return buckets::run(args.named_seeds().unwrap_or(args.from..args.from + 100), args.trace, args.keep_going);
    }
    let (mode, options) = (args.mode(), args.options());
    if let Some(name) = &args.planted {
        return planted(name, &args, mode, options);
    }
    let last = if args.soak.is_some() { u64::MAX } else { args.from + 100 };
    let seeds = args.named_seeds().unwrap_or(args.from..last);
    let batch = Batch::new(seeds, args.soak, args.keep_going);
    batch.run(args.jobs.max(1), mode, &options, &args);
    let findings = batch.findings.load(Ordering::Relaxed);
    batch.summary(args.seed.is_some());
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Proves that a planted bug is found.
fn planted(name: &str, args: &Args, mode: Mode, options: Options) -> ExitCode {
    if let Some(found) = buckets::planted(name, args.from..args.from + args.max_seeds) {
        return found;
    }
    let Some((_, planted)) = PLANTED.iter().find(|(known, _)| *known == name) else {
        eprintln!("no such bug; known: {}", [&PLANTED.map(|(known, _)| known)[..], &buckets::NAMES].concat().join(", "));
        return ExitCode::FAILURE;
    };
    if !cfg!(feature = "planted") {
        eprintln!("this binary cannot plant bugs; build it with --features planted");
        return ExitCode::FAILURE;
    }
    let options = options.planting(*planted);
    for seed in args.from..args.from + args.max_seeds {
        if let Some(finding) = run::<Engine>(seed, mode, &options).finding {
            let sound = Options { planted: None, ..options.clone() };
            if let Some(other) = run::<Engine>(seed, mode, &sound).finding {
                println!("seed {seed} finds something without {name} too, and proves nothing: {}", other.what);
                continue;
            }
            println!("{name}: found by seed {seed} ({} seeds): {}", seed - args.from + 1, finding.what);
            return ExitCode::SUCCESS;
        }
    }
    println!("{name}: NOT found in {} seeds", args.max_seeds);
    ExitCode::FAILURE
}

/// The seeds of a run, shared by its threads.
struct Batch {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    until: Option<Instant>,
    keep_going: bool,
    findings: AtomicU64,
    totals: Mutex<(u64, Stats, u64)>,
    started: Instant,
}

impl Batch {
    fn new(seeds: Range<u64>, soak: Option<Duration>, keep_going: bool) -> Batch {
        let started = Instant::now();
        Batch {
            next: AtomicU64::new(seeds.start),
            end: seeds.end,
            stop: AtomicBool::new(false),
            until: soak.map(|time| started + time),
            keep_going,
            findings: AtomicU64::new(0),
            totals: Mutex::new((0, Stats::default(), 0)),
            started,
        }
    }

    fn run(&self, jobs: usize, mode: Mode, options: &Options, args: &Args) {
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(seed) = self.take() {
                        let outcome = run::<Engine>(seed, mode, options);
                        self.note(&outcome, args);
                    }
                });
            }
        });
    }

    fn take(&self) -> Option<u64> {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        if late || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        (seed < self.end).then_some(seed)
    }

    fn note(&self, outcome: &Outcome, args: &Args) {
        if let Ok(mut totals) = self.totals.lock() {
            totals.0 += 1;
            totals.1.add(&outcome.stats);
            totals.2 ^= outcome.digest;
        }
        let limit = args.turn_limit.unwrap_or(u64::MAX).saturating_mul(1_000_000);
        if outcome.finding.is_none() && outcome.stats.longest_turn > limit {
            self.findings.fetch_add(1, Ordering::Relaxed);
            self.stop.store(!self.keep_going, Ordering::Relaxed);
            println!("seed {}: a turn takes {} ms", outcome.seed, outcome.stats.longest_turn / 1_000_000);
            println!("again: {}", again(outcome.seed, args));
        }
        let Some(finding) = &outcome.finding else { return };
        self.findings.fetch_add(1, Ordering::Relaxed);
        self.stop.store(!self.keep_going, Ordering::Relaxed);
        let tail = if args.trace || self.keep_going { String::new() } else { format!("{}\n", finding.tail.join("\n")) };
        println!("{tail}seed {}: {}", outcome.seed, finding.what);
        println!("again: {}", again(outcome.seed, args));
    }

    fn summary(&self, one: bool) {
        let Ok(totals) = self.totals.lock() else { return };
        let (seeds, stats, digest) = &*totals;
        let seconds = self.started.elapsed().as_secs_f64();
        let findings = self.findings.load(Ordering::Relaxed);
        println!("{seeds} seeds, {findings} findings, {seconds:.1} s ({:.1} ms a seed)", seconds * 1000.0 / (*seeds).max(1) as f64);
        println!(
            "  {} requests ({} ENOSPC, {} failed), {} commands, {} comparisons, {} questions, {} device operations",
            stats.requests, stats.no_space, stats.failed, stats.commands, stats.diffs, stats.queries, stats.operations
        );
        println!(
            "  {} kills, {} power cuts, {} clean shutdowns, {} interrupted recoveries, {} faults struck, {} detected damages",
            stats.kills, stats.cuts, stats.closes, stats.interrupted, stats.faults, stats.detected
        );
        let least = stats.least_fill.map_or(String::new(), |fill| format!(", writes refused from {fill} per mille on"));
        let (prepared, gathered, back) = (stats.prepared >> 20, stats.gathered >> 10, stats.given_back >> 20);
        println!(
            "  {} checkpoints, {} segments cleaned, {prepared} MiB prepared, {gathered} KiB gathered, {} coded beside, {back} MiB given back{least}",
            stats.checkpoints, stats.cleaned, stats.coded
        );
        println!("  {} KiB read ahead, {} KiB of them used", stats.read_ahead >> 10, stats.read_ahead_used >> 10);
        if stats.fetches > 0 {
            println!(
                "  {} chunks fetched, {} of them again and {} ahead, {} refused, {} answers too late",
                stats.fetches, stats.fetched_again, stats.fetches_ahead, stats.refused_fetches, stats.late_fetches
            );
        }
        if stats.uploads > 0 {
            let [out, created, lost, kept] = stats.ended_in;
            println!(
                "  {} objects created, {} placed, {} reads of them, {} wrong, {} answers too late",
                stats.uploads, stats.placed, stats.object_reads, stats.wrong_objects, stats.late_objects
            );
            println!(
                "  ends with objects: {out} under way, {created} created, {lost} placed in vain, {kept} placed for good; {} lost, {} requests failed for it",
                stats.lost_objects, stats.unreadable
            );
        }
        println!(
            "  {} devices lost, {} replaced or added, {} by spares, {} trials without copies, {} wiped, {} blocks from caches",
            stats.losses, stats.changes, stats.spares, stats.trials, stats.wipes, stats.cached
        );
        if stats.longest_turn > 0 {
            println!("  the longest turn took {:.1} ms", stats.longest_turn as f64 / 1e6);
        }
        let [operations, requests, back] = stats.held;
        if operations + requests > 0 {
            println!("  {operations} operations held by caps, {requests} requests by limits, {back} operations came back after a lease");
        }
        if stats.refused_imports > 0 {
            println!("  {} refused imports, {} ways back, {} pools lost", stats.refused_imports, stats.ways_back, stats.lost_pools);
        }
        if stats.starts > 0 {
            println!(
                "  {} imports by themselves, {} of them degraded, {} refused by the engine, {} older states, {} of them unknown to the host, {} begun by the user",
                stats.starts, stats.degraded, stats.refused_starts, stats.forks, stats.gaps, stats.completed_imports
            );
        }
        for (mode, count) in CacheMode::ALL.iter().zip(&stats.modes) {
            println!(
                "  power cuts under {mode}: {} volumes, {} writes that had to survive did, {} of {} others lost",
                count.volumes, count.kept, count.lost, count.unflushed
            );
        }
        if one {
            println!("  digest {digest:016x}");
        }
    }
}

/// Returns the CPU time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns the command that repeats a finding.
fn again(seed: u64, args: &Args) -> String {
    let mut words = vec![format!("millpond-sim --seed {seed} --trace")];
    words.extend(args.kind());
    words.extend(args.turn_limit.map(|limit| format!("--turn-limit {limit}")));
    words.join(" ")
}
