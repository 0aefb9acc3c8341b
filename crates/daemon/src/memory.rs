//! Keeps the record of the labels in force up to date: INV-MEMORY-1 in
//! `crates/engine/src/startup.rs`.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use millpond_api::{ApiError, EventKind};
use millpond_engine::{Evidence, ImportRules, LabelsInForce, PoolState};
use tokio::time::sleep;

use super::labels::Labelled;
use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};
use super::state::InForce;
use crate::hint;
use millpond_api::instant;

/// Time between two tries to write the state file.
const AGAIN: Duration = Duration::from_secs(2);

impl InForce {
    /// Returns the record of `labels`; `before` is the previous record.
    pub(super) fn of(labels: &LabelsInForce, before: Option<&InForce>) -> InForce {
        let (mut current, mut replacements) = (BTreeMap::new(), BTreeMap::new());
        for (member, device) in &labels.current {
            let place = if current.contains_key(&member.0) { &mut replacements } else { &mut current };
            place.insert(member.0, device.0);
        }
        let since = match before {
            Some(before) if before.generation == labels.generation && before.current == current && before.replacements == replacements => {
                before.since
            }
            _ => instant::now(),
        };
        let left_behind = labels.left_behind || before.is_some_and(|before| before.left_behind);
        InForce { generation: labels.generation, current, replacements, left_behind, since }
    }
}

/// Waits until the labels of a pool that has just come into service are durable on all of its
/// devices, and returns them.
///
/// # Errors
/// When the pool stops before that.
pub(super) async fn settled(shard: &ShardHandle) -> Result<LabelsInForce, ApiError> {
    let (mut labels, mut state) = (shard.labels(), shard.state());
    let gone = |_| ApiError::from(ShardError::Gone);
    let stopped = async {
        let stopped = state.wait_for(|state| !matches!(state, PoolState::Opening | PoolState::Online)).await;
        stopped.map(|state| state.clone())
    };
    tokio::select! {
        biased;
        labels = labels.wait_for(Option::is_some) => {
            labels.map_err(gone)?.clone().ok_or_else(|| ApiError::internal("the pool has no labels"))
        }
        state = stopped => Err(match state.map_err(gone)? {
            PoolState::Faulted(fault) => ApiError::busy(hint::fault(&fault)),
            state => ApiError::busy(format!("it came to {state:?}")),
        }),
    }
}

impl Daemon {
    /// Returns the rules for imports by the daemon itself.
    pub(super) fn rules(&self) -> ImportRules {
        ImportRules { wait: self.options.import_wait, planted: self.options.tuning.planted }
    }

    /// Returns the evidence of the labels that were found, as this host judges it.
    pub(super) fn evidence(&self, found: &Labelled) -> Evidence {
        found.evidence(self.options.tuning.holder.as_ref().map(|holder| holder.host))
    }

    /// Saves the labels in force of every pool in service whenever they change, as long as the
    /// daemon lives.
    pub(super) async fn keep_labels(&self) {
        let (mut unsaved, mut reported) = (false, false);
        loop {
            let mut changes = vec![pending::<()>().boxed()];
            for (name, shard) in self.shards() {
                let mut labels = shard.labels();
                let now = labels.borrow_and_update().clone();
                unsaved |= now.is_some_and(|now| self.note_labels(&name, &now));
                let next = async move {
                    if labels.changed().await.is_err() {
                        pending::<()>().await; // the shard has ended: its labels change no more
                    }
                };
                changes.push(next.boxed());
            }
            if unsaved {
                let saved = self.save();
                unsaved = saved.is_err();
                if let Some(error) = saved.err().filter(|_| !reported) {
                    self.tell(EventKind::StateUnsaved, format!("which devices are up to date is not remembered: {}", error.message));
                }
                reported = unsaved;
            }
            tokio::select! {
                () = self.pools_changed.notified() => {}
                _ = select_all(changes) => {}
                () = sleep(AGAIN), if unsaved => {}
            }
        }
    }

    /// Records the labels of all pools in service. True when some have changed.
    pub(super) fn note_all_labels(&self) -> bool {
        let labels = |shard: &ShardHandle| shard.labels().borrow().clone();
        let known: Vec<_> = self.shards().into_iter().filter_map(|(name, shard)| Some((name, labels(&shard)?))).collect();
        known.iter().fold(false, |changed, (name, labels)| self.note_labels(name, labels) | changed)
    }

    /// Records the labels of a pool. True when they have changed.
    fn note_labels(&self, name: &str, labels: &LabelsInForce) -> bool {
        let rules = self.rules();
        let mut registry = self.registry();
        let Some(entry) = registry.pools.get_mut(name) else { return false };
        let changed = rules.is_news(entry.record.remembered().as_ref(), labels);
        if changed {
            entry.record.in_force = Some(InForce::of(labels, entry.record.in_force.as_ref()));
        }
        changed
    }
}
