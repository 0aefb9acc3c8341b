//! Samples of structures with encrypted blocks, and of the key table.

use super::{POOL, batch, header, volume};
use crate::{
    Addr, BatchHeader, BlockIdentity, BlockNo, CacheSegment, ChunkId, Coding, Derivation, DeviceId, Epoch, Filling, Item, KeyId, KeyPage,
    KeyWrap, LineageId, Lsn, Mark, Move, NODE_BYTES, Node, Record, SegmentId, SmallRun, StoredBlock, VolumeId, WrapKind,
};

pub(super) fn blocks() -> Vec<u8> {
    let header = header();
    let packed = |units, coding, mark| StoredBlock { crc: 0x0a0b_0c0d, units, coding, mark };
    let runs = [
        vec![StoredBlock::raw(1, Mark::Encrypted), StoredBlock::raw(2, Mark::Encrypted)],
        vec![packed(3, Coding::Lz4, Mark::Encrypted), packed(8, Coding::Raw, Mark::Encrypted), packed(7, Coding::Zstd, Mark::Encrypted)],
        vec![packed(9, Coding::Raw, Mark::Foreign), packed(8, Coding::Zstd, Mark::Foreign), packed(8, Coding::Raw, Mark::Clear)],
    ];
    let small = SmallRun {
        lsn: Lsn(5),
        volume: VolumeId(1),
        block: BlockNo(300),
        segment: SegmentId(40),
        chunk: ChunkId(60),
        slot: 9,
        encrypted: true,
        crcs: vec![0x0102_0304],
    };
    let source = Addr::new(ChunkId(64), 2, 8, Coding::Raw).marked(Mark::Encrypted);
    let mut items = vec![Item::Record(Record::CreateEncrypted { volume: volume(1, "secret"), key: KeyId(0x1234_5678_9abc_def0) })];
    items.extend((0..).zip(runs).map(|(at, stored)| Item::Blocks { volume: VolumeId(1), block: BlockNo(at * 100), stored }));
    items.push(Item::Small { batches: 1, runs: vec![small] });
    items.push(Item::Forward { volume: VolumeId(1), block: BlockNo(900), sources: vec![(source, 77)] });
    batch(&header, &items)
}

pub(super) fn moves() -> Vec<u8> {
    let identity = |n: u64, units, coding, mark| BlockIdentity {
        volume: VolumeId(1),
        block: BlockNo(n),
        lsn: Lsn(n + 1),
        crc: 0xdead_0000 | n as u32,
        units,
        coding,
        mark,
    };
    let moved = Move {
        chunk: ChunkId(70),
        epoch: Epoch(1),
        birth: 40,
        grain: 1,
        at: 0,
        present: vec![0b1_0001_0001],
        identities: vec![
            identity(1, 8, Coding::Raw, Mark::Encrypted),
            identity(2, 9, Coding::Raw, Mark::Foreign),
            identity(3, 2, Coding::Lz4, Mark::Clear),
        ],
    };
    let header = BatchHeader {
        stream: 4,
        pages: 1,
        pool: POOL,
        incarnation: 3,
        next: SegmentId(21),
        lsn: Lsn(9),
        durable: Lsn(6),
        epoch: Epoch(2),
        chunk: ChunkId(0),
        birth: 500,
        segment: SegmentId(7),
        offset: 12,
        base: 12,
        payload: 3,
        grain: 8,
    };
    batch(&header, &[Item::Move(moved)])
}

pub(super) fn node() -> Vec<u8> {
    let mut node = Node::empty(0, LineageId(9), 3, Epoch(2));
    let entries = [
        (8, Coding::Raw, Mark::Encrypted),
        (5, Coding::Zstd, Mark::Encrypted),
        (9, Coding::Raw, Mark::Foreign),
        (8, Coding::Lz4, Mark::Foreign),
    ];
    for (at, (units, coding, mark)) in entries.into_iter().enumerate() {
        (node.entries[at * 9], node.crcs[at * 9]) = (Addr::new(ChunkId(at as u64), at as u32, units, coding).marked(mark), at as u32 * 7);
    }
    let mut out = vec![0; NODE_BYTES];
    node.encode(Addr::new(ChunkId(44), 2, 13, Coding::Raw), &mut out);
    out
}

pub(super) fn cache_segment() -> Vec<u8> {
    let blocks = vec![
        Addr::new(ChunkId(77), 3, 8, Coding::Raw).marked(Mark::Encrypted),
        Addr::new(ChunkId(78), 9, 3, Coding::Lz4).marked(Mark::Encrypted),
        Addr::new(ChunkId(79), 1, 8, Coding::Zstd).marked(Mark::Foreign),
    ];
    let filling = Filling { incarnation: 3, time: 1_700_000_000_000 };
    CacheSegment { pool: POOL, device: DeviceId(1 << 16 | 1), filling, sequence: 12, blocks }.encode().to_vec()
}

pub(super) fn key_page(wraps: Vec<KeyWrap>) -> Vec<u8> {
    KeyPage { pool: POOL, number: 3, generation: 12, wraps }.encode().to_vec()
}

pub(super) fn wraps() -> Vec<KeyWrap> {
    let wrap = |key: u64, number: u8, kind| KeyWrap {
        key: KeyId(key),
        number,
        kind,
        derivation: match kind {
            WrapKind::Passphrase => Derivation::Argon2id { memory_kib: 256 << 10, passes: 3, lanes: 1 },
            _ => Derivation::HkdfSha256,
        },
        salt: std::array::from_fn(|at| at as u8 | number << 4),
        nonce: std::array::from_fn(|at| at as u8 | 0x40),
        domain: *b"a domain",
        wrapped: std::array::from_fn(|at| at as u8 ^ 0xa5),
    };
    vec![
        wrap(5, 0, WrapKind::Passphrase),
        wrap(5, 1, WrapKind::KeyFile),
        wrap(6, 0, WrapKind::Command),
        wrap(1 << 63, 9, WrapKind::PoolKey),
    ]
}
