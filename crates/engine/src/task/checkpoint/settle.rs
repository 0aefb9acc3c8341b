//! Checksums of the nodes that a checkpoint writes: computed children first, and stored in their
//! parents.
//!
//! INV-CKPT-3: no node is written before all checksums are known and in every parent in memory,
//! including parents created meanwhile; so a node that is evicted can be read again from every
//! pointer to it.

use millpond_format::{Addr, Coding, NODE_BYTES, NODE_UNITS, Node, TreeRoot};

use super::seal::{Sealed, settle_records};
use crate::core::Core;
use crate::store::Store;

/// Progress of the checksums of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// Chunks of nodes listed so far.
    chunks: usize,
    /// Listed leaves without checksum.
    leaves: Vec<u32>,
    /// Listed inner nodes without checksum, by level, from 1.
    inner: Vec<Vec<u32>>,
    pub(super) done: bool,
}

impl Core {
    /// Returns the checksum of a node that the running checkpoint writes.
    pub(super) fn sealed_sum(&self, addr: Addr) -> Option<u32> {
        let cached = self.nodes.get(self.nodes.find(addr)?);
        cached.crc.filter(|_| cached.dirty != 0 && cached.dirty < self.generation)
    }

    /// Stores the known checksums in a node's pending entries.
    fn settle_entries(&mut self, at: u32) {
        let pending: Vec<usize> =
            self.nodes.get(at).node.entries.iter().enumerate().filter(|(_, e)| e.is_pending()).map(|(i, _)| i).collect();
        for slot in pending {
            let entry = self.nodes.get(at).node.entries[slot];
            if let Some(sum) = self.sealed_sum(entry) {
                let node = &mut self.nodes.get_mut(at).node;
                node.crcs[slot] = sum;
                node.entries[slot] = entry.settled();
            }
        }
    }

    /// Computes the checksum of a node; those of its children are known. A child that was freed
    /// before the checkpoint was sealed has none, and is never reached through this parent again.
    fn sum_node(&mut self, at: u32, buf: &mut [u8]) {
        if self.nodes.get(at).node.level > 0 {
            self.settle_entries(at);
        }
        let Some(out) = buf.get_mut(..NODE_BYTES) else { return };
        let cached = self.nodes.get_mut(at);
        cached.node.encode(cached.addr, out);
        cached.crc = Node::checksum(out);
    }

    /// Stores the checksums in all pointers to nodes of the checkpoint from outside it; all
    /// checksums are known.
    fn settle_pointers(&mut self) {
        for addr in self.unsettled.take().unwrap_or_default() {
            if let Some(at) = self.nodes.find(addr) {
                self.settle_entries(at);
            }
        }
        let mut catalog = std::mem::take(&mut self.catalog);
        let settle = |root: &mut TreeRoot| {
            if root.addr.is_pending()
                && let Some(crc) = self.sealed_sum(root.addr)
            {
                *root = TreeRoot { addr: root.addr.settled(), crc, ..*root };
            }
            !root.addr.is_pending()
        };
        catalog.lineages.values_mut().filter_map(|line| line.head.as_mut()).for_each(|head| {
            settle(&mut head.root);
        });
        catalog.snapshots.settle(|snapshot| settle(&mut snapshot.root));
        for walk in catalog.walks.values_mut() {
            settle(&mut walk.root);
            if self.nodes.find(walk.root.addr).is_none() {
                walk.root.addr = walk.root.addr.settled();
            }
        }
        self.catalog = catalog;
    }
}

/// Computes checksums, about `budget` nodes' worth.
pub(super) fn settle_some(store: &mut Store, sealed: &mut Sealed, mut budget: usize) {
    let mut buf = store.bufs.take(NODE_BYTES);
    while budget > 0 && !sealed.settling.done {
        budget -= 1;
        let settling = &mut sealed.settling;
        if let Some(leaf) = settling.leaves.pop() {
            store.core.sum_node(leaf, buf.bytes_mut());
        } else if let Some(flush) = sealed.flushes.get_mut(settling.chunks) {
            settling.chunks += 1;
            for slot in flush.live.iter() {
                let addr = Addr::new(flush.chunk, slot, NODE_UNITS, Coding::Raw);
                let at = store.core.nodes.find(addr).expect("INV-MAP-3: a node that was never written is in memory");
                flush.nodes.push(at);
                match usize::from(store.core.nodes.get(at).node.level) {
                    0 => settling.leaves.push(at),
                    level => {
                        settling.inner.resize_with(settling.inner.len().max(level), Vec::new);
                        settling.inner[level - 1].push(at);
                    }
                }
            }
            budget = budget.saturating_sub(flush.nodes.len() / 16);
        } else if let Some(node) = settling.inner.iter_mut().find_map(Vec::pop) {
            store.core.sum_node(node, buf.bytes_mut());
        } else {
            settling.done = true;
            store.core.settle_pointers();
            settle_records(store, sealed);
        }
    }
    store.bufs.give(buf);
}
