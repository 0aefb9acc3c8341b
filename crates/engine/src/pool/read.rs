//! Guest reads: map lookup, device reads, checksums, and the pieces of the reply.

use std::sync::Arc;

use millpond_block::{Buf, BufPool, BufSlice, ByteRange, DeviceError, DiskError, IoSlices, MemberId};
use millpond_format::{Addr, BlockNo, Coding, Lsn, Node, SegmentId, VolumeId};
use smallvec::SmallVec;

use super::ahead::RangeAhead;
use super::gather::counts_for_gathering;
use super::joined::{Joined, Run, join};
use super::op::{CorruptCopy, Op, Owner, Part, Work};
use super::plan::{FromAhead, Plan, Planned, Reading, Stop};
use super::requests::Requests;
use super::write::blocks_of;
use crate::Planted;
use crate::api::Target;
use crate::cache::CacheSlot;
use crate::store::{Context, NodeRead, Store, ZEROES};
use crate::tree::Miss;

/// Returns the pages that hold `units` units from `unit` on: first page and number.
fn pages_of(unit: u32, units: u32) -> (u32, u32) {
    (unit / 8, (unit + units).div_ceil(8) - unit / 8)
}

impl Requests {
    /// Looks up a read's blocks and starts the device reads. Waits for a node when one is missing.
    pub(super) fn try_read(&mut self, store: &mut Store, id: u32) {
        let Some(Op { owner, work: Work::Read(work), .. }) = self.ops.get(id) else { return };
        let (owner, target, request, bypass_cache) = (*owner, work.target, work.request, work.bypass_cache);
        if let Owner::Ahead(batch) = owner {
            return self.try_read_ahead(store, id, batch, target, request.range);
        }
        if self.fetches.has_failed(id) {
            return self.fail_op(store, id, DiskError::Io);
        }
        let Some(root) = store.root_of(target) else { return self.fail_op(store, id, DiskError::Io) };
        let (first, count) = blocks_of(request.range);
        // blocks removed by a record in flight read as holes only once it is complete (I10)
        let counts = counts_for_gathering(store, owner, target, request.range.length);
        // blocks to be gathered are about to get another address
        let gathers = matches!(owner, Owner::Gather(_));
        let remembered = if gathers { None } else { self.cache_partition(store, target, request.range.length) };
        let mut reading = Reading {
            target,
            plan: Plan { parts: SmallVec::new(), after: store.last_record, counts, leaves: SmallVec::new() },
            gathers,
            remembered,
            asks: !self.cache.is_empty() && !bypass_cache,
            looks_ahead: self.ahead.has_blocks() && !bypass_cache && self.cache_partition(store, target, 0).is_some(),
            hits: 0,
            misses: 0,
            from_ahead: SmallVec::new(),
            chunks: SmallVec::new(),
            lacks_chunks: false,
            of_base: None,
        };
        let may_wait = store.closing.is_none() || store.tuning.plants(Planted::BaseCloseWaits);
        let planned = self.plan_blocks(store, &mut reading, &root, first..first + count as u64, None);
        if let (Ok(()), Some((base, blocks)), Owner::Guest(_)) = (&planned, reading.of_base.take(), owner)
            && !self.fetches.is_known(id)
        {
            self.note_base_read(store, base, blocks);
        }
        match planned {
            Ok(()) if reading.lacks_chunks && !may_wait => return self.fail_op(store, id, DiskError::Shutdown),
            Ok(()) if reading.lacks_chunks => return self.fetches.wait(id, reading.chunks),
            Ok(()) => {}
            Err(Stop::Node(miss)) => return self.load_node(store, miss, Some(id)),
            Err(Stop::Ahead(batch)) => return self.ahead.wait(batch, id),
            Err(Stop::Failed) => return self.fail_op(store, id, DiskError::Io),
        }
        self.fetches.leave(id);
        let Reading { plan, hits, misses, from_ahead, .. } = reading;
        if let Some(volume) = remembered {
            self.read_cache.count(volume, hits, misses);
        }
        if let Some(Op { work: Work::Read(work), .. }) = self.ops.get_mut(id) {
            work.remembered = remembered;
        }
        self.use_ahead(store, remembered, from_ahead, request.range);
        self.carry_out(store, id, plan);
    }

    /// Forgets blocks that were read ahead of a read of `range`, and treats them like blocks that
    /// were read from a device. The last one stays when the range ends within it: the next read
    /// begins there.
    fn use_ahead(&mut self, store: &mut Store, remembered: Option<VolumeId>, blocks: SmallVec<[FromAhead; 1]>, range: ByteRange) {
        let end = range.offset + range.length;
        for FromAhead { block, key, addr, segment, piece } in blocks {
            if (block + 1) * 4096 > end {
                continue;
            }
            self.ahead.was_used(key);
            if let Some(volume) = remembered {
                self.remember(store, volume, std::iter::once(addr), &piece);
            }
            // compressed blocks are copied as they are stored, which is not known here
            if addr.coding() == Coding::Raw && self.may_copy(store, segment) {
                self.copy_to_cache(store, addr, piece.bytes());
            }
        }
    }

    /// Starts the device reads of a range that is read ahead. Waits for a node when one is missing.
    fn try_read_ahead(&mut self, store: &mut Store, id: u32, batch: u64, target: Target, range: ByteRange) {
        let RangeAhead { blocks, leaves, cut } = match self.blocks_ahead(store, target, range) {
            Err(miss) => return self.load_node(store, miss, Some(id)),
            Ok(range) => range,
        };
        if let Some(end) = cut {
            self.ahead.cut(batch, end * 4096);
        }
        let counts = counts_for_gathering(store, Owner::Ahead(batch), target, range.length);
        let mut plan = Plan { parts: SmallVec::new(), after: Lsn(0), counts, leaves };
        blocks.into_iter().for_each(|block| plan.stored(block.segment, block.unit, block.addr, block.crc, true));
        let mut parts = parts_of(store, plan.parts);
        let reads = joined_reads(store, &parts);
        self.count_plain(store, plan.counts, &plan.leaves, &parts, &reads);
        for part in reads.iter().flat_map(|read| &read.parts).filter_map(|part| parts.get(*part as usize)) {
            match part {
                Part::Blocks { addrs, .. } => addrs.iter().for_each(|addr| self.ahead.expects(batch, addr.identity())),
                Part::Packed { addr, .. } => self.ahead.expects(batch, addr.identity()),
                Part::Zero(_) | Part::Ready(_) | Part::Cached { .. } | Part::Joined { .. } => {}
            }
        }
        let bytes = reads.iter().map(|read| BufPool::size_for(read.pages as usize * 4096) as u64).sum();
        self.ahead.reads_begin(batch, reads.len(), bytes);
        let wanted: SmallVec<[PartRead; 4]> = reads.into_iter().map(|read| part_of(&mut parts, read)).collect();
        if let Some(op) = self.ops.get_mut(id) {
            op.pending += wanted.len() as u32;
            if let Work::Read(work) = &mut op.work {
                work.parts = parts;
            }
        }
        for (part, segment, page, pages) in wanted {
            store.metrics.data_reads += 1;
            store.read_segment_ahead(Context::Data { op: id, part }, segment, page, pages);
        }
        self.release(store, id);
    }

    /// Counts the device reads of plain blocks towards gathering: packed ones are not gathered.
    fn count_plain(&mut self, store: &mut Store, volume: Option<VolumeId>, leaves: &[(BlockNo, u32)], parts: &[Part], reads: &[Joined]) {
        let Some(volume) = volume else { return };
        let is_plain = |part: &u32| matches!(parts.get(*part as usize), Some(Part::Blocks { .. }));
        let plain = reads.iter().filter(|read| read.parts.iter().any(is_plain)).count();
        self.count_scattered(store, volume, leaves, plain);
    }

    fn carry_out(&mut self, store: &mut Store, id: u32, plan: Plan) {
        let mut parts = parts_of(store, plan.parts);
        let mut cached: SmallVec<[(u32, CacheSlot, u32); 1]> = SmallVec::new();
        for (part, p) in (0u32..).zip(&parts) {
            if let Part::Cached { blocks, cache_slot } = p {
                cached.push((part, *cache_slot, blocks.len() as u32));
            }
        }
        let reads = joined_reads(store, &parts);
        self.count_plain(store, plan.counts, &plan.leaves, &parts, &reads);
        let wanted: SmallVec<[PartRead; 4]> = reads.into_iter().map(|read| part_of(&mut parts, read)).collect();
        if let Some(op) = self.ops.get_mut(id) {
            op.pending += (wanted.len() + cached.len()) as u32;
            if let Work::Read(work) = &mut op.work {
                work.parts = parts;
                work.after = plan.after;
            }
        }
        for (part, segment, page, pages) in wanted {
            store.metrics.data_reads += 1;
            store.read_segment(Context::Data { op: id, part }, segment, page, pages, 0);
        }
        cached.into_iter().for_each(|(part, cache_slot, pages)| self.read_cached(store, id, part, cache_slot, pages));
        self.release(store, id);
    }

    /// Handles a device read of a part. When the content is wrong, reads the next copy, or the same
    /// copy once more; copies that were wrong are rewritten from a good one. Without a good copy
    /// the read fails.
    pub(super) fn data_read(
        &mut self,
        store: &mut Store,
        id: u32,
        part: u32,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
        member: Option<MemberId>,
    ) {
        let Some(Op { owner, work: Work::Read(work), .. }) = self.ops.get_mut(id) else { return };
        if let Owner::Ahead(batch) = *owner {
            return self.range_read_ahead(store, id, batch, part, result, buf);
        }
        let Some(place) = work.parts.get_mut(part as usize) else { return };
        if let Part::Joined { .. } = place {
            return self.joined_read(store, id, part, result, buf);
        }
        let Some((segment, page, pages)) = place.place() else { return };
        let good = match (result, buf) {
            (Ok(()), Some(buf)) => place.sound(BufSlice::new(buf, 0..pages as usize * 4096)),
            _ => None,
        };
        match good {
            Some(piece) => {
                let packed = self.keep(store, id, part, piece).into_iter().collect();
                self.decompress(store, id, packed);
            }
            None => {
                let (Part::Blocks { attempt, .. } | Part::Packed { attempt, .. }) = place else { return };
                *attempt += 1;
                let next = *attempt;
                if let Some(member) = member {
                    work.bad.push(CorruptCopy { part, member });
                    if let (Ok(()), Some(errors)) = (result, store.io.errors.get_mut(member.index())) {
                        *errors += 1;
                    }
                }
                if next < store.io.attempts(&store.core.space.layout, segment) {
                    return store.read_segment(Context::Data { op: id, part }, segment, page, pages, next);
                }
                if let Some(op) = self.ops.get_mut(id) {
                    op.error = Some(DiskError::Io);
                }
            }
        }
        self.release(store, id);
    }

    /// Starts reading a map node unless that is in progress; `op` continues when the node is in
    /// memory. Errors do not count where only read-ahead needs the node (INV-READ-AHEAD-2).
    pub(super) fn load_node(&mut self, store: &mut Store, miss: Miss, op: Option<u32>) {
        let waiting = self.node_waiters.entry(miss.addr.identity());
        let fresh = matches!(waiting, std::collections::hash_map::Entry::Vacant(_));
        waiting.or_default().extend(op);
        if !fresh {
            return;
        }
        match store.core.space.locate(miss.addr) {
            Some((segment, unit)) => {
                if let Some((piece, _)) = store.log.find_bytes(segment, unit, miss.addr.units()) {
                    // the cleaner moved the node, and the move is still in flight
                    let node = check_node(&miss, 0, piece.bytes());
                    return self.node_found(store, miss, node);
                }
                let (page, pages) = pages_of(unit, miss.addr.units());
                let quiet = op.is_some_and(|op| self.is_ahead(op));
                store.metrics.node_reads += 1;
                let context = Context::Node(NodeRead { miss, segment, unit, attempt: 0, quiet });
                if quiet {
                    store.read_segment_ahead(context, segment, page, pages);
                } else {
                    store.read_segment(context, segment, page, pages, 0);
                }
            }
            None => self.node_failed(store, miss),
        }
    }

    /// Returns whether an operation reads ahead of guests.
    fn is_ahead(&self, op: u32) -> bool {
        self.ops.get(op).is_some_and(|op| matches!(op.owner, Owner::Ahead(_)))
    }

    /// Handles a read of a node. When the content is wrong, reads the next copy.
    pub(super) fn node_read(
        &mut self,
        store: &mut Store,
        read: NodeRead,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
        member: Option<MemberId>,
    ) {
        let NodeRead { miss, segment, unit, attempt, quiet } = read;
        let node = match (result, &buf) {
            (Ok(()), Some(buf)) => check_node(&miss, unit, buf.bytes()),
            _ => None,
        };
        if let Some(buf) = buf {
            store.bufs.give(buf);
        }
        let next = attempt + 1;
        if node.is_none() && quiet {
            return self.node_not_read_ahead(store, &miss);
        }
        if node.is_none() {
            if let (Ok(()), Some(errors)) = (result, member.and_then(|m| store.io.errors.get_mut(m.index()))) {
                *errors += 1;
            }
            if next < store.io.attempts(&store.core.space.layout, segment) {
                let (page, pages) = pages_of(unit, miss.addr.units());
                let read = NodeRead { attempt: next, ..read };
                return store.read_segment(Context::Node(read), segment, page, pages, next);
            }
        }
        self.node_found(store, miss, node);
    }

    /// Adds a node that was read and wakes its waiters, or fails them.
    fn node_found(&mut self, store: &mut Store, miss: Miss, node: Option<Node>) {
        match node {
            Some(node) => {
                if store.core.nodes.find(miss.addr).is_none() {
                    store.core.nodes.insert(miss.addr, node, 0);
                }
                let waiting = self.node_waiters.remove(&miss.addr.identity()).unwrap_or_default();
                self.ready.extend(waiting);
            }
            None => self.node_failed(store, miss),
        }
    }

    /// Fails the operations that read ahead and need a node which was not read. The others read it
    /// themselves, which counts errors and tries other copies (INV-READ-AHEAD-2).
    fn node_not_read_ahead(&mut self, store: &mut Store, miss: &Miss) {
        for op in self.node_waiters.remove(&miss.addr.identity()).unwrap_or_default() {
            if self.is_ahead(op) {
                self.fail_op(store, op, DiskError::Io);
            } else {
                self.ready.push_back(op);
            }
        }
    }

    /// Fails the operations that need a node which cannot be read; the rest of the pool goes on.
    fn node_failed(&mut self, store: &mut Store, miss: Miss) {
        for op in self.node_waiters.remove(&miss.addr.identity()).unwrap_or_default() {
            self.fail_op(store, op, DiskError::Io);
        }
    }
}

/// Decodes the node in pages that were read, if it is sound and the wanted one.
pub(crate) fn check_node(miss: &Miss, unit: u32, bytes: &[u8]) -> Option<Node> {
    let skip = (unit % 8) as usize * 512;
    let stored = bytes.get(skip..skip + miss.addr.units() as usize * 512)?;
    let node = Node::decode(stored).ok()?;
    let wanted = Node::checksum_at(stored, miss.addr) == Some(miss.crc);
    (wanted && node.level == miss.level && node.index == miss.index).then_some(node)
}

/// Returns the parts of a read with their places on devices.
fn parts_of(store: &Store, plan: SmallVec<[Planned; 1]>) -> SmallVec<[Part; 1]> {
    let mut parts: SmallVec<[Part; 1]> = SmallVec::new();
    for planned in plan {
        match planned {
            Planned::Zero(bytes) => parts.push(Part::Zero(bytes)),
            Planned::Ready(piece) => parts.push(Part::Ready(piece)),
            Planned::Blocks { segment, page, crcs, addrs } => {
                let (mut from, mut at) = (0usize, page);
                let layout = &store.core.space.layout;
                // an object of a bucket is on no device: it is not split
                let whole = layout.is_in_bucket(segment).then_some(crcs.len() as u32);
                let by_device = layout.map(segment, page, crcs.len() as u32, 0).into_iter().map(|(_, range)| (range.length / 4096) as u32);
                for pages in whole.into_iter().chain(by_device) {
                    let mine = crcs.get(from..from + pages as usize).unwrap_or_default();
                    let addrs = SmallVec::from_slice(addrs.get(from..from + pages as usize).unwrap_or_default());
                    parts.push(Part::Blocks { crcs: SmallVec::from_slice(mine), addrs, place: (segment, at), attempt: 0 });
                    from += pages as usize;
                    at += pages;
                }
            }
            Planned::Packed { segment, unit, addr, crc, wanted } => {
                let (units, coding) = (addr.units(), addr.coding());
                let (page, pages) = pages_of(unit, units);
                let skip = (unit % 8) as usize * 512;
                let addr = if wanted { addr } else { Addr::HOLE };
                parts.push(Part::Packed { crc, coding, skip, units, place: (segment, page), pages, attempt: 0, addr });
            }
            Planned::Cached { cache_slot, blocks } => parts.push(Part::Cached { blocks, cache_slot }),
        }
    }
    parts
}

/// Returns the device reads that parts of a read need, neighbours joined.
fn joined_reads(store: &Store, parts: &[Part]) -> SmallVec<[Joined; 4]> {
    let run = |(part, p): (u32, &Part)| p.place().map(|(segment, page, pages)| Run { segment, page, pages, part });
    let mut runs: SmallVec<[Run; 4]> = (0u32..).zip(parts).filter_map(run).collect();
    join(&mut runs, |segment, page, pages| store.core.space.layout.map(segment, page, pages, 0).len() == 1)
}

/// A device read: the part that it is for, its segment, first page, and number of pages.
type PartRead = (u32, SegmentId, u32, u32);

/// Finds the part that a device read is for: one of its own if it is for several.
fn part_of(parts: &mut SmallVec<[Part; 1]>, read: Joined) -> PartRead {
    let Joined { segment, page, pages, parts: joined } = read;
    let part = match joined.as_slice() {
        [part] => *part,
        _ => {
            parts.push(Part::Joined { page, pages, parts: joined });
            parts.len() as u32 - 1
        }
    };
    (part, segment, page, pages)
}

/// Returns the bytes of a finished read: its parts, cut to the requested range.
pub(crate) fn assemble(store: &mut Store, parts: SmallVec<[Part; 1]>, range: ByteRange) -> IoSlices {
    let mut skip = (range.offset % 4096) as usize;
    let mut left = usize::try_from(range.length).unwrap_or(0);
    let mut data = IoSlices::new();
    let mut push = |piece: BufSlice| {
        let from = skip.min(piece.len());
        skip -= from;
        let to = (from + left).min(piece.len());
        left -= to - from;
        if to > from {
            data.push(piece.slice(from..to));
        }
    };
    for part in parts {
        match part {
            Part::Zero(mut bytes) => {
                while bytes > 0 {
                    let step = bytes.min(ZEROES);
                    push(BufSlice::zeroes(Arc::clone(&store.zeroes), 0..step));
                    bytes -= step;
                }
            }
            Part::Ready(piece) => push(piece),
            Part::Blocks { .. } | Part::Packed { .. } | Part::Cached { .. } | Part::Joined { .. } => {}
        }
    }
    data
}
