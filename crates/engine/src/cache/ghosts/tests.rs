//! Blocks that are recognised when read again, and blocks that are forgotten.

use super::*;

fn key(n: u64) -> u64 {
    n << 13
}

#[test]
fn a_block_is_met_once_for_every_two_reads() {
    let mut ghosts = Ghosts::default();
    assert!(!ghosts.meet(key(1)) && !ghosts.meet(key(1)), "there is no room for any mark");
    ghosts.resize(4000);
    let met = |ghosts: &mut Ghosts| (0..1000).filter(|n| ghosts.meet(key(*n))).count();
    assert_eq!(met(&mut ghosts), 0);
    let again = met(&mut ghosts);
    assert!(again > 980, "{again}");
    assert!(met(&mut ghosts) < 20);
}

#[test]
fn what_was_read_long_ago_is_forgotten() {
    let mut ghosts = Ghosts::default();
    ghosts.resize(400);
    (0..100).for_each(|n| _ = ghosts.meet(key(n)));
    (1000..5000).for_each(|n| _ = ghosts.meet(key(n)));
    let again = (0..100).filter(|n| ghosts.meet(key(*n))).count();
    assert!(again < 3, "{again}");
}
