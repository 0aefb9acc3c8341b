//! `cdm`: the profile of CrystalDiskMark 8, by fio over NBD: sequential 1 MiB and random 4 KiB, deep and one at a time.

use super::Setup;
use crate::load::{LoadSpec, run};
use crate::peer::fio;
use crate::process::find_tool;
use crate::report::{Claim, Results, median};
use anyhow::{Context, Result};
use std::thread;
use std::time::Duration;

const CONTENDERS: [&str; 4] = ["millpond", "qsd-raw", "qsd-qcow2-128k", "nbdkit-file"];
const SIZE: u64 = 4 << 30;
/// Seconds of a measurement, and of the pause before it.
const SECONDS: f64 = 5.0;
/// Name, fio's order, block, depth, and the two drives' figures of reads and of writes in MB/s.
type Profile = (&'static str, &'static str, &'static str, u32, [f64; 2], [f64; 2]);
const CASES: [Profile; 4] = [
    ("SEQ1M Q8T1", "", "1m", 8, [271.152, 281.158], [255.845, 270.648]),
    ("SEQ1M Q1T1", "", "1m", 1, [270.276, 279.057], [83.587, 274.467]),
    ("RND4K Q32T1", "rand", "4k", 32, [1.785, 2.137], [1.137, 13.794]),
    ("RND4K Q1T1", "rand", "4k", 1, [0.658, 0.721], [0.619, 8.230]),
];
const DRIVES: [&str; 2] = ["MN08ACA14T", "ST14000NM001G"];

/// See the module.
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
                for (case, order, block, depth, ..) in CASES {
                    thread::sleep(pause);
                    let options = [
                        format!("--rw={order}{side}"),
                        format!("--bs={block}"),
                        format!("--iodepth={depth}"),
                        format!("--runtime={}ms", (length * 1e3) as u64),
                        format!("--randseed={}", setup.seed_of(rep)),
                        "--time_based".to_owned(),
                        "--norandommap".to_owned(),
                    ];
                    let case = format!("{case} {side}");
                    let figures = fio(results, &format!("{name}-{rep}-{case}"), &endpoint, write, &options)
                        .with_context(|| format!("{case} on {name}"))?;
                    results.add(rep, name, &case, "mb_s", figures.bytes_s / 1e6);
                    results.add(rep, name, &case, "iops", figures.iops);
                    results.add(rep, name, &case, "mean_us", figures.mean_us);
                    results.add(rep, name, &case, "p50_us", figures.p50_us);
                    results.add(rep, name, &case, "p99_us", figures.p99_us);
                }
            }
        }
    }
    for (case, _, _, _, reads, writes) in CASES {
        for (side, figures) in [("read", reads), ("write", writes)] {
            for (drive, figure) in DRIVES.into_iter().zip(figures) {
                let ours = median(&results.values(&format!("{case} {side}"), "mb_s", "millpond"));
                let why = "this machine has no such drive; ours is on its own storage";
                results.claim(Claim::new("C-cdm", &format!("{drive}: {case} {side}"), figure, "MB/s").ours(ours).because(why));
            }
        }
    }
    Ok(())
}
