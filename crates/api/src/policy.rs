//! Policies: snapshots by a schedule, with thinning.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;

words! {
    /// State of a policy, or of a volume under it.
    pub enum PolicyState {
        /// Runs are made when they are due.
        Ok = "ok",
        /// A run is overdue or has failed; `reason` says why.
        Late = "late",
        /// The pool is not imported on this host.
        Waiting = "waiting",
        /// No volume is attached.
        Idle = "idle",
    }
}

/// Request to create a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePolicy {
    /// Name of the policy.
    pub name: String,
    /// Rules, for example `1s:1h 1m:1d 1h:7d 1d:60d`: keeps the first snapshot of each second of
    /// the newest hour, and so on.
    pub keep: String,
    /// If true, snapshots of all volumes of a pool are taken at one instant.
    #[serde(default)]
    pub group: bool,
    /// Calendar time of the runs, for example `hourly` or `mon-fri 02:30`; by default a run at the
    /// beginning of each step of the finest rule.
    #[serde(default)]
    pub at: Option<String>,
    /// IANA name of the time zone of days and calendar times; by default that of the host.
    #[serde(default)]
    pub zone: Option<String>,
    /// Seconds for which each snapshot is locked.
    #[serde(default)]
    pub lock_seconds: Option<u64>,
    /// Seconds after which each snapshot expires, in any case.
    #[serde(default)]
    pub expire_seconds: Option<u64>,
    /// Order in which snapshots are destroyed before their time when a pool is nearly full, lower
    /// numbers first; without it, or 0, they are not.
    #[serde(default)]
    pub prune: Option<u32>,
    /// Names of the snapshots: `{policy}` and `{time}` are replaced. By default
    /// `auto-{policy}-{time}`.
    #[serde(default)]
    pub template: Option<String>,
    /// Unix socket of the QEMU guest agent: the file systems of guests are frozen while their
    /// snapshots are taken. `{pool}`, `{volume}` and `{vmid}` are replaced, for each volume.
    #[serde(default)]
    pub freeze: Option<String>,
    /// If true, no snapshot is taken when the guest cannot be frozen.
    #[serde(default)]
    pub freeze_required: bool,
    /// Where the snapshots are sent: `POOL`, `ssh://[USER@]HOST[:PORT]/POOL`, `unix:SOCKET/POOL`, an
    /// absolute directory, or `s3://BUCKET/PREFIX`. All but `POOL` need the role `admin`.
    #[serde(default)]
    pub send: Option<String>,
    /// If true, only reports the policy.
    #[serde(default)]
    pub dry_run: bool,
}

/// Request to change a policy. A missing property does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// As in [`CreatePolicy`].
    pub keep: Option<String>,
    /// As in [`CreatePolicy`].
    pub group: Option<bool>,
    /// As in [`CreatePolicy`]; an empty text removes the calendar time.
    pub at: Option<String>,
    /// As in [`CreatePolicy`].
    pub zone: Option<String>,
    /// As in [`CreatePolicy`]; 0 removes it, for snapshots that are taken later.
    pub lock_seconds: Option<u64>,
    /// As in [`CreatePolicy`]; 0 removes it, for snapshots that are taken later.
    pub expire_seconds: Option<u64>,
    /// As in [`CreatePolicy`]; 0 removes it.
    pub prune: Option<u32>,
    /// As in [`CreatePolicy`]; snapshots with earlier names stay under the policy.
    pub template: Option<String>,
    /// As in [`CreatePolicy`]; an empty text removes it.
    pub freeze: Option<String>,
    /// As in [`CreatePolicy`].
    pub freeze_required: Option<bool>,
    /// As in [`CreatePolicy`]; an empty text ends sending.
    #[serde(default)]
    pub send: Option<String>,
}

/// Volumes to attach to a policy, or to detach from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyVolumes {
    /// Names, `pool/volume` each.
    pub volumes: Vec<String>,
}

/// State of the sends of a volume to the target of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicySend {
    /// Newest snapshot that is complete at the target, the part after `@`; null if there is none, or
    /// the daemon has not looked.
    pub newest: Option<String>,
    /// Time when that snapshot was taken.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub taken: Option<Timestamp>,
    /// Time when the last send ended successfully since the daemon started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub sent: Option<Timestamp>,
    /// Age of that snapshot in seconds.
    pub lag_seconds: Option<u64>,
    /// True while a send runs.
    pub running: bool,
    /// Progress of the running send, in one line.
    pub progress: Option<String>,
    /// Sends that failed since the last successful one.
    pub failing: u64,
    /// Sends that failed since the daemon started.
    pub failed: u64,
    /// Reason of the last failure; null after a success.
    pub error: Option<String>,
    /// Earliest time of the next attempt after a failure.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retry: Option<Timestamp>,
}

/// A volume under a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyVolume {
    /// `pool/volume`.
    pub name: String,
    /// State of the runs in its pool.
    pub state: PolicyState,
    /// Reason if runs are late.
    pub reason: Option<String>,
    /// Reason if the last run in its pool did not freeze a guest.
    #[serde(default)]
    pub not_frozen: Option<String>,
    /// Number of snapshots that the policy has of it; null before the daemon has looked.
    pub snapshots: Option<u64>,
    /// Time of the oldest one.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest: Option<Timestamp>,
    /// Time of the newest one.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub newest: Option<Timestamp>,
    /// Time of the next run.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next: Option<Timestamp>,
    /// Sends to the target; null if the policy does not send.
    #[serde(default)]
    #[schema(value_type = Option<PolicySend>)]
    pub send: Option<PolicySend>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// Name of the policy.
    pub name: String,
    /// Rules, finest first.
    pub keep: String,
    /// Most snapshots that the rules keep of one volume.
    pub keeps: u64,
    /// True if snapshots of all volumes of a pool are taken at one instant.
    pub group: bool,
    /// Calendar time of the runs; null for one run in each step of the finest rule.
    pub at: Option<String>,
    /// Time zone of days and calendar times.
    pub zone: String,
    /// Seconds for which each snapshot is locked.
    pub lock_seconds: Option<u64>,
    /// Seconds after which each snapshot expires.
    pub expire_seconds: Option<u64>,
    /// Order in which snapshots are destroyed before their time; null if they are not.
    #[serde(default)]
    pub prune: Option<u32>,
    /// Names of the snapshots.
    pub template: String,
    /// Unix socket of the guest agent, with placeholders; null if guests are not frozen.
    #[serde(default)]
    pub freeze: Option<String>,
    /// True if no snapshot is taken when the guest cannot be frozen.
    #[serde(default)]
    pub freeze_required: bool,
    /// Where the snapshots are sent; null if they are not.
    #[serde(default)]
    pub send: Option<String>,
    /// Age in seconds of the oldest of the newest snapshots at the target, over all volumes; null if
    /// it is not known.
    #[serde(default)]
    pub lag_seconds: Option<u64>,
    /// Worst state of its volumes.
    pub state: PolicyState,
    /// Reason if runs are late.
    pub reason: Option<String>,
    /// Volumes under the policy.
    pub volumes: Vec<PolicyVolume>,
    /// Snapshots taken since the daemon started.
    pub taken: u64,
    /// Snapshots destroyed since the daemon started, because newer ones replaced them.
    pub destroyed: u64,
    /// Runs that were due since the daemon started and were not made at their time.
    pub missed: u64,
    /// Runs since the daemon started in which a guest was not frozen.
    #[serde(default)]
    pub not_frozen: u64,
}

/// Request to run a policy now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunPolicy {
    /// If true, only reports what would be taken and destroyed.
    #[serde(default)]
    pub dry_run: bool,
    /// Properties that the dry run assumes in the place of the policy's own.
    #[serde(default)]
    pub change: Option<SetPolicy>,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRun {
    /// Full names of snapshots that were taken, or would be.
    pub taken: Vec<String>,
    /// Full names of snapshots that were destroyed, or would be.
    pub destroyed: Vec<String>,
    /// Full names of superfluous snapshots that stay for now: they are held, locked, exported, or
    /// have clones.
    pub kept: Vec<String>,
    /// Reasons why guests were not frozen.
    #[serde(default)]
    pub not_frozen: Vec<String>,
    /// Full names of volumes of which a send is due now.
    #[serde(default)]
    pub sending: Vec<String>,
}
