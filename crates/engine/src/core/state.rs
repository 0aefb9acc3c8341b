//! [`Core`]: the whole state, and the addresses of map nodes.

use std::rc::Rc;

use millpond_format::{Addr, ChunkId, Coding, Epoch, FANOUT, LineageId, NODE_UNITS, Node, ObjectRef};

use super::catalog::Catalog;
use super::stored_deadlist::{Stored, StoredDeadlist};
use crate::Planted;
use crate::space::{Chunk, Deadlist, NODE_GRAIN, Pieces, Place, Slots, Space};
use crate::tree::{NodeCache, capacity};

/// Nodes of one chunk that the running checkpoint writes.
#[derive(Debug)]
pub(crate) struct MetaFlush {
    pub(crate) chunk: ChunkId,
    /// Slots of its nodes that were live when the checkpoint was fixed.
    pub(crate) live: Slots,
    /// Handles of these nodes in slot order, once looked up.
    pub(crate) nodes: Vec<u32>,
    /// Place where they are written.
    pub(crate) place: Option<Place>,
}

/// The state of a pool.
pub(crate) struct Core {
    pub(crate) space: Space,
    pub(crate) nodes: NodeCache,
    pub(crate) catalog: Catalog,
    /// The pieces of all deadlists.
    pub(crate) pieces: Rc<Pieces>,
    /// Current epoch; the first is 1.
    pub(crate) epoch: Epoch,
    /// Number of guest blocks ever written: the write clock.
    pub(crate) clock: u64,
    /// Rollbacks since the import.
    pub(crate) rollbacks: u64,
    pub(crate) next_chunk: u64,
    /// Current dirty generation, which nodes get that change after the last checkpoint began.
    pub(crate) generation: u64,
    /// Longest chunk in units.
    pub(crate) chunk_units: u32,
    /// Chunks in which new nodes get their addresses: for leaves, for inner nodes.
    meta_open: [Option<ChunkId>; 2],
    /// Chunks of nodes without a place yet, oldest first.
    meta_unplaced: Vec<ChunkId>,
    pub(crate) nodes_touched: u64,
    pub(crate) planted: Option<Planted>,
    pub(super) deaths: u64,
    /// Bytes of the longest directory of a head's deadlist.
    longest_list: usize,
    /// True when that list may have become shorter, so that the longest one has to be searched.
    longest_gone: bool,
    /// Stored objects that the next checkpoint does not need.
    retired: Vec<ObjectRef>,
    /// Such objects whose place the running checkpoint may still set.
    retired_meanwhile: Vec<Stored>,
    /// Lists that are no longer needed; their pieces are released in slices.
    fading: Vec<Rc<Deadlist>>,
    /// Inner nodes created while the running checkpoint computes checksums: they may point to nodes
    /// whose checksum is not known yet.
    pub(crate) unsettled: Option<Vec<Addr>>,
}

impl Core {
    /// `pieces`: the pieces that deadlists will consist of.
    pub(crate) fn new(space: Space, nodes: NodeCache, chunk_units: u32, pieces: Rc<Pieces>, planted: Option<Planted>) -> Core {
        Core {
            pieces,
            space,
            nodes,
            catalog: Catalog::default(),
            epoch: Epoch(1),
            clock: 0,
            rollbacks: 0,
            next_chunk: 1,
            generation: 1,
            chunk_units,
            meta_open: [None; 2],
            meta_unplaced: Vec::new(),
            nodes_touched: 0,
            planted,
            deaths: 0,
            longest_list: 0,
            longest_gone: true,
            retired: Vec::new(),
            retired_meanwhile: Vec::new(),
            fading: Vec::new(),
            unsettled: None,
        }
    }

    /// Creates a chunk with an id that was never used.
    pub(crate) fn new_chunk(&mut self, class: u8, grain: u8) -> ChunkId {
        let id = ChunkId(self.next_chunk);
        self.next_chunk += 1;
        self.space.chunks.insert(id, Chunk::new(self.epoch, self.clock, class, grain));
        id
    }

    /// Returns an address for a node of `level`, born in the current epoch. It gets a place when a
    /// checkpoint writes the node.
    pub(crate) fn new_node_addr(&mut self, level: u8) -> Addr {
        let kind = usize::from(level > 0);
        let open = self.meta_open[kind].and_then(|id| self.space.chunks.get(id).map(|chunk| (id, chunk)));
        let fits = |chunk: &Chunk| chunk.epoch == self.epoch && (chunk.slots + 1) * NODE_UNITS <= self.chunk_units;
        let id = match open {
            Some((id, chunk)) if fits(chunk) => id,
            _ => {
                if let Some(id) = self.meta_open[kind] {
                    self.space.close_chunk(id);
                }
                let id = self.new_chunk(crate::log::META_CLASS, NODE_GRAIN);
                self.meta_open[kind] = Some(id);
                self.meta_unplaced.push(id);
                id
            }
        };
        let slot = self.space.chunks.get_mut(id).map_or(0, |chunk| {
            chunk.slots += 1;
            chunk.slots - 1
        });
        self.space.make_live(id, slot, 1);
        let addr = Addr::new(id, slot, NODE_UNITS, Coding::Raw);
        if let Some(unsettled) = self.unsettled.as_mut().filter(|_| level > 0) {
            unsettled.push(addr);
        }
        addr
    }

    /// Creates a dirty node in place of a hole, or of a base.
    pub(crate) fn new_node(&mut self, level: u8, index: u64, lineage: LineageId, instead: Addr) -> (Addr, u32) {
        let addr = self.new_node_addr(level);
        let mut node = Node::empty(level, lineage, index, self.epoch);
        if let Some(base) = instead.base().filter(|_| self.planted != Some(Planted::BaseEntryAsHole)) {
            let (first, blocks) = (index.saturating_mul(capacity(level + 1)), self.catalog.base_blocks(base));
            let left = blocks.saturating_sub(first).div_ceil(capacity(level));
            let children = usize::try_from(left).unwrap_or(FANOUT).min(FANOUT);
            node.entries[..children].fill(instead);
        }
        let at = self.nodes.insert(addr, node, self.generation);
        (addr, at)
    }

    /// Frees a node's address and memory.
    pub(crate) fn free_node(&mut self, addr: Addr) {
        self.space.free(addr);
        self.nodes.forget(addr, self.generation);
    }

    /// Maximum bytes of the tail of a head's deadlist.
    pub(super) fn longest_tail(&self) -> usize {
        self.pieces.longest_tail(self.catalog.lineages.len())
    }

    /// Bytes of the longest directory of a head's deadlist. Examines all heads when the longest
    /// list has become shorter.
    pub(crate) fn longest_list(&mut self) -> usize {
        if std::mem::take(&mut self.longest_gone) {
            let lists = self.catalog.lineages.values().map(|line| line.deadlist.list());
            self.longest_list = lists.map(|list| self.pieces.directory_bytes(list)).max().unwrap_or(0);
        }
        self.longest_list
    }

    /// Makes the next call search the longest directory again.
    pub(crate) fn look_for_longest(&mut self) {
        self.longest_gone = true;
    }

    /// Records that the directory of a head's list has changed its size in bytes.
    pub(super) fn list_changed(&mut self, before: usize, now: usize) {
        self.longest_gone |= now < before && before >= self.longest_list;
        self.longest_list = self.longest_list.max(now);
    }

    /// Retires a list: the next checkpoint drops its stored object.
    pub(super) fn retire(&mut self, mut list: StoredDeadlist) {
        match list.settled() {
            Some(stored) => self.retired.extend(stored),
            None => self.retired_meanwhile.push(list.place()),
        }
        let content = list.take(&self.pieces);
        self.fade(content);
    }

    /// Drops a reference to a list. If it was the last one, the list's pieces are released in
    /// slices by [`fade_some`](Self::fade_some).
    pub(crate) fn fade(&mut self, list: Rc<Deadlist>) {
        if Rc::strong_count(&list) == 1 && !list.is_empty() {
            self.fading.push(list);
        }
    }

    /// Releases pieces of lists that are no longer needed, while there is `room`
    /// ([`Deadlist::drop_pieces`]).
    pub(crate) fn fade_some(&mut self, mut room: usize) {
        while room > 0 && self.fading.last_mut().and_then(Rc::get_mut).is_some_and(|list| list.drop_pieces(&mut room)) {
            self.fading.pop();
        }
    }

    /// True when there are lists whose pieces are to be released.
    pub(crate) fn is_fading(&self) -> bool {
        !self.fading.is_empty()
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty() || !self.retired_meanwhile.is_empty() || self.pieces.has_retired()
    }

    /// Takes the stored objects that the checkpoint which is being fixed does not need.
    pub(crate) fn take_retired(&mut self) -> Vec<ObjectRef> {
        let mut all = std::mem::take(&mut self.retired);
        all.extend(self.pieces.take_retired());
        all.extend(std::mem::take(&mut self.retired_meanwhile).into_iter().filter_map(|stored| stored.get()));
        all
    }

    /// Takes the chunks of nodes that a checkpoint has to write, with their live nodes; from now on
    /// nodes get other addresses.
    pub(crate) fn take_unplaced(&mut self) -> Vec<MetaFlush> {
        for id in std::mem::take(&mut self.meta_open).into_iter().flatten() {
            self.space.close_chunk(id);
        }
        let mut flushes = Vec::new();
        for chunk in std::mem::take(&mut self.meta_unplaced) {
            let Some(found) = self.space.chunks.get(chunk) else { continue };
            flushes.push(MetaFlush { chunk, live: found.live.clone(), nodes: Vec::new(), place: None });
        }
        flushes
    }
}
