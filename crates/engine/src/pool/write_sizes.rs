//! The census: how much of each volume and its snapshots was written by requests of which size. It
//! shows how much data special devices would hold.
//!
//! Every block is counted once, in the last version of its lineage that has it and only if it was
//! born in that lineage. So a subtree that a version shares with the next one is skipped as a
//! whole. Like a comparison the census continues turn by turn and looks up roots anew each time:
//! blocks that change meanwhile may be counted in their old or new state.

use std::collections::BTreeMap;

use millpond_block::Tag;

use super::op::{Op, Owner, Work};
use super::requests::Requests;
use crate::store::{CensusWork, STEPS_PER_LEAF, Spans, Store};
use crate::tree::capacity;

impl Requests {
    /// Starts a census; the reply is returned by `pop_reply`.
    pub(super) fn start_census(&mut self, store: &mut Store, tag: Tag) {
        let version = store.core.catalog.lineages.keys().next().map(|id| (*id, None));
        let work = CensusWork { version, next: 0, spans: Spans::default(), volumes: BTreeMap::new(), nodes: 0 };
        let id = self.new_op(Owner::Command(tag), Work::WriteSizes(Box::new(work)), false);
        self.ready.push_back(id);
    }

    /// Continues a census within the remaining steps of this turn.
    pub(super) fn try_census(&mut self, store: &mut Store, id: u32) {
        while self.comparisons > 0 {
            self.comparisons = self.comparisons.saturating_sub(STEPS_PER_LEAF);
            let Some(Op { work: Work::WriteSizes(work), .. }) = self.ops.get_mut(id) else { return };
            let Some(version) = work.version else { return self.release(store, id) };
            // taken out of the operation while the trees are read
            let (mut spans, next) = (std::mem::take(&mut work.spans), work.next);
            let looked = match store.part(version) {
                Some(part) if part.root.addr.is_some() && next < capacity(part.root.height) => {
                    store.look_into(&part, next, &mut spans).map(Some)
                }
                _ => Ok(None),
            };
            let after = store.following(version);
            let volume = store.core.catalog.lineages.get(&version.0).map(|line| line.volume);
            let Some(Op { work: Work::WriteSizes(work), .. }) = self.ops.get_mut(id) else { return };
            match looked {
                Ok(Some(look)) => {
                    work.next = look.stop;
                    work.nodes += look.nodes;
                    if let Some(volume) = volume.filter(|_| look.special > 0) {
                        work.of(volume).special += look.special * 4096;
                    }
                }
                Ok(None) => {
                    let sizes = spans.take();
                    if let Some(volume) = volume {
                        work.of(volume).sizes.iter_mut().zip(sizes).for_each(|(bytes, blocks)| *bytes += blocks * 4096);
                    }
                    (work.version, work.next) = (after, 0);
                }
                Err(miss) => {
                    work.spans = spans;
                    return self.load_node(store, miss, Some(id));
                }
            }
            work.spans = spans;
        }
        self.ready.push_back(id);
    }
}
