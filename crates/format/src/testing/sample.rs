//! Samples of each structure, with a value in each field.

mod bucket;
mod encryption;

use millpond_block::MemberId;

use super::Kind;
use crate::{
    Addr, BATCH_FIXED, BUCKET, BaseRecord, BatchHeader, BlockIdentity, BlockNo, CacheHead, CacheSegment, Checkpoint, ChunkId, ChunkRecord,
    Claim, Class, Coding, Column, DeadDirectory, DeadRecord, DeviceId, DeviceNote, Encoder, Epoch, FeatureNames, FeatureSet, Filling,
    Group, HEADER_PAGE, HoldRecord, Holder, Item, JobsRecord, Label, Layout, LimitRecord, LineageId, LineageRecord, Lock, LogTail, Lsn,
    Member, MemberState, Move, NO_SEGMENT, NODE_BYTES, Node, ObjectHead, ObjectName, ObjectRef, OptionsRecord, PieceRef, PoolId, Record,
    Root, STREAMS, ScrubRecord, SegmentId, Shape, SmallRun, SnapshotId, SnapshotRecord, Standing, StreamStart, Term, TreeRoot, VolumeId,
    VolumeRecord, WalkRecord,
};
use crate::{Mark, StoredBlock};

const POOL: PoolId = PoolId(*b"sixteen bytes id");

fn object(n: u32) -> ObjectRef {
    ObjectRef { segment: SegmentId(n), offset: n * 3, length: n * 64 + 1, crc: n.wrapping_mul(0x9e37_79b9) }
}

fn tree(n: u64) -> TreeRoot {
    TreeRoot { addr: Addr::new(ChunkId(n), 3, 13, Coding::Raw), crc: 0xc0ff_ee00 | n as u32, height: 2 }
}

fn volume(id: u32, name: &str) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        name: name.into(),
        size: 1 << 20,
        sector: 1,
        cache: 3,
        compression: 2,
        read_only: id == 2,
        lineage: LineageId(u64::from(id)),
        created: 1_700_000_000_000,
    }
}

fn labels() -> [Label; 6] {
    let member = |at: u64, extents: u32, state| Member {
        device: DeviceId(1 << 16 | at),
        extents,
        state,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let group = |class, layout, first: u32, columns: &[(u16, u32, u32)]| Group {
        class,
        layout,
        first: SegmentId(first),
        columns: columns
            .iter()
            .map(|(member, first, extents)| Column { member: MemberId(*member), first: *first, extents: *extents })
            .collect(),
    };
    let linear = Label {
        pool: POOL,
        name: "pond".into(),
        device: DeviceId(1 << 16),
        member: MemberId(0),
        shape: Shape {
            generation: 1,
            extent_bytes: 64 << 10,
            chunk_units: 16,
            next: SegmentId(80),
            members: vec![member(0, 80, MemberState::Present)],
            groups: vec![group(Class::Data, Layout::Linear, 0, &[(0, 0, 80)])],
        },
        features: FeatureSet::default(),
        feature_names: FeatureNames::default(),
        notes: Vec::new(),
    };
    let stripe = Layout::Stripe { width: 3, unit: 65536 };
    let mut members: Vec<Member> =
        [(0, 70), (1, 80), (2, 90), (3, 40), (4, 40)].map(|(at, n)| member(at, n, MemberState::Present)).to_vec();
    members[1].replacement = Some(DeviceId(9 << 16 | 1));
    members[2].leaving = true;
    members[3].state = MemberState::Filling;
    members[3].down_since = 5;
    (members[4].state, members[4].down_since) = (MemberState::Down, 8);
    members.push(member(5, 10, MemberState::Gone));
    members.extend((6..9).map(|at| member(at, 20, MemberState::Present)));
    let groups = vec![
        group(Class::Data, stripe, 0, &[(0, 0, 70), (1, 0, 80), (2, 10, 80)]),
        group(Class::Special, Layout::Mirror { copies: 2 }, 200, &[(3, 0, 40), (4, 0, 40)]),
        group(Class::Log, Layout::Linear, 300, &[(2, 0, 10)]),
        group(Class::Data, Layout::Parity { width: 3, parity: 1, unit: 65536 }, 320, &[(6, 0, 20), (7, 0, 20), (8, 0, 20)]),
    ];
    let shape = Shape { generation: 9, extent_bytes: 4 << 20, chunk_units: 1024, next: SegmentId(400), members, groups };
    let many = Label { device: DeviceId(1 << 16 | 2), member: MemberId(2), shape, ..linear.clone() };
    let mut cached = Label { device: DeviceId(1 << 16 | 1), member: MemberId(1), ..linear.clone() };
    cached.shape.members.push(member(1, 30, MemberState::Present));
    cached.shape.groups.push(group(Class::Cache, Layout::Linear, 80, &[(1, 0, 30)]));
    let mut spared = cached.clone();
    spared.shape.groups[1].class = Class::Spare;
    let note = |device, path: &str, serial: &str| DeviceNote { device, size: 1 << 30, path: path.into(), serial: serial.into() };
    let noted = spared.clone().with_notes(&[note(DeviceId(1 << 16), "/dev/disk/by-id/a", "WX11"), note(DeviceId(1 << 16 | 1), "", "")]);
    let mut bucket = Label { features: FeatureSet::of([&BUCKET]), feature_names: FeatureNames::of([&BUCKET]), ..linear.clone() };
    let in_bucket = group(Class::Data, Layout::Bucket { segments: 100_000 }, 0, &[]);
    bucket.shape.groups = vec![in_bucket, group(Class::Log, Layout::Linear, 100_000, &[(0, 0, 80)])];
    bucket.shape.next = SegmentId(100_080);
    [linear, many, cached, spared, noted, bucket]
}

fn cache() -> [Vec<u8>; 2] {
    let (device, filling) = (DeviceId(1 << 16 | 1), Filling { incarnation: 3, time: 1_700_000_000_000 });
    let head = CacheHead { pool: POOL, device, filling, incarnation: 5 };
    let blocks = vec![Addr::new(ChunkId(77), 3, 8, Coding::Raw), Addr::new(ChunkId(78), 9, 3, Coding::Lz4)];
    let segment = CacheSegment { pool: POOL, device, filling, sequence: 12, blocks };
    [head.encode().to_vec(), segment.encode().to_vec()]
}

fn roots() -> [Root; 2] {
    let log_tail = |incarnation: u32| LogTail {
        incarnation,
        end: if incarnation == 3 { LogTail::RUNNING } else { Lsn(u64::from(incarnation) * 10) },
        streams: std::array::from_fn(|at| {
            let segment = if at == STREAMS - 1 { NO_SEGMENT } else { SegmentId(at as u32 + 7) };
            StreamStart { segment, offset: at as u32 * 2, next: SegmentId(at as u32 + 20) }
        }),
    };
    let few = Root {
        pool: POOL,
        generation: 129,
        incarnation: 3,
        time: 1_700_000_000_000,
        checkpoint: object(5),
        lsn: Lsn(7),
        log_tails: vec![],
    };
    [Root { log_tails: vec![log_tail(1), log_tail(2), log_tail(3)], ..few.clone() }, few]
}

fn records() -> Vec<Record> {
    let (volume_id, snapshot, lineage) = (VolumeId(1), SnapshotId(4), LineageId(9));
    vec![
        Record::CreateVolume { volume: volume(1, "disk") },
        Record::DestroyVolume { volume: volume_id },
        Record::RenameVolume { volume: volume_id, name: "other".into() },
        Record::Resize { volume: volume_id, size: 2 << 20 },
        Record::Properties { volume: volume_id, cache: 1, compression: 0, read_only: true },
        Record::Snapshot {
            targets: vec![(volume_id, snapshot, "monday".into()), (VolumeId(2), SnapshotId(5), "monday".into())],
            created: 17,
            description: "before the change".into(),
            expires: Some(99),
        },
        Record::DestroySnapshots { snapshots: vec![snapshot, SnapshotId(5)] },
        Record::RenameSnapshot { snapshot, name: "tuesday".into() },
        Record::Rollback { snapshot, keep: SnapshotId(6), name: "kept".into(), lineage, created: 18 },
        Record::Clone { snapshot, volume: VolumeId(3), lineage, name: "clone".into(), created: 19 },
        Record::Hold { snapshot, until: None },
        Record::Release { snapshot },
        Record::Walked { walk: 2, cursor: BlockNo(4096), done: false },
        Record::Options {
            volume: VolumeId(2),
            options: OptionsRecord {
                reservation: 0,
                special_small_blocks: 16384,
                limits: vec![LimitRecord { what: 0, sustained: 1000, burst: 0, seconds: 0 }],
            },
        },
        Record::Sector { volume: volume_id, sector: 2 },
        Record::Jobs { jobs: jobs() },
        Record::Wipe { wipe: 2 },
        Record::RemoveVolume { volume: volume_id },
    ]
}

fn small_run() -> SmallRun {
    SmallRun {
        lsn: Lsn(5),
        volume: VolumeId(1),
        block: BlockNo(300),
        segment: SegmentId(40),
        chunk: ChunkId(60),
        slot: 9,
        encrypted: false,
        crcs: vec![0x0102_0304, 0x0506_0708],
    }
}

fn header() -> BatchHeader {
    BatchHeader {
        stream: 0,
        pages: 1,
        pool: POOL,
        incarnation: 3,
        next: SegmentId(21),
        lsn: Lsn(8),
        durable: Lsn(6),
        epoch: Epoch(2),
        chunk: ChunkId(77),
        birth: 500,
        segment: SegmentId(7),
        offset: 12,
        base: 10,
        payload: 3,
        grain: 1,
    }
}

fn batches() -> [Vec<u8>; 7] {
    let header = header();
    let raw = (1..=2).map(|n| StoredBlock::raw(n * 0x0101_0101, Mark::Clear)).collect();
    let packed = [(1, 3, Coding::Lz4), (2, 8, Coding::Raw), (3, 1, Coding::Zstd)];
    let packed = packed.map(|(crc, units, coding)| StoredBlock { crc, units, coding, mark: Mark::Clear }).to_vec();
    let mut items = vec![
        Item::Blocks { volume: VolumeId(1), block: BlockNo(100), stored: raw },
        Item::Blocks { volume: VolumeId(2), block: BlockNo(5), stored: packed },
        Item::Clear { volume: VolumeId(1), block: BlockNo(7), count: 512 },
        Item::Small { batches: 2, runs: vec![small_run()] },
    ];
    items.extend(records().into_iter().map(Item::Record));
    let identity = |n: u64| BlockIdentity {
        volume: VolumeId(1),
        block: BlockNo(n),
        lsn: Lsn(n + 1),
        crc: 0xdead_0000 | n as u32,
        units: 8,
        coding: Coding::Raw,
        mark: Mark::Clear,
    };
    let moved = Move {
        chunk: ChunkId(70),
        epoch: Epoch(1),
        birth: 40,
        grain: 8,
        at: 0,
        present: vec![0b1011],
        identities: (0..3).map(identity).collect(),
    };
    let nodes = Move { chunk: ChunkId(71), grain: 13, at: 3, present: vec![1, 1 << 63], identities: vec![], ..moved.clone() };
    let moves = BatchHeader { stream: 4, chunk: ChunkId(0), base: 12, payload: 5, grain: 8, ..header.clone() };
    let tags = [
        Record::HoldTagged { snapshot: SnapshotId(4), hold: hold("audit", Some(99), true) },
        Record::ReleaseTagged { snapshot: SnapshotId(4), tag: "audit".into() },
    ];
    let tags: Vec<Item> = tags.into_iter().map(Item::Record).collect();
    let moves = batch(&moves, &[Item::Move(moved), Item::Move(nodes)]);
    let bare = BatchHeader { payload: 0, ..header.clone() };
    let promote = [Item::Record(Record::Promote { volume: VolumeId(3) })];
    let locked = HoldRecord { lock: Lock::Served { end: 700, seen: 100 }, ..hold("lock", Some(99), false) };
    let locks = [Item::Record(Record::HoldTagged { snapshot: SnapshotId(4), hold: locked })];
    let BaseRecord { unit, source, .. } = base();
    let created = Record::CreateBase { volume: volume(2, "golden"), unit, source, snapshot: SnapshotId(6), name: "origin".into() };
    let bases = batch(&bare, &[Item::Record(created)]);
    let moved_base = [Item::Record(Record::MoveBase { volume: VolumeId(2), source: "s3://moved#image@1".into() })];
    [batch(&header, &items), moves, batch(&bare, &tags), batch(&bare, &promote), batch(&bare, &locks), bases, batch(&bare, &moved_base)]
}

fn base() -> BaseRecord {
    BaseRecord { volume: VolumeId(2), unit: 256 << 10, source: "s3://golden#image@1".into() }
}

/// Encodes a header with its items.
pub(super) fn batch(header: &BatchHeader, items: &[Item]) -> Vec<u8> {
    let mut e = Encoder::default();
    items.iter().for_each(|item| item.encode(&mut e));
    let pages = (BATCH_FIXED + e.len()).div_ceil(HEADER_PAGE).max(usize::from(header.pages));
    let header = BatchHeader { pages: u8::try_from(pages).unwrap_or(u8::MAX), ..header.clone() };
    let mut out = vec![0; pages * HEADER_PAGE];
    header.encode(e.bytes(), &mut out);
    out
}

fn node() -> Vec<u8> {
    let mut node = Node::empty(1, LineageId(9), 3, Epoch(2));
    for (at, (entry, crc)) in node.entries.iter_mut().zip(node.crcs.iter_mut()).enumerate().step_by(50) {
        (*entry, *crc) = (Addr::new(ChunkId(at as u64), at as u32, 13, Coding::Raw), at as u32 * 7);
    }
    let mut out = vec![0; NODE_BYTES];
    node.encode(Addr::new(ChunkId(44), 2, 13, Coding::Raw), &mut out);
    out
}

fn node_of_base() -> Vec<u8> {
    let mut node = Node::empty(0, LineageId(9), 3, Epoch(2));
    node.entries.fill(Addr::of_base(VolumeId(0xfedc_ba98)));
    (node.entries[7], node.crcs[7]) = (Addr::new(ChunkId(5), 1, 8, Coding::Raw), 77);
    node.entries[8] = Addr::HOLE;
    let mut out = vec![0; NODE_BYTES];
    node.encode(Addr::new(ChunkId(44), 3, 13, Coding::Raw), &mut out);
    out
}

fn checkpoint() -> Checkpoint {
    let line = |id: u64, origin| LineageRecord {
        id: LineageId(id),
        volume: VolumeId(1),
        origin,
        origin_epoch: Epoch(id),
        head: Some((tree(id), 12)),
        deadlist: Some(object(2)),
        owned_units: 96,
    };
    Checkpoint {
        name: "pond".into(),
        lsn: 7,
        epoch: Epoch(3),
        clock: 600,
        next_chunk: 80,
        next_volume: 4,
        next_snapshot: 7,
        next_lineage: 10,
        next_walk: 3,
        lifespan: 1000,
        chunk_pages: vec![(0, object(8)), (1, object(9))],
        volumes: vec![volume(1, "disk"), volume(2, "clone")],
        lineages: vec![line(1, None), line(2, Some(SnapshotId(4)))],
        snapshot_pages: vec![(0, object(10))],
        walks: vec![WalkRecord { id: 2, lineage: LineageId(5), root: tree(4), bound: Epoch(1), cursor: BlockNo(512) }],
        frees: vec![(LineageId(5), object(6))],
        retained: vec![(12, 128)],
        options: vec![(
            VolumeId(2),
            OptionsRecord {
                reservation: 1 << 20,
                special_small_blocks: 0,
                limits: vec![LimitRecord { what: 3, sustained: 20 << 20, burst: 40 << 20, seconds: 2 }],
            },
        )],
        jobs: jobs(),
        wipe: 1,
        ..Checkpoint::default()
    }
}

fn jobs() -> JobsRecord {
    let scrub = ScrubRecord {
        begun: 17,
        ended: None,
        complete: false,
        next: 3,
        done: 1 << 20,
        errors: 2,
        repaired: 1,
        lost: 1,
        lost_nodes: 0,
        lost_unknown: 0,
        blocks: vec![(VolumeId(1), BlockNo(9))],
    };
    JobsRecord { rate: 50 << 20, rebalance: true, scrub: Some(scrub) }
}

fn snapshot_record() -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId(4),
        lineage: LineageId(1),
        name: "monday".into(),
        epoch: Epoch(1),
        root: tree(3),
        mapped: 12,
        size: 1 << 20,
        created: 17,
        expires: Some(99),
        description: "before the change".into(),
        holds: vec![None, Some(5)],
        standing: Standing { hidden: true, tags: Vec::new() },
        deadlist: None,
    }
}

fn snapshot_page() -> Vec<u8> {
    let snapshot = snapshot_record();
    let next = SnapshotRecord {
        id: SnapshotId(5),
        holds: Vec::new(),
        standing: Standing::default(),
        deadlist: Some(object(7)),
        ..snapshot.clone()
    };
    SnapshotRecord::encode_page([snapshot, next].iter())
}

/// A page of snapshots: with tags, without, with tags.
fn tagged_page() -> Vec<u8> {
    let tags = vec![hold("audit", None, false), hold("lock", Some(99), true)];
    let tagged = SnapshotRecord { standing: Standing { hidden: false, tags }, ..snapshot_record() };
    let plain = SnapshotRecord { id: SnapshotId(5), standing: Standing::default(), ..snapshot_record() };
    let hidden = Standing { hidden: true, tags: vec![hold("ended", Some(1), false)] };
    let last = SnapshotRecord { id: SnapshotId(6), standing: hidden, deadlist: Some(object(7)), ..snapshot_record() };
    SnapshotRecord::encode_page([tagged, plain, last].iter())
}

/// A page of a snapshot with a lock that is counted in service.
fn locked_page() -> Vec<u8> {
    let lock = HoldRecord { lock: Lock::Served { end: 1 << 40, seen: 1 << 39 }, ..hold("lock", Some(99), false) };
    let tags = vec![hold("audit", None, false), lock];
    let locked = SnapshotRecord { standing: Standing { hidden: false, tags }, ..snapshot_record() };
    SnapshotRecord::encode_page([locked].iter())
}

fn hold(tag: &str, until: Option<u64>, locked: bool) -> HoldRecord {
    HoldRecord { tag: tag.into(), since: 18, until, lock: if locked { Lock::Until } else { Lock::No } }
}

/// A chunk that was never moved, all of whose slots are live.
fn chunk_record() -> ChunkRecord<'static> {
    ChunkRecord {
        chunk: ChunkId(64),
        epoch: Epoch(2),
        birth: 500,
        segment: SegmentId(7),
        base: 10,
        identities: u32::MAX,
        grain: 8,
        class: 0,
        slots: 70,
        live: vec![u64::MAX, 0b11_1111].into(),
        present: vec![].into(),
        forwarded: vec![].into(),
        targets: vec![].into(),
    }
}

fn chunk_page() -> Vec<u8> {
    let plain = chunk_record();
    let moved = ChunkRecord {
        chunk: ChunkId(65),
        identities: 9,
        grain: 1,
        class: 4,
        live: vec![0b1000].into(),
        present: vec![0b1001].into(),
        ..plain.clone()
    };
    let mut e = Encoder::default();
    [plain, moved].iter().for_each(|chunk| chunk.encode(&mut e));
    e.into_bytes()
}

/// A chunk with forwards, and one without a place.
fn forwarded_page() -> Vec<u8> {
    let target = |slot| Addr::new(ChunkId(900), slot, 8, Coding::Raw);
    let part = ChunkRecord {
        live: vec![1 << 3].into(),
        forwarded: vec![0b110, 1].into(),
        targets: vec![target(9), target(8), target(1000)].into(),
        ..chunk_record()
    };
    let whole = ChunkRecord {
        chunk: ChunkId(66),
        segment: NO_SEGMENT,
        base: 0,
        live: vec![].into(),
        forwarded: vec![1 << 60].into(),
        targets: vec![target(11)].into(),
        ..part.clone()
    };
    let mut e = Encoder::default();
    [part, whole].iter().for_each(|chunk| chunk.encode(&mut e));
    e.into_bytes()
}

/// Blocks that were gathered: of the head alone, and two that a snapshot shares.
fn forwards() -> Vec<u8> {
    let header = BatchHeader { stream: 7, chunk: ChunkId(900), base: 12, grain: 8, ..header() };
    let source = |slot| (Addr::new(ChunkId(64), slot, 8, Coding::Raw), 0x0203_0405 * slot);
    let items = [
        Item::Blocks { volume: VolumeId(1), block: BlockNo(100), stored: vec![StoredBlock::raw(7, Mark::Clear)] },
        Item::Forward { volume: VolumeId(1), block: BlockNo(101), sources: vec![source(2), source(1)] },
    ];
    batch(&header, &items)
}

fn deadlist() -> Vec<u8> {
    let mut e = Encoder::default();
    for n in 1..4 {
        let (epoch, chunk, first) = (Epoch(n), ChunkId(n * 10), n as u16 - 1);
        DeadRecord { epoch, chunk, units: 16, first, slots: vec![0b11 << n; n as usize].into() }.encode(&mut e);
    }
    e.into_bytes()
}

/// Single slots, runs and a bitmap, of two epochs.
fn dead_piece() -> Vec<u8> {
    let record = |epoch: u64, chunk: u64, first: u16, slots: Vec<u64>| DeadRecord {
        epoch: Epoch(epoch),
        chunk: ChunkId(chunk),
        units: 16,
        first,
        slots: slots.into(),
    };
    let alternating = u64::MAX / 3;
    DeadRecord::encode_piece(&[
        record(2, 10, 0, vec![1 << 5]),
        record(2, 900, 3, vec![0b111 << 60, 0b11]),
        record(7, 4, 1, vec![alternating; 4]),
        record(7, 5, 0, vec![u64::MAX; 16]),
    ])
}

fn dead_directory() -> Vec<u8> {
    let pieces = vec![PieceRef { at: object(3), from: 0, to: 40 }, PieceRef { at: object(3), from: 90, to: 91 }];
    DeadDirectory { pieces, tail: dead_piece() }.encode()
}

fn index() -> Vec<u8> {
    let mut e = Encoder::default();
    (1..4).for_each(|n| object(n).encode(&mut e));
    e.into_bytes()
}

fn claim(released: bool) -> Vec<u8> {
    let holder = Holder { host: *b"the host's bytes", name: "pond.example".into(), session: *b"of this import.." };
    Claim { pool: POOL, holder, term: 3, heartbeat: 77, time: 1_700_000_000_000, lease: 10_000, released }.encode().to_vec()
}

fn object_head() -> Vec<u8> {
    let holder = Holder { host: *b"the host's bytes", name: "pond.example".into(), session: *b"of this import.." };
    let name = ObjectName::Segment { term: Term(3), import: 1, count: 0x1234 };
    ObjectHead { pool: POOL, term: Term(3), holder, name, length: 16 << 20, payload_checksum: 77 }.encode().to_vec()
}

/// One or two samples of each structure: name, kind, bytes.
pub fn samples() -> Vec<(&'static str, Kind, Vec<u8>)> {
    let (
        [linear, stripe, cached, spared, noted, in_bucket],
        [log_tails, bare],
        [blocks, moves, tags, promote, locks, bases, moved_base],
        [head, segment],
    ) = (labels(), roots(), batches(), cache());
    vec![
        ("label-linear", Kind::Label, linear.encode().to_vec()),
        ("label-groups", Kind::Label, stripe.encode().to_vec()),
        ("label-cache", Kind::Label, cached.encode().to_vec()),
        ("label-spare", Kind::Label, spared.encode().to_vec()),
        ("root-legs", Kind::Root, log_tails.encode().to_vec()),
        ("root-bare", Kind::Root, bare.encode().to_vec()),
        ("batch-blocks-records", Kind::Batch, blocks),
        ("batch-moves", Kind::Batch, moves),
        ("node", Kind::Node, node()),
        ("checkpoint", Kind::Checkpoint, checkpoint().encode()),
        ("chunk-page", Kind::ChunkPage, chunk_page()),
        ("deadlist", Kind::Deadlist, deadlist()),
        ("object-index", Kind::ObjectIndex, index()),
        ("snapshot-page", Kind::SnapshotPage, snapshot_page()),
        ("cache-head", Kind::CacheHead, head),
        ("cache-segment", Kind::CacheSegment, segment),
        ("claim", Kind::Claim, claim(false)),
        ("claim-released", Kind::Claim, claim(true)),
        ("dead-directory", Kind::DeadDirectory, dead_directory()),
        ("dead-piece", Kind::DeadPiece, dead_piece()),
        ("batch-tags", Kind::Batch, tags),
        ("snapshot-page-tags", Kind::SnapshotPage, tagged_page()),
        ("label-notes", Kind::Label, noted.encode().to_vec()),
        ("batch-promote", Kind::Batch, promote),
        ("batch-locks", Kind::Batch, locks),
        ("snapshot-page-locks", Kind::SnapshotPage, locked_page()),
        ("batch-encrypted", Kind::Batch, encryption::blocks()),
        ("batch-moves-encrypted", Kind::Batch, encryption::moves()),
        ("node-encrypted", Kind::Node, encryption::node()),
        ("cache-segment-encrypted", Kind::CacheSegment, encryption::cache_segment()),
        ("key-page", Kind::KeyPage, encryption::key_page(encryption::wraps())),
        ("key-page-empty", Kind::KeyPage, encryption::key_page(Vec::new())),
        ("checkpoint-reordered", Kind::Checkpoint, Checkpoint { reordered: 1, ..checkpoint() }.encode()),
        ("object-head", Kind::ObjectHead, object_head()),
        ("batch-bases", Kind::Batch, bases),
        ("batch-moved-base", Kind::Batch, moved_base),
        ("node-base", Kind::Node, node_of_base()),
        ("checkpoint-bases", Kind::Checkpoint, Checkpoint { bases: vec![base()], ..checkpoint() }.encode()),
        ("chunk-page-forwards", Kind::ChunkPage, forwarded_page()),
        ("batch-forwards", Kind::Batch, forwards()),
        ("label-bucket", Kind::Label, in_bucket.encode().to_vec()),
        ("name-page", Kind::NamePage, bucket::name_page()),
        ("doomed-list", Kind::DoomedList, bucket::doomed_list()),
        ("checkpoint-bucket", Kind::Checkpoint, bucket::checkpoint(checkpoint()).encode()),
        ("batch-placed", Kind::Batch, bucket::placed(&header())),
    ]
}
