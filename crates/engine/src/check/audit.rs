//! Walks everything reachable, counts live space again and compares it with the chunk table; reads
//! every block and node and checks identities and checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_block::{DeviceSlot, MemberId};
use millpond_format::{
    Addr, BatchHeader, BlockNo, ChunkId, Coding, Epoch, FANOUT, Item, Lsn, NODE_UNITS, Node, ObjectName, ObjectRef, SegmentId, TreeRoot,
    UNIT, VolumeId, crc32c,
};

use crate::core::{Core, starts_later};
use crate::engine::Engine;
use crate::io::{Coders, Health, Rebuild, Want, erased};
use crate::space::{Deadlist, FIXED_TAIL, PAGE, Piece, SegmentState, as_piece};
use crate::tree::{Miss, node_index};

mod names;
mod unique;

/// Reads a device directly: its slot, byte offset, buffer to fill.
/// For devices without operations in flight.
pub type Media<'a> = &'a mut dyn FnMut(DeviceSlot, u64, &mut [u8]);
/// Reads part of an object of the bucket: its name, byte offset, buffer to fill, with zeroes behind its
/// end.
pub type Objects<'a> = &'a mut dyn FnMut(ObjectName, u64, &mut [u8]);

/// Result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Contradictions, one line each; empty for a correct pool.
    pub findings: Vec<String>,
    /// Number of guests' blocks that were reached.
    pub blocks: u64,
    /// Number of these blocks that were lost with special devices.
    pub lost: u64,
    /// Number of nodes that were reached.
    pub nodes: u64,
}

/// Slots, by chunk.
type Reached = BTreeMap<ChunkId, BTreeSet<u32>>;

/// An audit in progress.
struct Auditor<'a, 'm> {
    core: &'a Core,
    slots: &'a [Option<DeviceSlot>],
    media: Media<'m>,
    objects: Objects<'m>,
    audit: Audit,
    /// Number of the complete copy that is read, where a segment has several.
    copy: usize,
    health: &'a Health,
    coders: Coders,
    /// Slots reached, by chunk.
    reached: Reached,
    /// Slots that a destroyed snapshot frees. Those that were freed before a crash, and whose chunk was
    /// moved without them, are dead already until they are freed again.
    freeing: Reached,
    seen_nodes: BTreeSet<u64>,
    /// The version that is being visited is one of a volume that exists.
    is_listed: bool,
    /// Blocks of the heads, and the batches that wrote them.
    heads: Vec<(VolumeId, BlockNo, Lsn)>,
    /// Newest batch that wrote a reachable copy of each block of a volume.
    newest: BTreeMap<(VolumeId, BlockNo), Lsn>,
    /// Volume, block and batch that first wrote the block at a place.
    identity: BTreeMap<(ChunkId, u32), (VolumeId, BlockNo, Lsn)>,
}

impl Engine {
    /// Audits an open pool without unanswered requests, and whose devices have nothing in flight. Objects of
    /// a bucket are read as zeroes.
    pub fn audit(&self, media: Media<'_>) -> Audit {
        self.audit_with(media, &mut |_, _, out: &mut [u8]| out.fill(0))
    }

    /// Audits such a pool with the objects of its bucket.
    pub fn audit_with(&self, media: Media<'_>, objects: Objects<'_>) -> Audit {
        let Some(pool) = self.open() else { return Audit::default() };
        let layout = &pool.store.core.space.layout;
        let copies = pool
            .store
            .core
            .space
            .segments
            .ids()
            .map(|id| layout.stripe(id).map_or(layout.copies(id).len(), |stripe| 1 + stripe.width()))
            .max()
            .unwrap_or(0)
            .max(1);
        let mut audit = Audit::default();
        for copy in 0..copies {
            let mut auditor = Auditor {
                core: &pool.store.core,
                slots: pool.store.io.slots(),
                media: &mut *media,
                objects: &mut *objects,
                audit: Audit::default(),
                copy,
                health: &pool.store.io.health,
                coders: Coders::default(),
                reached: Reached::new(),
                freeing: Reached::new(),
                seen_nodes: BTreeSet::new(),
                is_listed: false,
                heads: Vec::new(),
                newest: BTreeMap::new(),
                identity: BTreeMap::new(),
            };
            auditor.scan_identities();
            auditor.walk_versions();
            auditor.compare_sequences();
            if copy == 0 {
                auditor.compare_unique();
            }
            auditor.compare();
            if copies > 1 {
                auditor.audit.findings.iter_mut().for_each(|what| what.insert_str(0, &format!("copy {copy}: ")));
            }
            let before = std::mem::replace(&mut audit, auditor.audit);
            audit.findings.splice(0..0, before.findings);
        }
        audit.findings.extend(reservation_findings(&pool.store.core));
        audit.findings.extend(origin_findings(&pool.store.core));
        audit.findings.extend(removed_findings(&pool.store.core));
        audit.findings.extend(object_findings(pool));
        audit.findings.extend(names::findings(pool));
        audit
    }
}

/// INV-CAT-3: counts the units of volumes with reservations again, and the sum of reserved space.
fn reservation_findings(core: &Core) -> Vec<String> {
    let reservations = &core.catalog.reservations;
    let wrong = reservations.iter().filter(|(volume, owned)| core.catalog.owned_units(*volume) != *owned);
    let mut findings: Vec<String> =
        wrong.map(|(volume, owned)| format!("{volume:?} owns {} units, not {owned}", core.catalog.owned_units(volume))).collect();
    if !reservations.is_exact() {
        findings.push("the sum of what is kept for reserved volumes is wrong".to_owned());
    }
    findings
}

/// INV-DEAD-1: checks that the storage of objects that are referred to was not released: a segment
/// counts at least the objects in it. Replaced objects may be counted, too.
fn object_findings(pool: &crate::pool::Pool) -> Vec<String> {
    let mut named: BTreeMap<SegmentId, u32> = BTreeMap::new();
    pool.store.all_objects().for_each(|at| *named.entry(at.segment).or_default() += at.bytes().div_ceil(512));
    let counted = |id: SegmentId| pool.store.core.space.segments.get(id).map(|s| s.objects);
    let wrong = named.into_iter().filter_map(|(id, units)| Some((id, units, counted(id).filter(|counted| *counted < units)?)));
    wrong.map(|(id, units, counted)| format!("segment {id}: counts {counted} units of objects, has {units}")).collect()
}

/// INV-CAT-6: checks that all snapshots of removed volumes are going to be destroyed.
fn removed_findings(core: &Core) -> Vec<String> {
    let catalog = &core.catalog;
    let forgotten = catalog.snapshots.iter().filter(|(_, s)| {
        let gone = !s.hidden && catalog.lineages.get(&s.lineage).is_some_and(|line| !catalog.volumes.contains_key(&line.volume));
        gone && !catalog.removed.contains(&s.lineage)
    });
    forgotten.map(|(id, _)| format!("INV-CAT-6: nobody destroys snapshot {id:?} of a volume that was removed")).collect()
}

/// INV-CAT-4: checks the order of origins, without which an import refuses the catalog.
fn origin_findings(core: &Core) -> Vec<String> {
    let catalog = &core.catalog;
    let origins = catalog.lineages.iter().filter_map(|(id, line)| Some((*id, line, catalog.snapshots.get(&line.origin?)?)));
    let wrong = origins.filter(|(_, line, origin)| {
        let parent = catalog.lineages.get(&origin.lineage);
        line.origin_epoch != origin.epoch || parent.is_none_or(|parent| !starts_later(line.origin_epoch, parent.origin_epoch))
    });
    wrong
        .map(|(child, _, origin)| format!("INV-CAT-4: lineage {} starts from a snapshot of lineage {}", child.0, origin.lineage.0))
        .collect()
}

/// Addresses in a node, with checksums and first blocks. The node covers `span`
/// blocks from `first` on.
fn children(node: &Node, first: u64, span: u64) -> impl Iterator<Item = (Addr, u32, u64)> + '_ {
    let entries = node.entries.iter().zip(node.crcs.iter()).zip(0u64..);
    entries.filter(|((child, _), _)| child.is_some()).map(move |((child, crc), slot)| (*child, *crc, first + slot * (span / FANOUT as u64)))
}

impl Auditor<'_, '_> {
    fn find(&mut self, what: String) {
        if self.audit.findings.len() < 20 {
            self.audit.findings.push(what);
        }
    }

    /// Reads a member; one without a device is never read.
    fn read_member(&mut self, member: MemberId, offset: u64, out: &mut [u8]) {
        if let Some(slot) = self.slots[member.index()] {
            (self.media)(slot, offset, out);
        }
    }

    fn read(&mut self, segment: SegmentId, unit: u32, units: u32) -> Vec<u8> {
        let (page, pages) = (unit / 8, (unit + units).div_ceil(8) - unit / 8);
        let mut bytes = Vec::with_capacity(pages as usize * PAGE as usize);
        let skip = (unit % 8) as usize * 512;
        let wanted = skip..skip + units as usize * 512;
        if self.core.space.layout.is_in_bucket(segment) {
            bytes.resize(pages as usize * PAGE as usize, 0);
            if let Some(named) = self.core.space.names.get(segment) {
                (self.objects)(named.name.into(), u64::from(page) * PAGE, &mut bytes);
            }
            return bytes[wanted].to_vec();
        }
        if let Some(rebuild) = self.rebuild(segment, page, pages) {
            return rebuild[wanted].to_vec();
        }
        let whole = self.health.whole_copies(&self.core.space.layout, segment);
        let copy = whole.get(self.copy % whole.len().max(1)).copied().unwrap_or(0);
        for (device, range) in self.core.space.layout.map(segment, page, pages, copy) {
            let from = bytes.len();
            bytes.resize(from + range.length as usize, 0);
            self.read_member(device, range.offset, &mut bytes[from..]);
        }
        bytes[wanted].to_vec()
    }

    /// Computes pages of a segment with parity from other columns: those of missing devices, and,
    /// at later copies of the audit, of other devices.
    fn rebuild(&mut self, segment: SegmentId, page: u32, pages: u32) -> Option<Vec<u8>> {
        let stripe = self.core.space.layout.stripe(segment)?;
        let missing = self.health.missing(&stripe);
        let erased = erased(stripe.width(), stripe.parity, missing, 0, u8::try_from(self.copy).unwrap_or(u8::MAX))?;
        let from = u64::from(page) * PAGE;
        let rebuild = Rebuild::new(&stripe, Want::Bytes { from, to: from + u64::from(pages) * PAGE }, erased);
        let mut read = Vec::new();
        for (device, range) in rebuild.reads(&stripe) {
            let mut bytes = vec![0; range.length as usize];
            self.read_member(device, range.offset, &mut bytes);
            read.push(bytes);
        }
        let read: Vec<&[u8]> = read.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; rebuild.length()];
        rebuild.assemble(&read, &mut self.coders, &mut out)?;
        Some(out)
    }

    /// Reads the headers of all chunks of blocks: which volume, block and batch first wrote each
    /// slot.
    fn scan_identities(&mut self) {
        for id in self.core.space.chunks.ids() {
            let Some(chunk) = self.core.space.chunks.get(id) else { continue };
            let Some(place) = chunk.place.filter(|place| !self.core.space.layout.is_gap(place.segment)) else { continue };
            if chunk.grain == NODE_UNITS as u8 {
                continue;
            }
            let pages = self.core.space.layout.pages(place.segment);
            if let Some(at) = chunk.identities {
                let room = (pages - at).min(32);
                let bytes = self.read(place.segment, at * 8, room * 8);
                let moved = BatchHeader::decode(&bytes).ok().and_then(|(_, items)| {
                    items.into_iter().find_map(|item| match item {
                        Item::Move(moved) if moved.chunk == id => Some(moved),
                        _ => None,
                    })
                });
                let Some(moved) = moved else {
                    self.find(format!("chunk {id}: no move header at page {at} of segment {}", place.segment));
                    continue;
                };
                let present = crate::space::Slots::from_words(moved.present);
                let mut slots = present.iter();
                for identity in moved.identities {
                    let Some(slot) = slots.next() else { break };
                    self.note(id, slot, identity.volume, identity.block, identity.lsn);
                    for _ in 1..u32::from(identity.units) / u32::from(moved.grain.max(1)) {
                        slots.next();
                    }
                }
            } else {
                let mut page = place.page;
                let end = (place.page + (chunk.slots * u32::from(chunk.grain)).div_ceil(8)).min(pages);
                while page < end {
                    let room = (end - page).min(32);
                    let bytes = self.read(place.segment, page * 8, room * 8);
                    let Ok((header, items)) = BatchHeader::decode(&bytes) else {
                        self.find(format!("chunk {id}: no header at page {page} of segment {}", place.segment));
                        break;
                    };
                    if header.chunk != id {
                        self.find(format!("chunk {id}: header at page {page} of segment {} is of chunk {}", place.segment, header.chunk));
                        break;
                    }
                    let grain = u32::from(header.grain);
                    let mut unit = (page - place.page + u32::from(header.pages)) * 8;
                    for (volume, block, stored) in items.into_iter().filter_map(Item::into_blocks) {
                        for (i, stored) in (0u64..).zip(stored) {
                            self.note(id, unit / grain, volume, BlockNo(block.0 + i), header.lsn);
                            unit += u32::from(stored.units);
                        }
                    }
                    page += u32::from(header.pages) + header.payload;
                }
            }
        }
    }

    fn note(&mut self, chunk: ChunkId, slot: u32, volume: VolumeId, block: BlockNo, lsn: Lsn) {
        self.identity.insert((chunk, slot), (volume, block, lsn));
    }

    /// Checks that the blocks of heads are the newest reachable copies in the log, too, because a
    /// rebuild relies on that.
    fn compare_sequences(&mut self) {
        for (volume, block, lsn) in std::mem::take(&mut self.heads) {
            if self.newest.get(&(volume, block)).is_some_and(|newest| *newest > lsn) && !self.rolled_back(volume) {
                self.find(format!("block {block} of volume {volume}: its head has batch {lsn}, a snapshot a newer one"));
            }
        }
    }

    fn walk_versions(&mut self) {
        let catalog = &self.core.catalog;
        for line in catalog.lineages.values() {
            if let Some(head) = line.head {
                self.is_listed = true;
                let volume = catalog.volumes.iter().find(|(_, v)| catalog.lineages.get(&v.lineage).is_some_and(|l| std::ptr::eq(l, line)));
                self.walk(&head.root, volume.map(|(id, _)| *id), None);
            }
            self.bury(line.deadlist.list());
        }
        for s in catalog.snapshots.values() {
            // those of a removed volume are destroyed after it, and may outlive the base
            self.is_listed = catalog.volumes.contains_key(&s.volume);
            self.walk(&s.root, None, None);
            self.bury(s.deadlist.list());
            let tail = s.deadlist.list().tail_bytes();
            if tail > FIXED_TAIL {
                self.find(format!("INV-DEAD-5: the list of snapshot '{}' has a tail of {tail} bytes", s.name));
            }
        }
        for (_, list) in &catalog.frees {
            let reached = std::mem::replace(&mut self.reached, std::mem::take(&mut self.freeing));
            self.bury(list.list());
            self.freeing = std::mem::replace(&mut self.reached, reached);
        }
        self.is_listed = false;
        for walk in catalog.walks.values() {
            self.walk(&walk.root, None, Some((walk.bound, walk.cursor.0)));
        }
    }

    fn bury(&mut self, list: &Deadlist) {
        let mut reached = std::mem::take(&mut self.reached);
        list.for_each(|piece| self.content(piece), |chunk, dead| reached.entry(chunk).or_default().extend(dead.slots.iter()));
        self.reached = reached;
    }

    /// Returns the content of a piece of a deadlist.
    fn content(&mut self, piece: &Piece) -> Option<Rc<[u8]>> {
        if let Some(content) = piece.content() {
            return Some(content);
        }
        let Some(at) = piece.place().and(piece.stored()) else {
            self.find("INV-DEAD-4: a piece of a deadlist is neither in memory nor stored".to_owned());
            return None;
        };
        let start = at.offset as usize * ObjectRef::STEP;
        let (unit, skip) = (start / UNIT, start % UNIT);
        let stored = self.read(at.segment, unit as u32, (skip + at.bytes() as usize).div_ceil(UNIT) as u32);
        let content = stored.get(skip..skip + at.bytes() as usize).filter(|bytes| crc32c(bytes) == at.crc);
        let content = content.and_then(|bytes| as_piece(bytes).ok());
        if content.is_none() {
            self.find(format!("the piece of a deadlist at {at:?} does not match its checksum"));
        }
        content
    }

    /// INV-BASE-2: maps of volumes that exist read only as bases that exist.
    fn check_base(&mut self, addr: Addr) {
        if let Some(base) = addr.base().filter(|base| self.is_listed && !self.core.catalog.bases.contains_key(base)) {
            self.find(format!("INV-BASE-2: a map reads as volume {base}, which is no base"));
        }
    }

    /// Visits everything below a root. Of a tree that is being freed, only young nodes and blocks
    /// after the cursor count.
    fn walk(&mut self, root: &TreeRoot, head_of: Option<VolumeId>, freeing: Option<(Epoch, u64)>) {
        let mut todo = vec![(root.addr, root.crc, root.height, 0u64)];
        while let Some((addr, crc, height, first)) = todo.pop() {
            self.check_base(addr);
            if !addr.is_some() || height == 0 {
                continue;
            }
            let level = height - 1;
            let span = 512u64.pow(u32::from(height));
            if let Some((bound, cursor)) = freeing {
                let young = self.core.space.chunks.get(addr.chunk()).is_some_and(|c| c.epoch > bound);
                if !young || (first + span <= cursor && level < 2) {
                    continue;
                }
            }
            self.reach(addr);
            // a node that was checked for one version is the same for all versions; a head needs
            // the identities of its blocks
            if !self.seen_nodes.insert(addr.identity()) && head_of.is_none() && freeing.is_none() {
                continue;
            }
            let Some(node) = self.node(addr, crc, level, first) else { continue };
            self.audit.nodes += 1;
            node.entries.iter().for_each(|entry| self.check_base(*entry));
            for (child, crc, at) in children(&node, first, span) {
                if level > 0 {
                    todo.push((child, crc, level, at));
                } else {
                    let young = freeing.is_none_or(|(bound, _)| self.core.space.chunks.get(child.chunk()).is_some_and(|c| c.epoch > bound));
                    if young {
                        self.reach(child);
                        self.block(child, crc, BlockNo(at), head_of);
                    }
                }
            }
        }
    }

    fn reach(&mut self, addr: Addr) {
        let slots = self.core.space.chunks.get(addr.chunk()).map_or(1, |c| c.slots_of(addr));
        let reached = self.reached.entry(addr.chunk()).or_default();
        reached.extend(addr.slot()..addr.slot() + slots);
    }

    fn node(&mut self, addr: Addr, crc: u32, level: u8, first: u64) -> Option<Node> {
        if let Some(at) = self.core.nodes.find(addr) {
            return Some(self.core.nodes.get(at).node.clone());
        }
        let Some((segment, unit)) = self.core.space.locate(addr) else {
            self.find(format!("the node at {addr:?} is nowhere"));
            return None;
        };
        let page = self.read(segment, unit / 8 * 8, (unit + NODE_UNITS).div_ceil(8) * 8 - unit / 8 * 8);
        let miss = Miss { addr: addr.settled(), crc, level, index: node_index(first, level) };
        let node = crate::pool::check_node(&miss, unit, &page);
        if node.is_none() {
            self.find(format!("the node at {addr:?} (level {level}, block {first}) does not match its checksum or identity"));
        }
        node
    }

    fn block(&mut self, addr: Addr, crc: u32, block: BlockNo, head_of: Option<VolumeId>) {
        self.audit.blocks += 1;
        let at = self.core.space.resolve(addr);
        let place = self.core.space.chunks.get(at.chunk()).and_then(|chunk| chunk.place);
        if place.is_some_and(|place| self.core.space.layout.is_gap(place.segment)) {
            self.audit.lost += 1;
            return;
        }
        let Some((segment, unit)) = self.core.space.locate(addr) else {
            return self.find(format!("block {block} at {addr:?} is nowhere"));
        };
        let stored = self.read(segment, unit, addr.units());
        if crc32c(&stored) != crc {
            self.find(format!("block {block} at {addr:?} (segment {segment} unit {unit}) does not match its checksum"));
        }
        debug_assert!(addr.coding() == Coding::Raw || addr.units() < 8);
        match self.identity.get(&(at.chunk(), at.slot())) {
            None => self.find(format!("block {block} at {addr:?} has no identity")),
            Some((_, found, _)) if *found != block => self.find(format!("block {block} at {addr:?} says that it is block {found}")),
            Some((volume, _, lsn)) => {
                let (volume, lsn) = (*volume, *lsn);
                let newest = self.newest.entry((volume, block)).or_insert(lsn);
                *newest = (*newest).max(lsn);
                if head_of == Some(volume) {
                    self.heads.push((volume, block, lsn));
                }
            }
        }
    }

    /// True when a head may be older than its snapshots because it was rolled back. After a
    /// promotion these snapshots may belong to another volume, which then starts from a snapshot of
    /// this volume's lineage.
    fn rolled_back(&self, volume: VolumeId) -> bool {
        let catalog = &self.core.catalog;
        let forks = |id| catalog.snapshots.get(id).is_some_and(|snapshot| !snapshot.children.is_empty());
        catalog.lineages.values().filter(|line| line.volume == volume).count() > 1
            || catalog.head(volume).is_some_and(|(_, line)| line.origin.is_some() || line.snapshots.iter().any(forks))
    }

    /// INV-FORWARD-1, INV-FORWARD-2, INV-FORWARD-4: checks the forwards, and adds the targets of those
    /// that were reached.
    fn follow_forwards(&mut self, reached: &mut Reached, freeing: &mut Reached) {
        let core = self.core;
        let chunks = &core.space.chunks;
        let mut targets: BTreeMap<(ChunkId, u32), Addr> = BTreeMap::new();
        let mut count = 0;
        for id in chunks.ids() {
            let Some(chunk) = chunks.get(id) else { continue };
            let is_here = chunk.live_count > 0 || chunk.open;
            if chunk.is_used() && chunk.grain != NODE_UNITS as u8 && chunk.place.is_some() != is_here {
                self.find(format!("INV-FORWARD-4: chunk {id} with {} slots here is at {:?}", chunk.live_count, chunk.place));
            }
            for (slot, target) in chunk.forwards() {
                count += 1;
                let is_sound = |home: &crate::space::Chunk| home.live.get(target.slot()) && home.forward_of(target.slot()).is_none();
                let has = |slots: &Reached| slots.get(&id).is_some_and(|slots| slots.contains(&slot));
                let (is_reached, is_freed) = (has(reached), has(freeing));
                if chunk.live.get(slot) || !(is_freed || chunks.get(target.chunk()).is_some_and(is_sound)) {
                    self.find(format!(
                        "INV-FORWARD-1: slot {slot} of chunk {id} is forwarded to {target:?}, which is not live, or is here"
                    ));
                }
                if let Some(other) = targets.insert((target.chunk(), target.slot()), Addr::new(id, slot, target.units(), Coding::Raw)) {
                    self.find(format!("INV-FORWARD-1: slot {slot} of chunk {id} and {other:?} are forwarded to {target:?}"));
                }
                let known = if is_reached { Some(&mut *reached) } else { Some(&mut *freeing).filter(|_| is_freed) };
                if known.is_some_and(|slots| !slots.entry(target.chunk()).or_default().insert(target.slot())) {
                    self.find(format!("INV-FORWARD-1: {target:?}, where slot {slot} of chunk {id} is forwarded to, is reached otherwise"));
                }
            }
        }
        if count != chunks.forwards() {
            self.find(format!("the chunk table counts {} forwards, has {count}", chunks.forwards()));
        }
    }

    fn compare(&mut self) {
        let mut segment_live: BTreeMap<SegmentId, u32> = BTreeMap::new();
        let mut total = 0u64;
        let (mut reached, mut freeing) = (std::mem::take(&mut self.reached), std::mem::take(&mut self.freeing));
        self.follow_forwards(&mut reached, &mut freeing);
        for id in self.core.space.chunks.ids() {
            let Some(chunk) = self.core.space.chunks.get(id) else { continue };
            let mut live: BTreeSet<u32> = chunk.live.iter().collect();
            if chunk.live_count as usize != live.len() {
                self.find(format!("chunk {id}: counts {} live slots, has {}", chunk.live_count, live.len()));
            }
            live.extend(chunk.forwards().map(|(slot, _)| slot));
            let empty = BTreeSet::new();
            let here = reached.get(&id).unwrap_or(&empty);
            let going = freeing.get(&id).unwrap_or(&empty);
            let leaked: Vec<_> = live.difference(here).filter(|slot| !going.contains(slot)).take(3).collect();
            let dangling: Vec<_> = here.difference(&live).take(3).collect();
            if !leaked.is_empty() {
                self.find(format!("I12: chunk {id} (epoch {}, grain {}): live but unreachable slots {leaked:?}", chunk.epoch, chunk.grain));
            }
            if !dangling.is_empty() {
                self.find(format!("I12: chunk {id} (epoch {}, grain {}): reachable but dead slots {dangling:?}", chunk.epoch, chunk.grain));
            }
            total += u64::from(chunk.footprint());
            if let Some(place) = chunk.place {
                *segment_live.entry(place.segment).or_default() += chunk.footprint();
                let state = self.core.space.segments.get(place.segment).map(|s| s.state);
                if !matches!(state, Some(SegmentState::Open | SegmentState::Sealed)) {
                    self.find(format!("chunk {id} lies in segment {} that is {state:?}", place.segment));
                }
            }
        }
        for chunk in reached.keys() {
            if self.core.space.chunks.get(*chunk).is_none() {
                self.find(format!("I12: chunk {chunk} is reachable but gone"));
            }
        }
        let mut objects = 0u64;
        for id in self.core.space.segments.ids() {
            let Some(s) = self.core.space.segments.get(id) else { continue };
            let (live, counted) = (s.live, segment_live.get(&id).copied().unwrap_or(0));
            objects += u64::from(s.objects);
            if live != counted {
                self.find(format!("segment {id}: counts {live} live units, has {counted}"));
            }
        }
        if total + objects != self.core.space.live_units() {
            self.find(format!("the pool counts {} live units, has {}", self.core.space.live_units(), total + objects));
        }
    }
}
