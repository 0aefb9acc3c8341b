use millpond_engine::VolumeId;

use super::*;

const GIB: u64 = 1 << 30;

/// A census of writes of up to 4 KiB, 8 KiB and so on, in GiB each, and of 1 GiB of nodes.
fn census(sizes: [u64; 7]) -> WriteSizes {
    let volume = VolumeCensus { volume: VolumeId(3), sizes: sizes.map(|gib| gib * GIB), special: 0 };
    WriteSizes { volumes: vec![volume], nodes: GIB, objects: 0, special: 0, special_nodes: 0 }
}

#[test]
fn sizes_add_up() {
    let advised = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], None);
    let small: Vec<u64> = advised.thresholds.iter().map(|row| row.small_bytes / GIB).collect();
    assert_eq!((small, advised.data_bytes / GIB), (vec![1, 3, 3, 7, 7, 7], 20));
    assert_eq!((advised.thresholds[3].share, advised.thresholds[3].total_bytes / GIB), (0.35, 8));
    // each half holds: twice the bytes of nodes; the bytes of small writes and an eighth more
    let needed: Vec<u64> = advised.thresholds.iter().map(|row| row.needed_bytes / GIB).collect();
    assert_eq!(needed, [4, 6, 6, 16, 16, 16]);
    assert!(advised.thresholds.iter().all(|row| row.fits.is_none() && row.full_percent.is_none()));
    assert_eq!((advised.volumes.len(), advised.volumes[0].name.as_str()), (1, "-"), "what was destroyed is counted");
}

#[test]
fn what_is_said_to_be_needed_fits() {
    for sizes in [[1, 2, 0, 4, 0, 0, 13], [0, 0, 0, 0, 0, 1, 0], [9, 9, 9, 9, 9, 9, 9]] {
        let asked = advice("tank", &census(sizes), &[], None);
        for (at, row) in asked.thresholds.iter().enumerate() {
            let advised = advice("tank", &census(sizes), &[], Some(row.needed_bytes.next_multiple_of(16)));
            assert_eq!(advised.thresholds[at].fits, Some(true), "{row:?}");
            assert!(advised.thresholds[at].full_percent <= Some(100) && advised.assumed);
        }
    }
}

#[test]
fn the_largest_that_fits_is_named() {
    let advised = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], Some(10 * GIB));
    assert_eq!(advised.largest_fitting, Some(16 << 10));
    assert!(
        advised.advice.starts_with("special_small_blocks=16K is the largest value") && advised.advice.ends_with("69 % full"),
        "{}",
        advised.advice
    );
    let advised = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], Some(GIB));
    assert_eq!(advised.largest_fitting, None);
    assert!(advised.advice.contains("not even") && advised.advice.contains("not all map nodes"), "{}", advised.advice);
    // the special devices of the pool, with stripes for nodes, and without
    let there = WriteSizes { special: 3 * GIB, special_nodes: GIB, ..census([1, 2, 0, 4, 0, 0, 13]) };
    let advised = advice("tank", &there, &[], None);
    assert_eq!((advised.special_bytes, advised.largest_fitting, advised.assumed), (Some(4 * GIB), Some(4 << 10), false));
    let advised = advice("tank", &WriteSizes { special: 5 * GIB, special_nodes: 0, ..there }, &[], None);
    assert_eq!((advised.special_bytes, advised.largest_fitting), (Some(5 * GIB), Some(16 << 10)));
    assert!(advice("tank", &census([0; 7]), &[], None).advice.contains("nothing is stored"));
}
