use std::collections::BTreeSet;

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::Compression;

use super::super::history::{Cut, PieceId};
use super::super::{Snapshot, Volume};
use super::*;
use crate::grid::Grid;
use crate::trace::Moment;

const VOLUME: VolumeId = VolumeId(0);
/// A volume of one block and its snapshot, each with one node besides those above it.
const NODES: u64 = 2 * (1 + NODES_BESIDES) * NODE_BYTES as u64;

/// Makes a volume of one block that holds value 1, with a write of value 2 to all of it in flight
/// since moment 10.
fn one_block() -> (Oracle, PieceId) {
    let mut oracle = Oracle::new(Grid::default());
    let piece = oracle.pieces.add(2, 10);
    let mut cell = Cell::settled(1);
    cell.push(piece);
    let volume = Volume {
        id: VOLUME,
        serial: 0,
        name: String::new(),
        sector: SectorProfile::S512e,
        cache: CacheMode::Writeback,
        compression: Compression::Off,
        read_only: false,
        origin: None,
        base: None,
        publication: None,
        through: None,
        grid: oracle.grid,
        cells: vec![cell; oracle.grid.per_block() as usize],
        floor: 0,
        crash: None,
        recovered: Vec::new(),
    };
    oracle.volumes.insert(VOLUME, volume);
    (oracle, piece)
}

/// A snapshot of the volume, taken between two moments.
fn snapshot(oracle: &mut Oracle, min: Moment, max: Moment) {
    oracle.cuts.push(Cut::between(min, max));
    let snapshot = Snapshot {
        id: SnapshotId(0),
        volume: VOLUME,
        name: String::new(),
        holds: 0,
        tags: BTreeSet::new(),
        sector: SectorProfile::S512e,
        through: None,
        grid: oracle.grid,
        cells: oracle.volumes[&VOLUME].cells.iter().map(|cell| Frozen::Open(Box::new(cell.clone()))).collect(),
        cut: 0,
    };
    oracle.snapshots.insert(SnapshotId(0), snapshot);
}

#[test]
fn a_snapshot_may_hold_what_a_write_in_flight_replaced_after_it() {
    let (mut oracle, piece) = one_block();
    snapshot(&mut oracle, 15, 20);
    assert_eq!(oracle.held_bytes(), 2 * BLOCK + NODES, "either version, in both");
    oracle.pieces.get_mut(piece).high = 30;
    assert_eq!(oracle.held_bytes(), 2 * BLOCK + NODES, "the head holds the new one, the snapshot perhaps the old one");
}

#[test]
fn a_snapshot_shares_what_was_surely_written_before_it() {
    let (mut oracle, piece) = one_block();
    snapshot(&mut oracle, 15, 20);
    oracle.pieces.get_mut(piece).high = 12;
    assert_eq!(oracle.held_bytes(), BLOCK + NODES);
}
