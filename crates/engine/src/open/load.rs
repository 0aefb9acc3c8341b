//! Builds the state in memory from checkpoint objects.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_format::{
    Checkpoint, ChunkRecord, DeadDirectory, DoomedName, NO_SEGMENT, NameRecord, ObjectRef, Root, SegmentId, SnapshotRecord,
};

use crate::core::{Base, Core, Head, Lineage, Snapshot, StoredDeadlist, Volume, Walk, cache_of, compression_of, sector_of, starts_later};
use crate::log::OBJECT_CLASS;
use crate::space::{Deadlist, Piece, SegmentState};
use crate::{Damage, OpenErrorKind, VolumeOptions};

type Objects<'a> = &'a dyn Fn(ObjectRef) -> Result<Vec<u8>, OpenErrorKind>;
type Named<'a> = &'a dyn Fn(ObjectRef) -> Result<Rc<Piece>, OpenErrorKind>;

/// Fills `core` from a checkpoint; `object` and `named` return objects and pieces that were read.
pub(crate) fn load(
    core: &mut Core,
    checkpoint: &Checkpoint,
    root: &Root,
    object: Objects<'_>,
    named: Named<'_>,
    parts: &BTreeMap<(SegmentId, u32), Vec<ObjectRef>>,
) -> Result<(), OpenErrorKind> {
    core.epoch = checkpoint.epoch;
    core.clock = checkpoint.clock;
    core.next_chunk = checkpoint.next_chunk;
    core.space.sealed_generation = root.generation + 1;
    let mut used = vec![root.checkpoint];
    load_names(core, checkpoint, object, &mut used)?;
    for (page, at) in &checkpoint.chunk_pages {
        let records = ChunkRecord::decode_page(&object(*at)?).map_err(Damage::ChunkPage)?;
        check_places(core, &records)?;
        core.space.chunks.load(*page, *at, records);
        used.push(*at);
    }
    core.space.recount();
    load_catalog(core, checkpoint, object, named, &mut used)?;
    for at in used {
        let all = parts.get(&(at.segment, at.offset)).map_or(&[][..], Vec::as_slice);
        for at in all.iter().chain([&at]) {
            core.space.add_object(at.segment, at.bytes());
        }
    }
    for id in core.space.segments.ids() {
        let Some(s) = core.space.segments.get(id) else { continue };
        if s.placed > 0 || s.objects > 0 {
            core.space.seal(id);
        }
        if let Some(s) = core.space.segments.get_mut(id)
            && s.objects > 0
        {
            s.class = OBJECT_CLASS;
        }
    }
    for (segment, generation) in &checkpoint.retained {
        let id = SegmentId(*segment);
        if core.space.segments.get(id).is_some_and(|s| s.state == SegmentState::Free) {
            core.space.segments.set_state(id, SegmentState::Retained(*generation));
        }
    }
    core.space.open_bucket_segments();
    Ok(())
}

/// Loads the names of bucket segments.
fn load_names(core: &mut Core, checkpoint: &Checkpoint, object: Objects<'_>, used: &mut Vec<ObjectRef>) -> Result<(), OpenErrorKind> {
    let (layout, names) = (&core.space.layout, &mut core.space.names);
    if (0..layout.count()).any(|id| layout.is_in_bucket(SegmentId(id))) != checkpoint.bucket.is_some() {
        return Err(Damage::Bucket.into());
    }
    checkpoint.bucket.iter().for_each(|bucket| names.set_bucket(bucket.clone()));
    for (page, at) in &checkpoint.name_pages {
        let records = NameRecord::decode_page(&object(*at)?).map_err(Damage::NamePage)?;
        if records.iter().any(|record| !layout.is_in_bucket(record.segment)) {
            return Err(Damage::Bucket.into());
        }
        if !names.load_page(*page, *at, records) {
            return Err(Damage::NameTwice.into());
        }
        used.push(*at);
    }
    if let Some(at) = checkpoint.doomed {
        let list = DoomedName::decode_list(&object(at)?).map_err(Damage::NamePage)?;
        if !names.load_doomed(at, list) {
            return Err(Damage::NameTwice.into());
        }
        used.push(at);
    }
    Ok(())
}

/// Checks that chunks are inside the pool.
fn check_places(core: &Core, records: &[ChunkRecord<'_>]) -> Result<(), OpenErrorKind> {
    let space = &core.space;
    let outside = records.iter().filter(|r| r.segment != NO_SEGMENT).find(|r| {
        if space.layout.is_in_bucket(r.segment) {
            return space.names.get(r.segment).is_none_or(|named| r.base >= u32::from(named.pages));
        }
        let pages = u64::from(space.layout.pages(r.segment));
        u64::from(r.base) > pages && !space.layout.is_gap(r.segment)
    });
    outside.map_or(Ok(()), |r| Err(Damage::ChunkOutside(r.chunk).into()))
}

fn load_catalog(
    core: &mut Core,
    checkpoint: &Checkpoint,
    object: Objects<'_>,
    named: Named<'_>,
    used: &mut Vec<ObjectRef>,
) -> Result<(), OpenErrorKind> {
    let mut paged = Vec::new();
    // several lists may refer to one piece
    let mut known: BTreeMap<(SegmentId, u32), Rc<Piece>> = BTreeMap::new();
    let mut piece = |at: ObjectRef| -> Result<Rc<Piece>, OpenErrorKind> {
        if let Some(piece) = known.get(&(at.segment, at.offset)) {
            return Ok(Rc::clone(piece));
        }
        let piece = named(at)?;
        used.push(at);
        known.insert((at.segment, at.offset), Rc::clone(&piece));
        Ok(piece)
    };
    let pieces = Rc::clone(&core.pieces);
    let mut directories = Vec::new();
    let mut deadlist = |at: Option<ObjectRef>| -> Result<StoredDeadlist, OpenErrorKind> {
        let Some(at) = at else { return Ok(StoredDeadlist::default()) };
        let bytes = object(at)?;
        let list = Deadlist::load(&bytes, at, &mut piece)?;
        let stored = DeadDirectory::is_one(&bytes).then_some(at);
        directories.extend(stored);
        Ok(StoredDeadlist::loaded(list, stored, &pieces))
    };
    let catalog = &mut core.catalog;
    (catalog.next_volume, catalog.next_snapshot) = (checkpoint.next_volume, checkpoint.next_snapshot);
    (catalog.next_lineage, catalog.next_walk) = (checkpoint.next_lineage, checkpoint.next_walk);
    for base in &checkpoint.bases {
        catalog.bases.insert(base.volume, Base { unit: base.unit, source: base.source.clone() });
    }
    for line in &checkpoint.lineages {
        catalog.lineages.insert(
            line.id,
            Lineage {
                volume: line.volume,
                origin: line.origin,
                origin_epoch: line.origin_epoch,
                snapshots: BTreeSet::new(),
                head: line.head.map(|(root, mapped)| Head { root, mapped }),
                deadlist: deadlist(line.deadlist)?,
                last_snap: line.origin_epoch,
                owned_units: line.owned_units,
            },
        );
    }
    let mut snapshots = Vec::new();
    for (page, at) in &checkpoint.snapshot_pages {
        snapshots.extend(snapshot_page(&object(*at)?)?);
        catalog.snapshots.set_stored(*page, Some(*at));
        paged.push(*at);
    }
    snapshots.sort_by_key(|s| s.epoch);
    for s in snapshots {
        let line = catalog.lineages.get_mut(&s.lineage).ok_or(Damage::SnapshotLineage)?;
        line.snapshots.insert(s.id);
        line.last_snap = s.epoch;
        let volume = line.volume;
        let snapshot = Snapshot {
            lineage: s.lineage,
            volume,
            name: s.name,
            epoch: s.epoch,
            root: s.root,
            mapped: s.mapped,
            size: s.size,
            created: s.created,
            expires: s.expires,
            description: s.description,
            holds: s.holds,
            tags: s.standing.tags,
            hidden: s.standing.hidden,
            deadlist: deadlist(s.deadlist)?,
            children: Vec::new(),
        };
        catalog.load_snapshot(s.id, snapshot);
    }
    let origins: Vec<_> = catalog.lineages.iter().filter_map(|(id, line)| line.origin.map(|o| (*id, o))).collect();
    for (child, origin) in origins {
        let parent = catalog.snapshots.loaded_mut(origin).ok_or(Damage::OriginMissing)?;
        parent.children.push(child);
        let (epoch, lineage) = (parent.epoch, parent.lineage);
        let of = |id| catalog.lineages.get(&id).map(|line| line.origin_epoch);
        if of(child) != Some(epoch) || of(lineage).is_none_or(|parent| !starts_later(epoch, parent)) {
            return Err(Damage::OriginOlder(child).into());
        }
    }
    for v in &checkpoint.volumes {
        let volume = Volume {
            name: v.name.clone(),
            size: v.size,
            sector: sector_of(v.sector),
            cache: cache_of(v.cache),
            compression: compression_of(v.compression),
            read_only: v.read_only,
            lineage: v.lineage,
            created: v.created,
        };
        if catalog.lineages.get(&v.lineage).is_none_or(|line| line.head.is_none()) {
            return Err(Damage::VolumeHead(v.name.clone()).into());
        }
        catalog.add_volume(v.id, volume);
    }
    catalog.load_options(checkpoint.options.iter().map(|(volume, options)| (*volume, VolumeOptions::of(options))));
    catalog.jobs = checkpoint.jobs.clone();
    catalog.wipe = checkpoint.wipe;
    for walk in &checkpoint.walks {
        catalog.walks.insert(walk.id, Walk { lineage: walk.lineage, root: walk.root, bound: walk.bound, cursor: walk.cursor });
    }
    for (lineage, at) in &checkpoint.frees {
        let list = deadlist(Some(*at))?;
        catalog.add_free(*lineage, list);
    }
    catalog.find_removed();
    used.extend(directories);
    used.extend(paged);
    Ok(())
}

/// Decodes a page of snapshots.
pub(crate) fn snapshot_page(bytes: &[u8]) -> Result<Vec<SnapshotRecord>, Damage> {
    SnapshotRecord::decode_page(bytes).map_err(Damage::SnapshotPage)
}
