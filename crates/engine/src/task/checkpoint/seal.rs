//! Fixing the state of a checkpoint: slow work is only set aside in this turn, and done in later
//! ones.
//!
//! INV-CKPT-2: everything that a checkpoint writes is as it was when it was sealed. Nodes are not
//! changed any more (they carry an older generation), pages of the chunk table are encoded before
//! they change, deadlists (which are directories) are copied before they change and their pieces
//! never change, records of the catalog are copied at once. Only checksums of nodes and places of
//! objects are filled in later.

use std::collections::VecDeque;
use std::rc::Rc;

use millpond_format::{
    BaseRecord, Checkpoint, LineageId, LineageRecord, LogTail, Lsn, NODE_UNITS, ObjectRef, Root, SnapshotRecord, TreeRoot, VolumeRecord,
    WalkRecord,
};

use super::Stage;
use super::objects::Packer;
use super::settle::Settling;
use crate::core::{Catalog, MetaFlush, SealedPage, Stored, cache_code, compression_code, sector_code};
use crate::log::META_CLASS;
use crate::space::{Deadlist, Encoding, Need, Piece, Place};
use crate::store::STUCK_MILLIS;
use crate::store::Store;
use crate::task::Checkpointer;
use crate::{Fault, Planted};

/// Pieces read at a time when a checkpoint moves them.
const PIECES_AHEAD: usize = 8;

/// The fixed state of a checkpoint that is not written yet.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) settling: Settling,
    /// Nodes in the order of their writes, [`NODES_PER_WRITE`](super::NODES_PER_WRITE) at a time;
    /// the first chunk may be partly written.
    pub(super) flushes: VecDeque<MetaFlush>,
    pub(super) packer: Packer,
    /// Pieces of deadlists that are in no checkpoint yet, or move. They are written before the
    /// lists that refer to them (INV-DEAD-3).
    pieces: VecDeque<Rc<Piece>>,
    /// Changed deadlists.
    lists: VecDeque<(Rc<Deadlist>, Stored)>,
    /// The encoded part of the first one.
    encoding: Encoding,
    snapshots: VecDeque<SealedPage>,
    lineages: Vec<(LineageRecord, Stored)>,
    frees: Vec<(LineageId, Stored)>,
    /// The rest of the catalog; `None` once it is written.
    checkpoint: Option<Checkpoint>,
    /// A piece must be read before the next step.
    pub(super) waits: bool,
}

impl Sealed {
    /// Returns whether everything but nodes is encoded and submitted.
    pub(super) fn is_encoded(&self) -> bool {
        self.checkpoint.is_none()
    }
}

impl Checkpointer {
    /// Fixes the state at this point of the log.
    pub(crate) fn seal_checkpoint(&mut self, store: &mut Store) {
        store.seal_all();
        store.dirty_sparse_objects();
        self.reserve_for_checkpoint(store);
        store.checkpoint.unwritten = store.core.nodes.dirty();
        let mut flushes = store.core.take_unplaced();
        if !self.place_nodes(store, &mut flushes) {
            return store.fault(Fault::NoCheckpointSegment);
        }
        store.core.generation += 1;
        store.core.unsettled = Some(Vec::new());
        store.core.space.sealed_generation = store.generation + 1;
        store.core.space.chunks.seal();
        store.core.space.doom_free(store.generation + 1);
        store.core.space.names.seal();
        self.replaced = store.core.take_retired();
        self.replaced.push(store.checkpoint_at);
        store.log.since_checkpoint = 0;
        store.checkpoint.sealed_chunk = store.core.next_chunk;
        self.answering = std::mem::take(&mut store.checkpoint.wanted);
        store.checkpoint.forced = false;
        store.checkpoint.stage = Stage::Writing;
        store.checkpoint.begun = store.now;
        let mut catalog = std::mem::take(&mut store.core.catalog);
        self.sealed = Some(Box::new(seal_catalog(store, &mut catalog, flushes.into())));
        store.core.catalog = catalog;
        let streams = store.log.starts();
        self.root = Some(Root {
            pool: store.config.id,
            generation: store.generation + 1,
            incarnation: store.incarnation,
            time: store.now.0,
            checkpoint: ObjectRef::default(),
            lsn: Lsn(store.log.next.0 - 1),
            log_tails: vec![LogTail { incarnation: store.incarnation, end: LogTail::RUNNING, streams }],
        });
    }
}

impl Checkpointer {
    /// Allocates a place for every chunk of unwritten nodes.
    fn place_nodes(&mut self, store: &mut Store, flushes: &mut [MetaFlush]) -> bool {
        for flush in flushes {
            let nodes = flush.live.count();
            if nodes == 0 {
                continue;
            }
            let Some((segment, page, _)) = self.meta_space(store, META_CLASS, (nodes * NODE_UNITS).div_ceil(8)) else { return false };
            let place = Place { segment, page };
            store.core.space.place_chunk(flush.chunk, place, META_CLASS, None, Some(flush.live.clone()));
            flush.place = Some(place);
        }
        true
    }

    /// Encodes one piece, a slice of a deadlist, or a page of the chunk table or of names. Returns the
    /// number of bytes, 0 when all are done, and `None` when no segment is left.
    pub(super) fn encode_early(&mut self, store: &mut Store, sealed: &mut Sealed) -> Option<usize> {
        if let Some(piece) = sealed.pieces.pop_front() {
            let content = piece.content().expect("INV-DEAD-4: the content was read before");
            let at = self.put_object(store, &mut sealed.packer, &content)?;
            self.replaced.extend(piece.set_stored(at));
            piece.release(Need::Writing);
            self.written.push(Rc::downgrade(&piece));
            return Some(content.len());
        }
        if let Some(work) = sealed.lists.front().and_then(|(list, _)| list.encode_some(&mut sealed.encoding)) {
            return Some(work);
        }
        if let Some((list, stored)) = sealed.lists.pop_front() {
            let bytes = list.encode(std::mem::take(&mut sealed.encoding));
            let at = if bytes.is_empty() { None } else { Some(self.put_object(store, &mut sealed.packer, &bytes)?) };
            self.replaced.extend(stored.replace(at));
            store.core.fade(list);
            return Some(bytes.len().max(1));
        }
        if let Some((page, bytes)) = store.core.space.chunks.next_sealed() {
            let at = if bytes.is_empty() { None } else { Some(self.put_object(store, &mut sealed.packer, &bytes)?) };
            self.replaced.extend(store.core.space.chunks.set_stored(page, at));
            return Some(bytes.len().max(1));
        }
        let Some((part, bytes)) = store.core.space.names.next_sealed() else { return Some(0) };
        let at = if bytes.is_empty() { None } else { Some(self.put_object(store, &mut sealed.packer, &bytes)?) };
        self.replaced.extend(store.core.space.names.set_stored(part, at));
        Some(bytes.len().max(1))
    }

    /// Encodes a page of snapshots, or at last the object that names all others. Checksums and
    /// places must be known.
    pub(super) fn encode_late(&mut self, store: &mut Store, sealed: &mut Sealed) -> Option<usize> {
        if let Some(mut sealed_page) = sealed.snapshots.pop_front() {
            sealed_page.records.iter_mut().for_each(|(record, stored)| record.deadlist = stored.get());
            if store.tuning.plants(Planted::ForgetTags) {
                sealed_page.records.iter_mut().for_each(|(record, _)| record.standing.tags.clear());
            }
            let bytes = SnapshotRecord::encode_page(sealed_page.records.iter().map(|(record, _)| record));
            let at = if bytes.is_empty() { None } else { Some(self.put_object(store, &mut sealed.packer, &bytes)?) };
            self.replaced.extend(store.core.catalog.snapshots.set_stored(sealed_page.page, at));
            return Some(bytes.len().max(1));
        }
        let Some(mut checkpoint) = sealed.checkpoint.take() else { return Some(0) };
        checkpoint.chunk_pages = store.core.space.chunks.stored().collect();
        checkpoint.snapshot_pages = store.core.catalog.snapshots.stored().collect();
        checkpoint.name_pages = store.core.space.names.stored().collect();
        checkpoint.doomed = store.core.space.names.stored_doomed();
        let lineages = std::mem::take(&mut sealed.lineages).into_iter();
        checkpoint.lineages = lineages.map(|(record, stored)| LineageRecord { deadlist: stored.get(), ..record }).collect();
        checkpoint.frees = sealed.frees.iter().filter_map(|(lineage, stored)| Some((*lineage, stored.get()?))).collect();
        let bytes = checkpoint.encode();
        let object = self.put_object(store, &mut sealed.packer, &bytes)?;
        self.flush_packer(store, &mut sealed.packer);
        if let Some(root) = &mut self.root {
            root.checkpoint = object;
            let root = root.clone();
            self.put_root(store, &root)?;
        }
        Some(bytes.len())
    }
}

fn seal_catalog(store: &mut Store, catalog: &mut Catalog, flushes: VecDeque<MetaFlush>) -> Sealed {
    let volumes = catalog.volumes.iter().map(|(id, v)| VolumeRecord {
        id: *id,
        name: v.name.clone(),
        size: v.size,
        sector: sector_code(v.sector),
        cache: cache_code(v.cache),
        compression: compression_code(v.compression),
        read_only: v.read_only,
        lineage: v.lineage,
        created: v.created,
    });
    let volumes = volumes.collect();
    // heads' lists come first, because they change all the time: a list that changes before it
    // is encoded is copied
    let mut lists: VecDeque<(Rc<Deadlist>, Stored)> = VecDeque::new();
    let mut lineages = Vec::with_capacity(catalog.lineages.len());
    for (id, line) in &mut catalog.lineages {
        lists.extend(line.deadlist.seal());
        let record = LineageRecord {
            id: *id,
            volume: line.volume,
            origin: line.origin,
            origin_epoch: line.origin_epoch,
            head: line.head.map(|head| (head.root, head.mapped)),
            deadlist: None,
            owned_units: line.owned_units,
        };
        lineages.push((record, line.deadlist.place()));
    }
    let mut frees = Vec::with_capacity(catalog.frees.len());
    for (lineage, list) in &mut catalog.frees {
        lists.extend(list.seal());
        frees.push((*lineage, list.place()));
    }
    let snapshots = catalog.snapshots.seal(&mut lists).into();
    let walks = catalog.walks.iter().map(|(id, walk)| WalkRecord {
        id: *id,
        lineage: walk.lineage,
        root: walk.root,
        bound: walk.bound,
        cursor: walk.cursor,
    });
    let forgets = store.tuning.plants(Planted::BaseForgotten);
    let bases = catalog.bases.iter().filter(|_| !forgets);
    let bases = bases.map(|(volume, base)| BaseRecord { volume: *volume, unit: base.unit, source: base.source.clone() }).collect();
    let checkpoint = Checkpoint {
        name: store.config.name.clone(),
        lsn: store.log.next.0 - 1,
        epoch: store.core.epoch,
        clock: store.core.clock,
        next_chunk: store.core.next_chunk,
        next_volume: catalog.next_volume,
        next_snapshot: catalog.next_snapshot,
        next_lineage: catalog.next_lineage,
        next_walk: catalog.next_walk,
        lifespan: store.lifespan,
        chunk_pages: Vec::new(),
        volumes,
        lineages: Vec::new(),
        snapshot_pages: Vec::new(),
        walks: walks.collect(),
        frees: Vec::new(),
        retained: store.core.space.segments.retained().map(|(id, generation)| (id.0, generation)).collect(),
        options: catalog.options().iter().map(|(id, options)| (*id, options.record())).collect(),
        jobs: catalog.jobs.clone(),
        wipe: catalog.wipe,
        reordered: u8::from(catalog.is_reordered()),
        bases,
        name_pages: Vec::new(),
        doomed: None,
        bucket: store.core.space.names.bucket().cloned(),
    };
    let settling = Settling::default();
    let pieces = store.core.pieces.seal();
    Sealed {
        settling,
        flushes,
        packer: Packer::default(),
        pieces,
        lists,
        encoding: Encoding::default(),
        snapshots,
        lineages,
        frees,
        checkpoint: Some(checkpoint),
        waits: false,
    }
}

/// Stores the checksums of nodes in the roots of the records.
pub(super) fn settle_records(store: &Store, sealed: &mut Sealed) {
    let heads = sealed.lineages.iter_mut().filter_map(|(record, _)| record.head.as_mut().map(|(root, _)| root));
    let snapshots = sealed.snapshots.iter_mut().flat_map(|page| page.records.iter_mut().map(|(record, _)| &mut record.root));
    for root in heads.chain(snapshots).filter(|root| root.addr.is_pending()) {
        let sum = store.core.sealed_sum(root.addr);
        *root =
            TreeRoot { addr: root.addr.settled(), crc: sum.expect("INV-MAP-7: a pending root is written by the same checkpoint"), ..*root };
    }
    for walk in sealed.checkpoint.iter_mut().flat_map(|checkpoint| &mut checkpoint.walks) {
        // a walk at its end has freed its top node
        walk.root.crc = store.core.sealed_sum(walk.root.addr).unwrap_or(walk.root.crc);
    }
}

/// Reads pieces that are to be written next and are not in memory. Returns true while the first
/// one is missing. An unreadable piece is not moved, and its segment is skipped for a while.
pub(super) fn wait_for_pieces(store: &mut Store, sealed: &mut Sealed) -> bool {
    while let Some(piece) = sealed.pieces.front() {
        if piece.is_here() {
            break;
        }
        if !piece.take_failure(Need::Writing) {
            sealed.pieces.iter().take(PIECES_AHEAD).for_each(|piece| store.need_piece(piece, Need::Writing));
            return true;
        }
        let stored = piece.stored();
        sealed.pieces.pop_front();
        if let Some(at) = stored {
            store.leave_unreadable(at.segment, STUCK_MILLIS);
        }
    }
    false
}
