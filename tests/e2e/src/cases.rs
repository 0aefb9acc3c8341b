//! The list of tests, by area.

use super::subject::Subject;
use anyhow::Result;

mod fuse;
mod guests;
mod images;
mod nbd;
mod packages;
mod pools;
mod service;

/// Features that a test needs beyond reading and writing; servers without them skip the test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// No further features.
    Nothing,
    /// Snapshots and rollback.
    Snapshots,
    /// Millpond's own commands.
    Everything,
}

/// A test.
pub struct Case {
    /// Name of the test.
    pub name: &'static str,
    /// Description of the test.
    pub about: &'static str,
    /// Requirements without which the test is skipped: programs; with a slash, files of the system;
    /// `root`, `fuse` and `volatile disk` for permission to mount; `user NAME`; `$NAME` for a variable
    /// of the environment.
    pub needs: &'static [&'static str],
    /// Whether the test boots a guest.
    pub guest: bool,
    /// Features that the test needs beyond reading and writing.
    pub asks: Asks,
    /// Runs the test.
    pub run: fn(&mut Subject) -> Result<()>,
}

const GUEST: &[&str] = &["qemu-system-x86_64", "busybox", "mke2fs", "e2fsck", "ldd"];

/// Returns all tests: quick areas first, and in each the quick tests first.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [nbd::CASES, images::CASES, service::CASES, pools::CASES, fuse::CASES, guests::CASES, packages::CASES].into_iter().flatten()
}
