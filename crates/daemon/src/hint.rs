//! The next step for users after a refusal of the engine, by its kind.
//!
//! The engine gives the reason. The words of this program, its verbs and options, are here.

use std::fmt::Display;

use millpond_engine::{Busy, ClaimRefusal, CommandError, Fault, Invalid, Missing, OpenError, OpenErrorKind};

#[cfg(test)]
mod tests;

/// Next step after a device failed to read something: the state that it holds may be sound.
const READ_AGAIN: &str = "a device could not be read: check the devices and their cables, and import again";
/// Cause of a pool without roots, all of which were read.
const NEVER_A_POOL: &str = "its devices were overwritten, or 'pool create' did not finish";
/// Next step after an import that went back as far as it may by itself.
const OLDER: &str = "choose an older checkpoint with --to, see 'millpond pool checkpoints'";

/// Returns the message about a refused or failed command: the reason and the next step.
pub fn command(error: &CommandError) -> String {
    match error {
        CommandError::Faulted(why) => {
            let next = is_over_after_import(why).then_some("; remove the cause, then export and import it again");
            format!("the pool is stopped: {}{}", fault(why), next.unwrap_or_default())
        }
        CommandError::NodeUnreadable => with_next_step(error, Some("check the devices with 'pool status', then run 'pool scrub'")),
        CommandError::Busy(why) => with_next_step(why, next_try(why)),
        CommandError::Invalid(why) => with_next_step(why, better(why)),
        error => error.to_string(),
    }
}

fn with_next_step(why: impl Display, next: Option<&str>) -> String {
    next.map_or_else(|| why.to_string(), |next| format!("{why}; {next}"))
}

/// Returns the next step after a command that may succeed later, where it takes words of this
/// program.
fn next_try(why: &Busy) -> Option<&'static str> {
    match why {
        Busy::ReadOnly => Some("export it and import it without --readonly to change it"),
        Busy::Removing => Some("wait for 'pool jobs', or stop that with 'pool remove --stop'"),
        Busy::RemovingBeforeRebalance => Some("rebalance when 'pool jobs' says that it is out"),
        Busy::DevicesChanging => Some("try again when 'pool jobs' is empty"),
        Busy::Scrubbing => Some("see 'pool jobs', or stop it with 'pool scrub --stop'"),
        Busy::Rebalancing => Some("see 'pool jobs', or stop it with 'pool rebalance --stop'"),
        Busy::HasCache => Some("take it out with 'pool remove', and add it again after the wipe"),
        Busy::DeviceMissing => Some("see 'pool status'"),
        Busy::Untrimmed(_) => Some("see 'pool status -v'"),
        Busy::LabelUnwritten(_) => Some("replace it with 'pool replace'"),
        Busy::Opening | Busy::Closing | Busy::Relabeling | Busy::Replacing | Busy::Base | Busy::KeysUnknown => None,
        Busy::SnapshotNames { .. } | Busy::HasClones { .. } | Busy::Held { .. } => None,
    }
}

/// Returns the way to give an argument of a command that was not acceptable, where it takes words
/// of this program.
fn better(why: &Invalid) -> Option<&'static str> {
    match why {
        Invalid::CacheLayout => Some("name its devices after 'cache'"),
        Invalid::NoBases => Some("turn it on with 'pool upgrade'"),
        Invalid::NotBase => Some("'millpond list -o name,base' shows bases"),
        Invalid::SpareLayout => Some("name them after 'spare'"),
        _ => None,
    }
}

/// Returns the message about a pool that is stopped.
pub fn fault(fault: &Fault) -> String {
    match fault {
        Fault::Open(error) => open(error),
        fault => fault.to_string(),
    }
}

/// Returns how a user brings the pool `name` back into service after it stopped. `None` for reasons
/// that name their own steps: after a takeover, an import would take the pool from the host that
/// has it.
pub fn restart(fault: &Fault, name: &str) -> Option<String> {
    is_over_after_import(fault)
        .then(|| format!("remove the cause, then run 'millpond pool export {name} --force' and 'millpond pool import {name}'"))
}

/// Returns whether an import is the next step after a pool has stopped.
fn is_over_after_import(fault: &Fault) -> bool {
    !matches!(fault, Fault::TakenOver { .. } | Fault::ClaimUnreadable(_))
}

/// Returns the message about a pool that was not opened.
pub fn open(error: &OpenError) -> String {
    // an older state does not help against a device that is full, or a claim
    let older = error.went_back && (way_back(&error.kind).is_some() || matches!(error.kind, OpenErrorKind::NoOlderWhole { .. }));
    let next = next_step(&error.kind).or(older.then_some(OLDER));
    let cause = match &error.kind {
        kind if error.unreadable && way_back(kind).is_some() => Some(READ_AGAIN.to_owned()),
        OpenErrorKind::NoRoot if error.unanswered.is_empty() => Some(NEVER_A_POOL.to_owned()),
        _ => None,
    };
    let parts = [Some(error.kind.to_string()), cause, next.map(str::to_owned), error.silence()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the option of an import with which a user gets past a damaged newest state.
pub fn way_back(kind: &OpenErrorKind) -> Option<&'static str> {
    match kind {
        OpenErrorKind::NoRoot => Some("--rebuild"),
        OpenErrorKind::RootDamaged { .. }
        | OpenErrorKind::LogUnreadable(_)
        | OpenErrorKind::BatchUnreadable(_)
        | OpenErrorKind::LogGone(_)
        | OpenErrorKind::ObjectUnreadable(_)
        | OpenErrorKind::NodeUnreadable(_)
        | OpenErrorKind::Damaged(_) => Some("--rewind"),
        _ => None,
    }
}

/// Returns the next step where it takes words of this program; the reason says the others.
fn next_step(kind: &OpenErrorKind) -> Option<&'static str> {
    match kind {
        OpenErrorKind::MemberMissing { need, .. } => Some(match need {
            Missing::Needed => "name it too",
            Missing::Special => "name it too, or do without it for good with --rebuild, which says with -n what would be lost",
            Missing::Redundant => "name it too, or import without it with --degraded",
        }),
        OpenErrorKind::Claimed { why: ClaimRefusal::InUse { .. }, .. } => {
            Some("export it there (--force takes it away from under its guests)")
        }
        OpenErrorKind::Claimed { why: ClaimRefusal::NotClosed { .. }, .. } => {
            Some("export the pool there, or take it over with --force when that host is off or has lost the devices for good")
        }
        OpenErrorKind::OnlyReadable { .. } => Some("install a newer version of Millpond, or import the pool with --readonly"),
        OpenErrorKind::LogReused { .. } => Some("choose an older one that is whole with --to, see 'millpond pool checkpoints'"),
        OpenErrorKind::CheckpointAbsent { .. } => Some("see 'millpond pool checkpoints'"),
        OpenErrorKind::CheckpointNotWhole { .. } => Some("choose another, see 'millpond pool checkpoints'"),
        _ => None,
    }
}
