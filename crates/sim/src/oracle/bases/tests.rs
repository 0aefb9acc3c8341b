use millpond_block::{ByteRange, CacheMode, SectorProfile};
use millpond_engine::{BaseInfo, Compression};

use super::*;
use crate::grid::Grid;

const BASE: VolumeId = VolumeId(1);
const CLONE: VolumeId = VolumeId(2);
/// Bytes of a chunk: four blocks.
const UNIT: u32 = 16 << 10;
const BLOCKS: u64 = 12;

fn read(op: Op, offset: u64, length: u64) -> Vec<u64> {
    read_blocks(&Request { op, range: ByteRange { offset, length }, fua: false }).collect()
}

#[test]
fn writes_need_the_blocks_that_they_cover_in_part() {
    assert_eq!(read(Op::Read, 512, 8192), [0, 1, 2]);
    assert_eq!(read(Op::Read, 4096, 8192), [1, 2]);
    assert_eq!(read(Op::Write, 4096, 8192), [0; 0]);
    assert_eq!(read(Op::Write, 512, 8192), [0, 2]);
    assert_eq!(read(Op::WriteZeroes { may_unmap: true }, 4096, 4608), [2]);
    assert_eq!(read(Op::Write, 512, 1024), [0]);
    assert_eq!(read(Op::Discard, 512, 8192), [0; 0]);
    assert_eq!(read(Op::Flush, 0, 0), [0; 0]);
}

/// Makes a base of three chunks and a clone of it.
fn clone_of_a_base() -> Oracle {
    let mut oracle = Oracle::new(Grid::default());
    let publication = Publication { info: BaseInfo { unit: UNIT, source: "5eed".to_owned() }, size: BLOCKS * BLOCK };
    let cells = oracle.content(&publication);
    for (id, publication) in [(BASE, Some(publication)), (CLONE, None)] {
        let volume = Volume {
            id,
            serial: id.0,
            name: String::new(),
            sector: SectorProfile::S512e,
            cache: CacheMode::Writeback,
            compression: Compression::Off,
            read_only: false,
            origin: None,
            base: None,
            publication,
            through: Some(BASE),
            grid: oracle.grid,
            cells: cells.clone(),
            floor: 0,
            crash: None,
            recovered: Vec::new(),
        };
        oracle.volumes.insert(id, volume);
    }
    oracle
}

/// Answers a read of a block that begins at `at` and fails.
fn fails(oracle: &mut Oracle, block: u64, at: Moment, error: DiskError) -> Verdict {
    let request = Request { op: Op::Read, range: ByteRange { offset: block * BLOCK, length: BLOCK }, fua: false };
    oracle.begin(7, Target::Head(CLONE), request, false, 0, at);
    oracle.complete(7, &Err(error), at + 100)
}

#[test]
fn a_read_may_fail_only_if_the_store_refused_its_chunk_since_it_began() {
    let mut oracle = clone_of_a_base();
    assert!(fails(&mut oracle, 5, 10, DiskError::Io).is_err(), "the store refused nothing");
    oracle.refuse_chunk(BASE, 1, 15);
    assert!(fails(&mut oracle, 5, 10, DiskError::Io).is_ok());
    assert!(fails(&mut oracle, 5, 15, DiskError::Io).is_ok());
    assert!(fails(&mut oracle, 5, 16, DiskError::Io).is_err(), "it began after the answer");
    assert!(fails(&mut oracle, 3, 10, DiskError::Io).is_err(), "it is of another chunk");
    assert!(fails(&mut oracle, 5, 10, DiskError::Shutdown).is_err(), "no pool is being closed");
    oracle.issue(1, Command::Close, 20);
    assert!(fails(&mut oracle, 5, 20, DiskError::Shutdown).is_ok());
}

#[test]
fn a_block_that_was_written_needs_no_chunk() {
    let mut oracle = clone_of_a_base();
    oracle.refuse_chunk(BASE, 1, 15);
    let cell = 5 * oracle.grid.per_block() as usize + 3;
    oracle.volumes.get_mut(&CLONE).unwrap().cells[cell] = Cell::settled(99);
    assert!(fails(&mut oracle, 5, 10, DiskError::Io).is_err());
    assert!(fails(&mut oracle, 6, 10, DiskError::Io).is_ok());
}
