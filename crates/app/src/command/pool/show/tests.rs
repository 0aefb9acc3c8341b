//! Output of `pool status`.

use clap::{Args, FromArgMatches};
use millpond_api::sample::pool;

use super::Status;

#[test]
fn status_says_what_was_lost_and_what_waits() {
    let matches = Status::augment_args(clap::Command::new("status")).get_matches_from(["status"]);
    let status = Status::from_arg_matches(&matches).expect("no argument is needed");
    let mut pool = pool("online", &[("/a", "online", "ok")]);
    let plain = status.summary(&pool);
    assert!(!plain.contains("older checkpoint") && !plain.contains("removal"), "{plain}");
    pool.fell_back = Some("a map node is damaged".to_owned());
    pool.removal_waits = Some("member 1 is away".to_owned());
    let summary = status.summary(&pool);
    assert!(summary.contains("went back to an older checkpoint, without the log after it: a map node is damaged\n"), "{summary}");
    assert!(summary.contains("removal waits: member 1 is away\n"), "{summary}");
}
