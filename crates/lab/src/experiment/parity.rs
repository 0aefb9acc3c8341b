//! `parity`: small random writes on six simulated hard disks with two parities, on Millpond and on
//! RAID-6 as the kernel's md implements it: it reads the old data and both old parities before it
//! writes all three. The peer is a model of this order of requests on the same simulated drives;
//! computing parity takes no time.

use super::Setup;
use super::sample::measure_into;
use crate::load::{LoadSpec, Mix, run};
use crate::peer::{Contender, Drives, Millpond, Qsd, make, millpond_binary};
use crate::process::Workspace;
use crate::report::{Goal, Results};
use anyhow::{Context, Result};

const DRIVES: usize = 6;
const OURS: &str = "millpond";
const THEIRS: &str = "raid6, modelled";
const MODELS: [&str; 2] = ["MN08ACA14T", "ST14000NM001G"];
/// Size in bytes of the volume: enough tracks that heads have to seek.
const SIZE: u64 = 8 << 30;
const LEAST_SIZE: u64 = 512 << 20;
const SECONDS: f64 = 60.0;
const LEAST_SECONDS: f64 = 5.0;
/// Read-modify-write needs six random requests for a write; a log writes sequentially, data and two
/// parities.
const TIMES: f64 = 20.0;

fn case(model: &str) -> String {
    format!("4k randwrite q128, 6 x {model}")
}

pub fn run_parity(setup: &Setup, results: &mut Results) -> Result<()> {
    if let Err(reason) = Drives::check() {
        results.leave_out(&format!("drives cannot be simulated: {reason:#}"));
        return Ok(());
    }
    let mut names = Vec::new();
    for (name, needs) in [(OURS, "millpond"), (THEIRS, "qsd-raw")] {
        let wanted = setup.peers.is_empty() || setup.peers.iter().any(|peer| peer == needs);
        match make(needs) {
            Ok(_) if wanted => names.push(name),
            Ok(_) => {}
            Err(reason) => results.skip(name, &format!("{reason:#}")),
        }
    }
    let reps = setup.long_reps;
    for rep in 0..reps {
        for model in MODELS {
            for turn in 0..names.len() {
                let Some(name) = names.get((turn + rep) % names.len()) else { continue };
                results.say(&format!("repetition {} of {reps}: {name} on {model}", rep + 1));
                one(setup, results, rep, name, model).with_context(|| format!("{name} on {model}"))?;
            }
        }
    }
    for model in MODELS {
        results.goal(&case(model), "iops", OURS, Goal::times_of(THEIRS, TIMES));
    }
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str, model: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "parity")?;
    let size = setup.size_or(SIZE).max(setup.size.unwrap_or(LEAST_SIZE));
    let secs = (SECONDS * setup.scale.min(1.0)).max(LEAST_SECONDS);
    let model_name = model.to_lowercase();
    let spec = LoadSpec { secs, ramp: 1.0, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Write, 4096, 128) };
    if name == THEIRS {
        let drives = Drives::start(workspace.path(), &[format!("{DRIVES}*{model_name}/raid6:64k={size}")])?;
        let mut server = Qsd::on("qsd-raw", &drives.files().pop().context("no drive")?);
        server.start(workspace.path(), size)?;
        measure_into(results, rep, &case(model), name, &server, &spec)?;
        return server.stop();
    }
    // each drive holds a quarter of the data and of its log, with as much to spare
    let each = size + (2 << 30);
    let drives = Drives::start(workspace.path(), &vec![format!("{model_name}={each}"); DRIVES])?;
    let mut millpond = Millpond::new(millpond_binary()?);
    let files = drives.files().into_iter().map(|file| file.display().to_string());
    millpond.start_with(workspace.path(), &["parity2".to_owned()].into_iter().chain(files).collect::<Vec<_>>(), size)?;
    run(&millpond.endpoint()?, &LoadSpec::fill()).context("filling")?;
    let before = millpond.counters()?;
    measure_into(results, rep, &case(model), name, &millpond, &spec)?;
    let after = millpond.counters()?;
    results.add(rep, name, &case(model), "segments_cleaned", after.segments_cleaned - before.segments_cleaned);
    millpond.stop()
}
