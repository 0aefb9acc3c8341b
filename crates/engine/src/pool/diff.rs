//! Differences between two versions: compares both trees and skips equal addresses (births are not
//! enough: holes have none).
//!
//! The data of a disk is its difference from an empty one. A comparison is an operation that
//! continues turn by turn and looks up its roots anew each time: a head may be written meanwhile,
//! and the result for a block is its state when it was compared.

use std::collections::BTreeMap;

use millpond_block::{Answer, DiskError, Query, Tag};
use millpond_format::TreeRoot;

use super::op::{Op, Owner, Work};
use super::requests::Requests;
use crate::api::Target;
use crate::store::{Comparison, Found, STEPS_PER_QUERY, Store, state_of};
use crate::{Absent, CommandError};

/// Subtrees compared per turn, over all comparisons: some 50 microseconds.
pub(crate) const STEPS_PER_TURN: usize = 32;
/// Steps of a comparison that ends only when all is compared.
const UNLIMITED: usize = usize::MAX;

impl Requests {
    /// Starts a comparison; the result is returned by `pop_diff`.
    pub(crate) fn start_diff(&mut self, store: &mut Store, tag: Tag, older: Option<Target>, newer: Target) {
        let size = store.geometry(newer).map(|(geometry, _)| geometry.size);
        let known = older.is_none_or(|target| store.geometry(target).is_some());
        let Some(size) = size.filter(|_| known) else {
            return self.diffs.push_back((tag, Err(CommandError::NotFound(Absent::Version))));
        };
        let found = Found::Extents(Vec::new());
        let work = Comparison { older, newer, next: 0, end: size / 4096, steps: UNLIMITED, found };
        self.start_comparison(Owner::Command(tag), work);
    }

    /// Starts a guest's query; the answer is returned by `pop_answer`.
    pub(crate) fn start_query(&mut self, store: &mut Store, target: Target, tag: Tag, query: Query) {
        store.last_activity = store.now;
        if let Err(error) = store.admit_query(target, &query) {
            return self.answers.push_back(Answer { tag, result: Err(error) });
        }
        let range = query.range;
        let work = Comparison {
            older: query.since.map(state_of),
            newer: target,
            next: range.offset / 4096,
            end: (range.offset + range.length).div_ceil(4096),
            steps: STEPS_PER_QUERY,
            found: Found::Runs { range, runs: Vec::new(), most: query.most.max(1) },
        };
        self.start_comparison(Owner::Guest(tag), work);
    }

    /// Starts to find the segments that hold the data of a volume or snapshot; the reply is
    /// returned by `pop_reply`.
    pub(super) fn start_places(&mut self, store: &mut Store, tag: Tag, target: Target) {
        let Some(size) = store.geometry(target).map(|(geometry, _)| geometry.size) else {
            return store.replies.push_back((tag, Err(CommandError::NotFound(Absent::Target))));
        };
        let found = Found::Places(BTreeMap::new());
        let work = Comparison { older: None, newer: target, next: 0, end: size / 4096, steps: UNLIMITED, found };
        self.start_comparison(Owner::Command(tag), work);
    }

    /// Starts to find the lost ranges of a volume or snapshot; the reply is returned by
    /// `pop_reply`.
    pub(super) fn start_lost(&mut self, store: &mut Store, tag: Tag, target: Target) {
        let Some(size) = store.geometry(target).map(|(geometry, _)| geometry.size) else {
            return store.replies.push_back((tag, Err(CommandError::NotFound(Absent::Target))));
        };
        let found = Found::Lost(Vec::new());
        let work = Comparison { older: None, newer: target, next: 0, end: size / 4096, steps: UNLIMITED, found };
        self.start_comparison(Owner::Command(tag), work);
    }

    fn start_comparison(&mut self, owner: Owner, work: Comparison) {
        let id = self.new_op(owner, Work::Compare(Box::new(work)), false);
        self.ready.push_back(id);
    }

    /// Continues a comparison within the remaining steps of this turn.
    pub(super) fn try_compare(&mut self, store: &mut Store, id: u32) {
        let Some(Op { work: Work::Compare(work), .. }) = self.ops.get(id) else { return };
        let root = |target: Target| store.geometry(target).and_then(|_| store.root_of(target));
        let roots = (work.older.map_or(Some(TreeRoot::default()), root), root(work.newer));
        let (Some(older), Some(newer)) = roots else { return self.fail_op(store, id, DiskError::Invalid) };
        // a version of the time when the discard after a shrink was in progress has blocks beyond
        // its end, which nobody can read
        let older_end = work.older.and_then(|target| store.geometry(target)).map_or(u64::MAX, |(geometry, _)| geometry.size / 4096);
        while self.comparisons > 0 {
            self.comparisons -= 1;
            let Some(Op { work: Work::Compare(work), .. }) = self.ops.get_mut(id) else { return };
            if work.is_done() {
                return self.end_comparison(store, id);
            }
            let block = work.next;
            let (older, end) = if block < older_end { (older, work.end.min(older_end)) } else { (TreeRoot::default(), work.end) };
            // taken out of the operation while the trees are read
            let mut found = std::mem::replace(&mut work.found, Found::Extents(Vec::new()));
            let stop = store.compare(older, newer, block, end, &mut found);
            let Some(Op { work: Work::Compare(work), .. }) = self.ops.get_mut(id) else { return };
            work.found = found;
            match stop {
                Ok(stop) => {
                    work.next = stop;
                    work.steps = work.steps.saturating_sub(1);
                }
                Err(miss) => return self.load_node(store, miss, Some(id)),
            }
        }
        self.ready.push_back(id);
    }

    /// Ends a comparison once the last record is complete: blocks that a record in flight removed
    /// may be reported as gone only when the record cannot be lost any more (I10).
    fn end_comparison(&mut self, store: &mut Store, id: u32) {
        let after = store.last_record;
        if let Some(op) = self.ops.get_mut(id) {
            op.lsn = after;
        }
        self.release(store, id);
    }
}
