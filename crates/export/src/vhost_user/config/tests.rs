use millpond_block::{Features, Geometry, SectorProfile};

use super::{Offer, written_cache};

fn offer(sector: SectorProfile, read_only: bool) -> Offer {
    Offer { geometry: Geometry { size: 3 << 30, sector }, features: Features { read_only, write_cache: true }, queues: 5 }
}

/// Checks the fields at the offsets of the specification.
#[test]
fn the_space_says_what_the_volume_is() {
    for (sector, block, exponent, smallest) in
        [(SectorProfile::S512n, 512u32, 0u8, 1u16), (SectorProfile::S512e, 512, 3, 8), (SectorProfile::S4kn, 4096, 0, 1)]
    {
        let offer = offer(sector, false);
        let get = |at, length| offer.config(at, length, true).expect("inside");
        assert_eq!(get(0, 8), ((3u64 << 30) / 512).to_le_bytes());
        assert_eq!(get(20, 4), block.to_le_bytes());
        assert_eq!(get(24, 2), [exponent, 0]);
        assert_eq!(get(26, 2), smallest.to_le_bytes());
        assert_eq!(get(32, 1), [1]);
        assert_eq!(get(34, 2), 5u16.to_le_bytes());
        assert_eq!(get(44, 4), 8u32.to_le_bytes());
        assert_eq!(get(56, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn the_space_has_an_end_and_the_cache_is_the_guests() {
    let offer = offer(SectorProfile::S512e, false);
    assert_eq!(offer.config(0, 256, true).map(|bytes| bytes.len()), Some(256));
    assert_eq!(offer.config(250, 7, true), None);
    assert_eq!(offer.config(usize::MAX, 2, true), None);
    assert_eq!(offer.config(32, 1, false), Some(vec![0]));
    assert_eq!((written_cache(32, &[1]), written_cache(32, &[0])), (Some(true), Some(false)));
    for (at, bytes) in [(32, &[2][..]), (31, &[1]), (32, &[1, 1]), (0, &[])] {
        assert_eq!(written_cache(at, bytes), None);
    }
}

#[test]
fn a_snapshot_offers_nothing_that_writes() {
    let (writable, read_only) = (offer(SectorProfile::S512e, false).feature_bits(), offer(SectorProfile::S512e, true).feature_bits());
    let (ro, wce, discard, zeroes) = (1 << 5, 1 << 11, 1 << 13, 1 << 14);
    assert_eq!(writable & (ro | wce | discard | zeroes), wce | discard | zeroes);
    assert_eq!(read_only & (ro | wce | discard | zeroes), ro);
    // version 1, protocol features, event index, indirect descriptors, multiple queues, flush
    let both = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 12 | 1 << 9;
    assert_eq!((writable & both, read_only & both), (both, both));
}
