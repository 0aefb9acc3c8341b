//! The decisions of a send of a volume, from the snapshots of both ends alone.
//!
//! Snapshots are compared by identity. INV-POLICY-3: a snapshot is destroyed at the target only if
//! it was received, has the mark of the policy and a time in its name, is older than the newest
//! common one, is not held and has no clones, and the source does not have it.

use std::collections::BTreeSet;

use millpond_api::Snapshot;
use millpond_api::identity::{
    RECEIVING, RECEIVING_NEXT, RECEIVING_VERIFIED, RECEIVING_VOLUME, Receiving, ResumeToken, SnapshotIdentity, is_failover, is_reserved,
};

use crate::policy::Terms;

/// The snapshots of a volume at both ends.
pub(super) struct Ends {
    /// Complete ones of the source, oldest first.
    source: Vec<Snapshot>,
    /// Complete ones of the target, oldest first.
    target: Vec<Snapshot>,
    /// The incomplete receive there.
    incoming: Option<Receiving>,
}

/// The next step of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The policy has taken no snapshot that the target lacks.
    Nothing,
    /// The receive at the target cannot be continued, and its snapshot is gone: it is given up.
    Abandon,
    /// Snapshots are sent.
    Send {
        /// The range, as `send` takes it after the name of the volume: `@A%B`.
        range: String,
        /// The newest snapshot of the range.
        last: Box<Snapshot>,
        /// Token of an interrupted receive.
        resume: Option<ResumeToken>,
    },
}

/// Returns the part of a snapshot's name after `@`.
pub(super) fn part(snapshot: &Snapshot) -> &str {
    snapshot.name.rsplit_once('@').map_or("", |(_, name)| name)
}

fn is_complete(snapshot: &Snapshot) -> bool {
    snapshot.identity.is_some() && !is_reserved(part(snapshot))
}

fn incomplete(snapshots: &[&Snapshot]) -> Option<Receiving> {
    let of = |name: &str| snapshots.iter().find(|snapshot| part(snapshot) == name)?.receiving.clone();
    of(RECEIVING_VERIFIED).or_else(|| of(RECEIVING)).or_else(|| of(RECEIVING_NEXT).filter(|receiving| receiving.position == 0))
}

impl Ends {
    /// Returns both ends from lists that are oldest first; `there` is `POOL/VOL` at the target, and
    /// `listed` may have other volumes of the pool.
    pub(super) fn new(source: Vec<Snapshot>, there: &str, listed: Vec<Snapshot>) -> Ends {
        let new = there.replacen('/', &format!("/{RECEIVING_VOLUME}"), 1);
        let of = |name: &str| listed.iter().filter(|snapshot| snapshot.name.rsplit_once('@').is_some_and(|(of, _)| of == name)).collect();
        let (own, incoming): (Vec<&Snapshot>, Vec<&Snapshot>) = (of(there), of(&new));
        Ends {
            source: source.into_iter().filter(is_complete).collect(),
            incoming: incomplete(&own).or_else(|| incomplete(&incoming)),
            target: own.into_iter().filter(|snapshot| is_complete(snapshot)).cloned().collect(),
        }
    }

    /// Returns the newest snapshot of the source that the target has.
    pub(super) fn common(&self) -> Option<&Snapshot> {
        let there: BTreeSet<&SnapshotIdentity> = self.target.iter().filter_map(|snapshot| snapshot.identity.as_ref()).collect();
        self.source.iter().rfind(|snapshot| snapshot.identity.as_ref().is_some_and(|identity| there.contains(identity)))
    }

    /// Returns the snapshots that the target lacks, oldest first, up to the newest of the policy.
    pub(super) fn lacking(&self, terms: &Terms) -> &[Snapshot] {
        let common = self.common();
        let begin = common.and_then(|common| self.source.iter().position(|snapshot| snapshot.id == common.id)).map_or(0, |base| base + 1);
        let last = self.source.iter().rposition(|snapshot| terms.time_of(part(snapshot), &snapshot.description).is_some());
        last.and_then(|last| self.source.get(begin..=last)).unwrap_or_default()
    }

    /// Returns the next step.
    ///
    /// # Errors
    /// The reason why the target takes no snapshots of this volume.
    pub(super) fn step(&self, terms: &Terms) -> Result<Step, String> {
        let common = self.common();
        self.check_failover(common)?;
        let sent = self.lacking(terms);
        let Some(last) = sent.last() else { return Ok(Step::Nothing) };
        let resume = match &self.incoming {
            None => None,
            Some(incoming) => match self.continues(incoming, common, sent)? {
                true => Some(incoming.token()),
                false => return Ok(Step::Abandon),
            },
        };
        let from = common.map(part).unwrap_or_default();
        Ok(Step::Send { range: format!("@{from}%{}", part(last)), last: Box::new(last.clone()), resume })
    }

    /// Returns whether the incomplete receive at the target is one of these snapshots on this base.
    fn continues(&self, incoming: &Receiving, common: Option<&Snapshot>, sent: &[Snapshot]) -> Result<bool, String> {
        let place = sent.iter().position(|snapshot| snapshot.identity.as_ref() == Some(&incoming.identity));
        let before = place.map(|place| place.checked_sub(1).map_or(common, |before| sent.get(before)));
        if before.is_some_and(|before| before.and_then(|before| before.identity.as_ref()) == incoming.base.as_ref()) {
            return Ok(true);
        }
        let of_source = |snapshot: &Snapshot| snapshot.identity.as_ref().is_some_and(|own| own.is_of_same_pool(&incoming.identity));
        if self.source.iter().any(of_source) {
            return Ok(false);
        }
        Err(format!("there is an incomplete receive of a snapshot of another pool ({}); finish it, or give it up", incoming.identity))
    }

    /// Refuses to send to a target where the work went on.
    fn check_failover(&self, common: Option<&Snapshot>) -> Result<(), String> {
        let is_common = |snapshot: &Snapshot| common.is_some_and(|common| common.identity == snapshot.identity);
        let after = self.target.iter().rposition(is_common).map_or(0, |common| common + 1);
        match self.target.iter().skip(after).find(|snapshot| is_failover(snapshot)) {
            Some(begun) => Err(format!(
                "the volume was failed over there ('{}'); 'millpond failback' brings its state back, or destroy that snapshot",
                begun.name
            )),
            None => Ok(()),
        }
    }

    /// Returns the full names of the snapshots that the policy no longer needs at the target.
    pub(super) fn superfluous(&self, terms: &Terms) -> Vec<String> {
        let kept: BTreeSet<&SnapshotIdentity> = self.source.iter().filter_map(|snapshot| snapshot.identity.as_ref()).collect();
        let Some(common) = self.common() else { return Vec::new() };
        let older = self.target.iter().take_while(|snapshot| snapshot.identity != common.identity);
        let goes = |snapshot: &&Snapshot| {
            let is_own = snapshot.received && terms.time_of(part(snapshot), &snapshot.description).is_some();
            let is_free = snapshot.holds == 0 && snapshot.clones == 0;
            is_own && is_free && snapshot.identity.as_ref().is_some_and(|identity| !kept.contains(identity))
        };
        older.filter(goes).map(|snapshot| snapshot.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
