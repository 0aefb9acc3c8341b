//! `nbd-speed`: compares the speed of servers over NBD, and their CPU time per request.

use super::Setup;
use super::sample::measure_into;
use crate::load::{self, Dialect, LoadSpec, Mix};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};

const CONTENDERS: &[&str] =
    &["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native", "qsd-qcow2", "qsd-qcow2-128k", "nbdkit-file", "nbdkit-memory", "ceiling"];
const SIZE: u64 = 512 << 20;
/// Ratio that still counts as "no slower", to allow for noise between two equal measurements.
const NO_SLOWER: f64 = 0.97;

/// Least multiples of QEMU's speed, with either kind of its asynchronous I/O.
const TIMES_OF_QEMU: [(&str, f64); 7] = [
    ("4k randread q32", 4.0),
    ("4k randwrite q32", 4.0),
    ("8k 50/50 2x16", 4.0),
    ("64k randread q8", 1.2),
    ("64k randwrite q8", 1.2),
    ("1m randread q4", 1.5),
    ("1m randwrite q4", 1.5),
];

/// Least multiples of the speed of the server that only copies memory.
const TIMES_OF_CEILING: [(&str, f64); 2] = [("4k randread q32", 0.6), ("4k randwrite q32", 0.7)];

/// Least multiples of nbdkit's speed with a file.
const TIMES_OF_NBDKIT: [(&str, f64); 7] = [
    ("4k randread q32", 1.5),
    ("4k randwrite q32", 1.5),
    ("8k 50/50 2x16", 1.0),
    ("64k randread q8", 1.0),
    ("64k randwrite q8", 1.0),
    ("1m randread q4", 1.0),
    ("1m randwrite q4", 1.0),
];

fn cases() -> Vec<(&'static str, LoadSpec)> {
    let random = LoadSpec::random;
    // small requests come after large ones; then some cases are repeated on the data that small
    // writes left
    vec![
        ("1m randread q4", random(Mix::Read, 1 << 20, 4)),
        ("1m randwrite q4", random(Mix::Write, 1 << 20, 4)),
        ("64k randread q8", random(Mix::Read, 64 << 10, 8)),
        ("64k randwrite q8", random(Mix::Write, 64 << 10, 8)),
        ("8k 50/50 2x16", LoadSpec { jobs: 2, ..random(Mix::Both(50), 8192, 16) }),
        ("4k randread q32", random(Mix::Read, 4096, 32)),
        ("4k randwrite q32", random(Mix::Write, 4096, 32)),
        ("4k randread q1", random(Mix::Read, 4096, 1)),
        ("4k randwrite q1", random(Mix::Write, 4096, 1)),
        ("8k 50/50 2x16, after 4k", LoadSpec { jobs: 2, ..random(Mix::Both(50), 8192, 16) }),
        ("64k randread q8, after 4k", random(Mix::Read, 64 << 10, 8)),
        ("64k randwrite q8, after 4k", random(Mix::Write, 64 << 10, 8)),
    ]
}

/// Cases that are repeated with protocol extensions, one after another on the same server. Their
/// cost shows with small requests and with large replies.
const DIALECTS: [&str; 4] = ["4k randread q32", "4k randwrite q32", "64k randread q8", "1m randread q4"];

pub fn run(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(CONTENDERS, results);
    let size = setup.size_or(SIZE);
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            // rotate the order, so that no target is always first
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let open = setup.open(name, size)?;
            load::precondition(&open.contender.endpoint()?).with_context(|| format!("filling {name}"))?;
            for (case, spec) in cases() {
                let spec = LoadSpec { secs: setup.secs, ramp: load::WARM_UP, seed: setup.seed_of(rep), ..spec };
                measure_into(results, rep, case, name, open.contender.as_ref(), &spec)?;
                if name == "millpond" && DIALECTS.contains(&case) {
                    for (label, dialect) in [("millpond, structured", Dialect::Structured), ("millpond, extended", Dialect::Extended)] {
                        let spec = LoadSpec { dialect, ..spec.clone() };
                        measure_into(results, rep, case, label, open.contender.as_ref(), &spec)?;
                    }
                }
            }
        }
    }
    for case in DIALECTS {
        for label in ["millpond, structured", "millpond, extended"] {
            results.goal(case, "iops", label, Goal::times_of("millpond", NO_SLOWER));
        }
    }
    if setup.media == super::Media::Shm {
        for case in ["4k randread q32", "4k randwrite q32"] {
            results.goal(case, "server_cpu_us", "millpond", Goal::AtMost(5.0));
        }
        for (peer, goals) in [("ceiling", &TIMES_OF_CEILING[..]), ("nbdkit-file", &TIMES_OF_NBDKIT)] {
            goals.iter().for_each(|(case, times)| results.goal(case, "iops", "millpond", Goal::times_of(peer, *times)));
        }
        for (case, times) in TIMES_OF_QEMU {
            for peer in ["qsd-raw", "qsd-raw-native"] {
                results.goal(case, "iops", "millpond", Goal::times_of(peer, times));
            }
        }
    }
    Ok(())
}
