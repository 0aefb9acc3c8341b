//! The command line as scripts use it: a real daemon in a temporary directory, every verb, exit codes, JSON keys, error lines.

mod daemon;
mod exports;
mod harness;
#[path = "../../src/command/demo/nbd.rs"]
#[allow(dead_code, reason = "shared with the demo, which writes with several requests in flight")]
mod nbd;
mod pools;
mod snapshots;
mod trouble;
mod up;
mod usage;
mod volumes;
