use super::*;

#[test]
fn cells_follow_each_other_without_gaps() {
    for grid in [Grid::default(), Grid { split: 137 }, Grid { split: LEAST as u64 }] {
        assert_eq!(grid.cells(BLOCK), grid.per_block());
        let mut end = 0;
        for (cell, place) in grid.places(ByteRange { offset: 0, length: 3 * BLOCK }) {
            assert_eq!((place.start, grid.start(cell)), (end, end as u64));
            assert!(place.len() >= LEAST);
            assert!(place.clone().all(|byte| grid.at(byte as u64) == cell));
            end = place.end;
        }
        assert_eq!(end as u64, 3 * BLOCK);
    }
}

#[test]
fn a_range_is_covered_when_cells_begin_at_both_ends() {
    let grid = Grid { split: 137 };
    let covers = |offset, length| grid.covers(ByteRange { offset, length });
    assert!(covers(512 + 137, 375) && covers(137, 512) && covers(0, 137) && covers(4096, 8192));
    assert!(!covers(1, 136) && !covers(137, 376) && !covers(u64::MAX, 512));
    assert_eq!(grid.range(ByteRange { offset: 137, length: 512 + 375 }), 1..4);
}
