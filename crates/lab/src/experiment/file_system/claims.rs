//! Figures of the article on snapshots, beside those of a run. Ratios of rounds with snapshots to
//! the round without can be reproduced; figures of the rounds themselves are of another machine.

use super::subject::{LVM, LVM_HDD, OURS_HDD};
use crate::report::{Claim, Results, median};

const CHAIN: &str = "qsd-chain";

/// Figures that are related to the round without snapshots.
pub const METRICS: [&str; 7] = ["files_s", "guest_await_ms", "guest_writes_s", "guest_write_mb_s", "cpu_percent", "load", "memory_gb"];

/// Returns the name of a figure relative to that of the round without snapshots.
pub fn share(metric: &str) -> String {
    format!("{metric}_to_none")
}

/// A published figure in rounds with no, one and two snapshots.
struct Published {
    source: &'static str,
    says: &'static str,
    metric: &'static str,
    unit: &'static str,
    /// `None` where the article has no figure.
    figures: [Option<f64>; 3],
    peer: &'static str,
    /// Factor within which the ratio to the round without snapshots is reproduced.
    within: f64,
}

const fn all(none: f64, one: f64, two: f64) -> [Option<f64>; 3] {
    [Some(none), Some(one), Some(two)]
}

const PUBLISHED: [Published; 10] = [
    Published {
        source: "A-lvm",
        says: "files",
        metric: "files_s",
        unit: "files/s",
        figures: all(9236.5, 313.5, 199.2),
        peer: LVM,
        within: 2.0,
    },
    Published {
        source: "A-lvm",
        says: "latency of a request",
        metric: "guest_await_ms",
        unit: "ms",
        figures: all(22.5, 209.2, 309.9),
        peer: LVM,
        within: 2.0,
    },
    Published {
        source: "A-lvm",
        says: "writes",
        metric: "guest_writes_s",
        unit: "IOPS",
        figures: [Some(3675.78), None, Some(1323.55)],
        peer: LVM,
        within: 2.0,
    },
    Published {
        source: "A-chain",
        says: "files",
        metric: "files_s",
        unit: "files/s",
        figures: all(11_288.2, 11_928.8, 10_928.6),
        peer: CHAIN,
        within: 1.25,
    },
    Published {
        source: "A-chain",
        says: "latency of a request",
        metric: "guest_await_ms",
        unit: "ms",
        figures: all(11.3, 23.7, 24.6),
        peer: CHAIN,
        within: 1.5,
    },
    Published {
        source: "A-resources",
        says: "processors",
        metric: "cpu_percent",
        unit: "%",
        figures: all(2.56, 5.15, 5.19),
        peer: CHAIN,
        within: 1.5,
    },
    Published { source: "A-resources", says: "load", metric: "load", unit: "", figures: all(0.60, 0.94, 1.09), peer: CHAIN, within: 1.5 },
    Published {
        source: "A-resources",
        says: "memory",
        metric: "memory_gb",
        unit: "GB",
        figures: all(1.11, 1.30, 1.40),
        peer: CHAIN,
        within: 1.1,
    },
    Published {
        source: "A-resources",
        says: "writes",
        metric: "guest_writes_s",
        unit: "IOPS",
        figures: all(1457.0, 3617.0, 3538.0),
        peer: CHAIN,
        within: 1.5,
    },
    Published {
        source: "A-resources",
        says: "data written",
        metric: "guest_write_mb_s",
        unit: "MB/s",
        figures: all(108.0, 268.0, 261.0),
        peer: CHAIN,
        within: 1.5,
    },
];

/// Returns the target that stands for the article's: LVM on a hard disk, if that was measured.
fn peer(results: &Results, published: &Published, case: &str) -> &'static str {
    let on_hard_disk = !results.values(case, "files_s", LVM_HDD).is_empty();
    if published.peer == LVM && on_hard_disk { LVM_HDD } else { published.peer }
}

/// Returns the Millpond on the same medium.
fn ours_beside(peer: &str) -> &'static str {
    if peer == LVM_HDD { OURS_HDD } else { "millpond" }
}

/// Adds all claims; `case` names the round with that many snapshots.
pub fn claims(results: &mut Results, case: fn(usize) -> String) {
    for published in &PUBLISHED {
        for (snapshots, figure) in published.figures.into_iter().enumerate() {
            let Some(figure) = figure else { continue };
            let case = case(snapshots);
            if let (1.., [Some(none), ..]) = (snapshots, published.figures) {
                ratio(results, published, &case, figure / none);
            }
            absolute(results, published, &case, figure);
        }
    }
    let create = |contender: &str| median(&results.values("snapshot 1", "create_ms", contender)).map(|ms| ms / 1e3);
    let (theirs, ours) = (create(CHAIN), create("millpond"));
    let why = results.why(CHAIN, "there, a tool stops and resumes a guest around it, on a disk of 100 GB");
    results.claim(Claim::new("A-chain", "a snapshot is created in", 2.864, "s").beside(CHAIN, theirs).ours(ours).because(&why));
}

fn ratio(results: &mut Results, published: &Published, case: &str, figure: f64) {
    let of = |contender: &str| median(&results.values(case, &share(published.metric), contender));
    let peer = peer(results, published, case);
    let (theirs, ours) = (of(peer), of(ours_beside(peer)));
    let why = results.why(peer, "other disks and a larger machine there, rounds of minutes");
    let says = format!("{case}: {}, relative to none", published.says);
    results.claim(Claim::new(published.source, &says, figure, "x").by(peer, theirs, published.within).ours(ours).because(&why));
}

fn absolute(results: &mut Results, published: &Published, case: &str, figure: f64) {
    let of = |contender: &str| median(&results.values(case, published.metric, contender));
    let peer = peer(results, published, case);
    let (theirs, ours) = (of(peer), of(ours_beside(peer)));
    let why = results.why(peer, "another machine and medium");
    let says = format!("{case}: {}", published.says);
    results.claim(Claim::new(published.source, &says, figure, published.unit).beside(peer, theirs).ours(ours).because(&why));
}
