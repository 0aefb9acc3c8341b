//! The count of segments for a rejoin is done in slices.

use millpond_block::MemberId;
use millpond_format::{Class, Column, Group, Layout, SegmentId};

use super::*;

fn group(first: u32) -> Group {
    let columns = (0..2).map(MemberId).map(|member| Column { member, first, extents: 1 }).collect();
    Group { class: Class::Data, layout: Layout::Mirror { copies: 2 }, first: SegmentId(first), columns }
}

/// Steps a count to its end; returns the result, and the segments examined in each turn.
fn look(prospect: &mut Prospect, may: impl Fn(u32) -> bool) -> (bool, Vec<usize>) {
    let mut turns = Vec::new();
    loop {
        let mut rows = 0;
        let found = prospect.step(ROWS_PER_TURN, |_, id| {
            rows += 1;
            may(id.0)
        });
        turns.push(rows);
        if let Some(found) = found {
            return (found, turns);
        }
    }
}

#[test]
fn a_turn_looks_at_few_rows_however_many_there_are() {
    let (one, two) = (group(0), group(1_000_000));
    let count = |group: &Group| if group.first.0 == 0 { 40_000 } else { 1_600_000 };
    let mut prospect = Prospect::new(false, &[vec![&one, &two]], count);
    let (found, turns) = look(&mut prospect, |_| true);
    // a sixteenth of all segments, in two groups
    assert!(found && turns.iter().sum::<usize>() == 102_500, "{turns:?}");
    assert!(turns.len() > 20 && turns.iter().all(|rows| *rows <= ROWS_PER_TURN), "{turns:?}");
}

#[test]
fn a_row_that_may_not_go_ends_the_look_at_its_kind() {
    let (one, two) = (group(0), group(1_000));
    let kinds = [vec![&one], vec![&two]];
    let (found, turns) = look(&mut Prospect::new(false, &kinds, |_| 160), |id| id >= 1_000);
    assert!(found && turns == [11], "{turns:?}");
    let (found, turns) = look(&mut Prospect::new(false, &kinds, |_| 160), |_| false);
    assert!(!found && turns == [2], "{turns:?}");
    let (found, _) = look(&mut Prospect::new(false, &[], |_| 160), |_| true);
    assert!(!found, "nothing can be joined");
}

/// Paused segments are retried every second. A moment without a pause is no progress; only a move
/// is.
#[test]
fn a_minute_without_progress_is_counted_over_tries() {
    let (mut known, since) = (None, Time(5_000));
    for second in 0..60 {
        let now = Time(since.0 + second * 1_000);
        known = stalled(known, 700, true, now);
        known = stalled(known, 700, false, Time(now.0 + 500));
        assert_eq!(known, Some((700, since)));
    }
    assert_eq!(stalled(known, 600, false, Time(70_000)), None);
    assert_eq!(stalled(known, 600, true, Time(70_000)), Some((600, Time(70_000))));
}
