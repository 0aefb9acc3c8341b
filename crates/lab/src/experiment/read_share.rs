//! `read-share`: random 8 KiB requests, 32 in flight on two connections, from all reads to all
//! writes.

use super::sample::measure_into;
use super::{Media, Setup};
use crate::load::{LoadSpec, Mix, run};
use crate::report::{Claim, Curve, Goal, Results, median};
use anyhow::{Context, Result};

const CONTENDERS: [&str; 7] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native", "qsd-qcow2-128k", "nbdkit-file", "ceiling"];
const SIZE: u64 = 512 << 20;
const SHARES: [u8; 7] = [100, 90, 70, 50, 30, 10, 0];

fn case(share: u8) -> String {
    format!("8k random, {share} % reads")
}

pub fn run_read_share(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&CONTENDERS, results);
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let open = setup.open(name, setup.size_or(SIZE))?;
            run(&open.contender.endpoint()?, &LoadSpec::fill()).with_context(|| format!("filling {name}"))?;
            for share in SHARES {
                let mix = match share {
                    100 => Mix::Read,
                    0 => Mix::Write,
                    share => Mix::Both(share),
                };
                let spec = LoadSpec { jobs: 2, secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(mix, 8192, 16) };
                measure_into(results, rep, &case(share), name, open.contender.as_ref(), &spec)?;
            }
        }
    }
    let places = SHARES.iter().rev().map(|share| (f64::from(*share), case(*share))).collect();
    results.curves.push(Curve {
        title: "8 KiB at random".to_owned(),
        axis: "reads in a hundred".to_owned(),
        metric: "iops".to_owned(),
        places,
    });
    if setup.media == Media::Shm {
        for share in SHARES {
            results.goal(&case(share), "iops", "millpond", Goal::times_of("nbdkit-file", 1.0));
        }
        for peer in ["qsd-raw", "qsd-raw-native"] {
            results.goal(&case(50), "iops", "millpond", Goal::times_of(peer, 4.0));
        }
    }
    let figure = |contender: &str| median(&results.values(&case(50), "iops", contender));
    let (ours, raw) = (figure("millpond"), figure("qsd-raw"));
    let why =
        "the article's figure is of a cluster of several hosts with NVMe devices and two disks of 100 GB, this is one disk of this machine";
    results.claim(Claim::new("B-load", "8 KiB, half reads, IOPS", 62_371.0, "IOPS").beside("qsd-raw", raw).ours(ours).because(why));
    Ok(())
}
