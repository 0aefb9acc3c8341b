//! `cdm`: the profile of CrystalDiskMark 8, by fio over NBD: sequential 1 MiB and random 4 KiB,
//! with deep queues and one at a time. Then the same on simulated drives of the article's two
//! models: by fio on the drive itself, which shows how accurate the simulation is, and on Millpond
//! on that drive.

mod text;

use super::Setup;
use crate::load::{Endpoint, LoadSpec, run};
use crate::peer::{Contender, Drives, Fio, Millpond, fio, fio_file, millpond_binary};
use crate::process::{Workspace, find_tool};
use crate::report::{Claim, Goal, Results, median};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const CONTENDERS: [&str; 6] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native", "qsd-qcow2-128k", "nbdkit-file"];
const SIZE: u64 = 4 << 30;
/// Seconds of a measurement, and of the pause before it.
const SECONDS: f64 = 5.0;
/// Name, prefix of fio's `rw`, block size, queue depth, and published MB/s of both drives, for
/// reads and for writes.
type Profile = (&'static str, &'static str, &'static str, u32, [f64; 2], [f64; 2]);
const CASES: [Profile; 4] = [
    ("SEQ1M Q8T1", "", "1m", 8, [271.152, 281.158], [255.845, 270.648]),
    ("SEQ1M Q1T1", "", "1m", 1, [270.276, 279.057], [83.587, 274.467]),
    ("RND4K Q32T1", "rand", "4k", 32, [1.785, 2.137], [1.137, 13.794]),
    ("RND4K Q1T1", "rand", "4k", 1, [0.658, 0.721], [0.619, 8.230]),
];
/// A fill with zeroes in blocks of 512 KiB, and its published MB/s on both drives.
const ZERO_FILL: &str = "zero fill, 512 kB blocks";
const ZERO_FILL_MB: [f64; 2] = [200.0, 197.0];
const SIMULATED: &str = "the drive itself";
const DRIVES: [&str; 2] = ["MN08ACA14T", "ST14000NM001G"];
/// The simulation counts as accurate within this factor of the article's figure.
const TRUE: f64 = 1.25;
/// Least share of the drive's own speed below Millpond, and least multiple of it for deep queues of
/// small writes.
const LEFT: f64 = 0.9;
const LOGGED: f64 = 5.0;
/// Minimum seconds of a measurement, so that a seeking drive shows its mean, and seconds in which
/// its cache fills.
const LEAST_SECONDS: f64 = 0.6;
const FILL_SECONDS: f64 = 0.4;

pub fn run_cdm(setup: &Setup, results: &mut Results) -> Result<()> {
    if find_tool("fio").is_none() {
        results.leave_out("fio is not installed");
        return Ok(());
    }
    let names = setup.contenders(&CONTENDERS, results);
    let length = (SECONDS * setup.scale.min(1.0)).max(setup.secs.min(0.5));
    let pause = Duration::from_secs_f64((SECONDS * setup.scale.min(1.0)).min(SECONDS));
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let open = setup.open(name, setup.size_or(SIZE))?;
            let endpoint = open.contender.endpoint()?;
            run(&endpoint, &LoadSpec::fill()).with_context(|| format!("filling {name}"))?;
            for (write, side) in [(false, "read"), (true, "write")] {
                for profile in CASES {
                    thread::sleep(pause);
                    let case = format!("{} {side}", profile.0);
                    let figures = fio(
                        results,
                        &format!("{name}-{rep}-{case}"),
                        &endpoint,
                        write,
                        &options(profile, side, length, setup.seed_of(rep)),
                    )
                    .with_context(|| format!("{case} on {name}"))?;
                    note(results, rep, name, &case, figures);
                }
            }
        }
    }
    match Drives::check() {
        Ok(()) => on_drives(setup, results, length.max(LEAST_SECONDS))?,
        Err(reason) => DRIVES.iter().for_each(|drive| results.skip(drive, &format!("drives cannot be simulated: {reason:#}"))),
    }
    show(results, &names)?;
    goals(results);
    for (drive, figure) in DRIVES.into_iter().zip(ZERO_FILL_MB) {
        let case = format!("{ZERO_FILL}, {drive}");
        let here = |contender: &str| median(&results.values(&case, "mb_s", contender));
        let (theirs, ours) = (here(SIMULATED), here("millpond"));
        let why = results.why(drive, "the article filled a whole drive; here its first gigabytes, one request at a time with direct I/O");
        results.claim(Claim::new("C-cdm", &case, figure, "MB/s").by(SIMULATED, theirs, TRUE).ours(ours).because(&why));
    }
    for (case, _, _, _, reads, writes) in CASES {
        for (side, figures) in [("read", reads), ("write", writes)] {
            for (drive, figure) in DRIVES.into_iter().zip(figures) {
                let case = format!("{case} {side}, {drive}");
                let here = |contender: &str| median(&results.values(&case, "mb_s", contender));
                let (theirs, ours) = (here(SIMULATED), here("millpond"));
                let why = results.why(drive, &accuracy(theirs, figure));
                results.claim(Claim::new("C-cdm", &case, figure, "MB/s").modelled_by(SIMULATED, theirs).ours(ours).because(&why));
            }
        }
    }
    Ok(())
}

/// Shows all figures in CrystalDiskMark's form, as files and as tables.
fn show(results: &mut Results, names: &[String]) -> Result<()> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let drives = DRIVES.map(|drive| (format!(", {drive}"), vec![SIMULATED, "millpond"]));
    for (place, contenders) in std::iter::once((String::new(), names)).chain(drives) {
        for contender in &contenders {
            if let Some(text) = text::text(results, contender, &place) {
                results.keep(&format!("{contender}{place}.txt"), &text)?;
            }
        }
        let matrix = text::matrix(results, &contenders, &place);
        results.matrices.push(matrix);
    }
    Ok(())
}

/// Judges what Millpond leaves of a hard disk: about the speed of the drive itself, and more of
/// small writes, which the log makes sequential.
fn goals(results: &mut Results) {
    for (profile, order, ..) in CASES {
        for (side, drive) in ["read", "write"].into_iter().flat_map(|side| DRIVES.map(|drive| (side, drive))) {
            let deep = order == "rand" && profile.contains("Q32");
            let least = if deep && side == "write" { LOGGED } else { LEFT };
            results.goal(&format!("{profile} {side}, {drive}"), "mb_s", "millpond", Goal::times_of(SIMULATED, least));
        }
    }
}

/// Describes how near the simulated drive comes to the figure that it was fitted to.
fn accuracy(simulated: Option<f64>, published: f64) -> String {
    let ratio = simulated.map_or(1.0, |value| value / published);
    if ratio > 0.0 && ratio.max(1.0 / ratio) <= TRUE {
        "the simulated drive was fitted to this figure".to_owned()
    } else {
        format!("the simulated drive was fitted to this figure, but reaches {ratio:.2} of it here: its requests wait for a processor, too")
    }
}

fn options((_, order, block, depth, ..): Profile, side: &str, length: f64, seed: u64) -> Vec<String> {
    vec![
        format!("--rw={order}{side}"),
        format!("--bs={block}"),
        format!("--iodepth={depth}"),
        format!("--runtime={}ms", (length * 1e3) as u64),
        format!("--randseed={seed}"),
        "--time_based".to_owned(),
        "--norandommap".to_owned(),
    ]
}

fn note(results: &mut Results, rep: usize, name: &str, case: &str, figures: Fio) {
    results.add(rep, name, case, "mb_s", figures.bytes_s / 1e6);
    results.add(rep, name, case, "iops", figures.iops);
    results.add(rep, name, case, "mean_us", figures.mean_us);
    results.add(rep, name, case, "p50_us", figures.p50_us);
    results.add(rep, name, case, "p99_us", figures.p99_us);
}

enum Place {
    File(PathBuf),
    Export(Endpoint),
}

impl Place {
    fn fio(&self, results: &mut Results, name: &str, write: bool, options: &[String]) -> Result<Fio> {
        match self {
            Place::File(file) => fio_file(results, name, file, write, options),
            Place::Export(endpoint) => fio(results, name, endpoint, write, options),
        }
    }
}

/// Target of a measurement on a simulated drive.
struct Subject<'a> {
    name: &'a str,
    drive: &'a str,
    place: Place,
    size: u64,
}

/// Runs all cases, each after a ramp in which the drive's cache fills.
fn profile(setup: &Setup, results: &mut Results, rep: usize, subject: &Subject<'_>, length: f64) -> Result<()> {
    let Subject { name, drive, place, size } = subject;
    for (write, side) in [(false, "read"), (true, "write")] {
        for profile in CASES {
            let mut options = options(profile, side, length, setup.seed_of(rep));
            options.extend([format!("--size={size}"), format!("--ramp_time={}ms", (FILL_SECONDS * 1e3) as u64)]);
            let case = format!("{} {side}, {drive}", profile.0);
            let raw = format!("{name}-{rep}-{case}");
            let figures = place.fio(results, &raw, write, &options);
            note(results, rep, name, &case, figures.with_context(|| format!("{case}, {name}"))?);
        }
    }
    let mut options = options((ZERO_FILL, "", "512k", 1, [0.0; 2], [0.0; 2]), "write", length, setup.seed_of(rep));
    options.extend([format!("--size={size}"), "--zero_buffers".to_owned(), format!("--ramp_time={}ms", (FILL_SECONDS * 1e3) as u64)]);
    let case = format!("{ZERO_FILL}, {drive}");
    let raw = format!("{name}-{rep}-{case}");
    let figures = place.fio(results, &raw, true, &options);
    note(results, rep, name, &case, figures.with_context(|| format!("{case}, {name}"))?);
    Ok(())
}

/// Measures both drives, alone and below Millpond. Simulated drives take real time at every scale,
/// so fewer repetitions are made.
fn on_drives(setup: &Setup, results: &mut Results, length: f64) -> Result<()> {
    let reps = setup.long_reps;
    let ours = setup.contenders(&["millpond"], results).len() == 1;
    for rep in 0..reps {
        for drive in DRIVES {
            results.say(&format!("repetition {} of {reps}: a simulated {drive}", rep + 1));
            let workspace = Workspace::new(&setup.dir, "cdm")?;
            let size = setup.size_or(SIZE);
            let bytes = SIZE.max(4 * size + (1 << 30));
            let drives = Drives::start(workspace.path(), &[format!("{}={bytes}", drive.to_lowercase())])?;
            let file = drives.files().pop().context("no drive")?;
            let bare = Subject { name: SIMULATED, drive, place: Place::File(file.clone()), size: SIZE };
            profile(setup, results, rep, &bare, length)?;
            if ours {
                let mut millpond = Millpond::new(millpond_binary()?);
                millpond.start_with(workspace.path(), &["linear".to_owned(), file.display().to_string()], size)?;
                let endpoint = millpond.endpoint()?;
                run(&endpoint, &LoadSpec::fill()).context("filling millpond")?;
                let below = Subject { name: "millpond", drive, place: Place::Export(endpoint), size };
                profile(setup, results, rep, &below, length)?;
                millpond.stop()?;
            }
        }
    }
    Ok(())
}
