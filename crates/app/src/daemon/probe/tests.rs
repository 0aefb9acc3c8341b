//! Foreign content is recognised.

use super::*;
use millpond_format::{Layout, PoolId};

#[test]
fn every_magic_is_found_where_it_stands() {
    for magic in MAGICS {
        let mut start = vec![0; PROBED];
        start[magic.offset..magic.offset + magic.bytes.len()].copy_from_slice(magic.bytes);
        assert_eq!(name(&start).as_deref(), Some(magic.name));
    }
}

#[test]
fn a_blank_or_short_device_holds_nothing() {
    assert_eq!(name(&[]), None);
    assert_eq!(name(&[0; 100]), None);
    assert_eq!(name(&vec![0; PROBED]), None);
}

#[test]
fn our_own_label_names_its_pool_even_when_damaged() {
    let label = Label {
        pool: PoolId([7; 16]),
        name: "tank".to_owned(),
        member: 0,
        layout: Layout::Linear,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        extents: vec![10],
    };
    let mut sector = label.encode();
    assert!(name(&sector).is_some_and(|told| told.contains("'tank'")));
    sector[100] ^= 1;
    assert!(name(&sector).is_some_and(|told| told.contains("damaged")));
}
