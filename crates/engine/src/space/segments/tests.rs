use millpond_format::SegmentId;

use super::{SegmentState, SegmentTable};
use crate::space::Shelf;

/// Three groups of 10, 20, and 31 segments of 16 pages.
fn table() -> SegmentTable {
    let mut table = SegmentTable::new();
    let group = |id: SegmentId| match id.0 {
        0..10 => SegmentId(0),
        10..30 => SegmentId(10),
        _ => SegmentId(30),
    };
    table.extend(61, |id| Some((Shelf::Data, group(id), 16)));
    table
}

fn prepare_all(table: &mut SegmentTable, wanted: u64) -> usize {
    let mut steps = 0;
    while let Some(id) = table.next_hole(wanted, true) {
        table.set_state(id, SegmentState::Preparing);
        table.prepared(id, true);
        steps += 1;
        assert!(steps <= 61, "more is prepared than there is");
    }
    steps
}

/// For each number of pages to be ready: what preparing made ready is not discarded, and what is
/// discarded leaves nothing to prepare.
#[test]
fn what_was_prepared_is_not_given_back() {
    for wanted in 16..=61 * 16 {
        let mut table = table();
        assert!(prepare_all(&mut table, wanted) > 0);
        assert_eq!(table.last_ready(1, wanted), [], "{wanted} pages wanted");
        prepare_all(&mut table, 61 * 16);
        let ready = |table: &SegmentTable| table.pages().ready;
        loop {
            let found = table.last_ready(64, wanted);
            if found.is_empty() {
                break;
            }
            for id in &found {
                table.set_state(*id, SegmentState::Discarding);
            }
            for id in &found {
                table.set_state(*id, SegmentState::Free);
            }
        }
        // each share is rounded down to pages, and up to segments
        assert!(ready(&table) + 3 > wanted && ready(&table) < wanted + 3 * 16, "{} pages of {wanted}", ready(&table));
        assert_eq!(prepare_all(&mut table, wanted), 0, "{wanted} pages wanted");
    }
}
