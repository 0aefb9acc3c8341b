use super::*;

/// Adds a piece with an interval to a cell.
fn piece(pieces: &mut Pieces, cell: &mut Cell, value: Value, low: Moment, high: Moment) -> PieceId {
    let id = pieces.add(value, low);
    pieces.get_mut(id).high = high;
    cell.push(id);
    id
}

fn possible(cell: &Cell, cut: &Cut, pieces: &Pieces) -> Vec<Value> {
    let mut values = cell.possible(cut, pieces).to_vec();
    values.sort_unstable();
    values
}

#[test]
fn an_acknowledged_write_hides_what_was_before() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    piece(&mut pieces, &mut cell, 1, 10, 20);
    assert_eq!(possible(&cell, &Cut::between(5, 9), &pieces), [0]);
    assert_eq!(possible(&cell, &Cut::between(15, 16), &pieces), [0, 1]);
    assert_eq!(possible(&cell, &Cut::between(21, 30), &pieces), [1]);
}

#[test]
fn concurrent_writes_leave_either_until_a_read_decides() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    piece(&mut pieces, &mut cell, 1, 10, 20);
    piece(&mut pieces, &mut cell, 2, 11, 19);
    assert_eq!(possible(&cell, &Cut::between(25, 30), &pieces), [1, 2]);
    let mut cut = Cut::between(25, 30);
    assert!(cell.observe(1, &mut cut, &pieces));
    sharpen(&cut, &mut pieces);
    assert_eq!(possible(&cell, &Cut::between(31, 40), &pieces), [1], "decided for good");
    assert_eq!(possible(&cell, &Cut::power(0, 40), &pieces), [0, 1, 2], "a power cut may fall between the two");
    assert_eq!(possible(&cell, &Cut::power(25, 40), &pieces), [1], "but not after a flush");
}

#[test]
fn a_value_read_before_a_kill_is_not_replaced_by_an_older_one() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    let id = piece(&mut pieces, &mut cell, 1, 10, NEVER);
    assert_eq!(possible(&cell, &Cut::between(50, 60), &pieces), [0, 1], "never acknowledged: either");
    let mut cut = Cut::between(12, 14);
    assert!(cell.observe(1, &mut cut, &pieces));
    sharpen(&cut, &mut pieces);
    pieces.get_mut(id).end = 20;
    assert_eq!(possible(&cell, &Cut::between(50, 60), &pieces), [1]);
}

#[test]
fn a_write_that_was_absent_after_a_crash_stays_absent() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    let id = piece(&mut pieces, &mut cell, 1, 10, NEVER);
    pieces.get_mut(id).end = 20;
    let mut cut = Cut::between(30, 31);
    assert!(cell.observe(ZERO, &mut cut, &pieces));
    sharpen(&cut, &mut pieces);
    assert!(!cell.observe(1, &mut Cut::between(40, 41), &pieces));
}

#[test]
fn a_cut_is_a_prefix_across_sectors() {
    let mut pieces = Pieces::default();
    let (mut first, mut second) = (Cell::settled(ZERO), Cell::settled(ZERO));
    piece(&mut pieces, &mut first, 1, 10, 20);
    piece(&mut pieces, &mut second, 2, 21, 30);
    // The second without the first: no instant has that.
    let mut cut = Cut::power(0, 40);
    assert!(second.observe(2, &mut cut, &pieces));
    assert!(!first.observe(ZERO, &mut cut, &pieces));
    // Concurrent ones may be split.
    let mut third = Cell::settled(ZERO);
    piece(&mut pieces, &mut third, 3, 15, 25);
    let mut cut = Cut::power(0, 40);
    assert!(third.observe(3, &mut cut, &pieces));
    assert!(first.observe(ZERO, &mut cut, &pieces));
}

#[test]
fn a_piece_is_in_a_state_wholly_or_not_at_all() {
    let mut pieces = Pieces::default();
    let (mut first, mut second) = (Cell::settled(ZERO), Cell::settled(ZERO));
    let id = piece(&mut pieces, &mut first, 1, 10, NEVER);
    second.push(id);
    let mut cut = Cut::between(15, 15);
    assert!(first.observe(1, &mut cut, &pieces));
    assert!(!second.observe(ZERO, &mut cut, &pieces));
}

#[test]
fn durable_pieces_survive_a_power_cut() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    let id = piece(&mut pieces, &mut cell, 1, 10, 20);
    assert_eq!(possible(&cell, &Cut::power(0, 40), &pieces), [0, 1]);
    pieces.get_mut(id).durable = true;
    assert_eq!(possible(&cell, &Cut::power(0, 40), &pieces), [1]);
}

#[test]
fn pruning_forgets_nothing_that_can_be_seen() {
    let (mut pieces, mut cell) = (Pieces::default(), Cell::settled(ZERO));
    piece(&mut pieces, &mut cell, 1, 10, 20);
    piece(&mut pieces, &mut cell, 2, 30, 40);
    piece(&mut pieces, &mut cell, 3, 50, 60);
    let before = possible(&cell, &Cut::power(25, 70), &pieces);
    cell.prune(25, 25, &pieces);
    assert_eq!(before, [1, 2, 3]);
    assert_eq!(possible(&cell, &Cut::power(25, 70), &pieces), before);
    cell.prune(70, 70, &pieces);
    assert_eq!(cell.certain(), Some(3));
}
