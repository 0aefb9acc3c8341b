//! Series of policies.

use millpond_api::{Policy, PolicySend, PolicyState};

use super::series::Kind::{Counter, Gauge};
use super::series::{Samples, Series, Subject};

impl Subject for Policy {
    const LABELS: &'static [&'static str] = &["policy"];

    fn values(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

pub(super) const POLICIES: &[Series<Policy>] = &[
    Series {
        name: "millpond_policy_state",
        kind: Gauge,
        help: "1 for the state of a policy, 0 for the others",
        labels: &["state"],
        read: |policy, to| to.put_state(PolicyState::WORDS, policy.state.as_str()),
    },
    Series {
        name: "millpond_policy_volumes",
        kind: Gauge,
        help: "Volumes under the policy",
        labels: &[],
        read: |policy, to| to.put(&[], policy.volumes.len() as u64),
    },
    Series {
        name: "millpond_policy_snapshots",
        kind: Gauge,
        help: "Snapshots of the policy, as far as the daemon has looked",
        labels: &[],
        read: |policy, to| to.put(&[], policy.volumes.iter().filter_map(|volume| volume.snapshots).sum::<u64>()),
    },
    Series {
        name: "millpond_policy_snapshots_taken",
        kind: Counter,
        help: "Snapshots taken since the daemon started",
        labels: &[],
        read: |policy, to| to.put(&[], policy.taken),
    },
    Series {
        name: "millpond_policy_snapshots_destroyed",
        kind: Counter,
        help: "Snapshots destroyed since the daemon started",
        labels: &[],
        read: |policy, to| to.put(&[], policy.destroyed),
    },
    Series {
        name: "millpond_policy_runs_missed",
        kind: Counter,
        help: "Runs since the daemon started that were not made at their time",
        labels: &[],
        read: |policy, to| to.put(&[], policy.missed),
    },
    Series {
        name: "millpond_policy_runs_not_frozen",
        kind: Counter,
        help: "Runs since the daemon started in which a guest was not frozen",
        labels: &[],
        read: |policy, to| to.put(&[], policy.not_frozen),
    },
    Series {
        name: "millpond_policy_send_lag_seconds",
        kind: Gauge,
        help: "Age of the newest snapshot that is complete at the target",
        labels: &["pool", "volume"],
        read: |policy, to| of_volumes(policy, to, |send| send.lag_seconds),
    },
    Series {
        name: "millpond_policy_send_success_timestamp_seconds",
        kind: Gauge,
        help: "End of the last successful send since the daemon started",
        labels: &["pool", "volume"],
        read: |policy, to| of_volumes(policy, to, |send| u64::try_from(send.sent?.as_second()).ok()),
    },
    Series {
        name: "millpond_policy_sends_failed",
        kind: Counter,
        help: "Sends that failed since the daemon started",
        labels: &["pool", "volume"],
        read: |policy, to| of_volumes(policy, to, |send| Some(send.failed)),
    },
    Series {
        name: "millpond_policy_sends_failing",
        kind: Gauge,
        help: "Sends that failed since the last successful one",
        labels: &["pool", "volume"],
        read: |policy, to| of_volumes(policy, to, |send| Some(send.failing)),
    },
];

/// Hands over a number of each volume that is sent.
fn of_volumes(policy: &Policy, to: &mut Samples<'_, '_>, number: fn(&PolicySend) -> Option<u64>) {
    for volume in &policy.volumes {
        let Some((pool, name)) = volume.name.split_once('/') else { continue };
        if let Some(number) = volume.send.as_ref().and_then(number) {
            to.put(&[pool, name], number);
        }
    }
}
