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
    let told = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], None);
    let small: Vec<u64> = told.thresholds.iter().map(|row| row.small_bytes / GIB).collect();
    assert_eq!((small, told.data_bytes / GIB), (vec![1, 3, 3, 7, 7, 7], 20));
    assert_eq!((told.thresholds[3].share, told.thresholds[3].total_bytes / GIB), (0.35, 8));
    // each half holds: twice the bytes of nodes; the bytes of small writes and an eighth more
    let needed: Vec<u64> = told.thresholds.iter().map(|row| row.needed_bytes / GIB).collect();
    assert_eq!(needed, [4, 6, 6, 16, 16, 16]);
    assert!(told.thresholds.iter().all(|row| row.fits.is_none() && row.full_percent.is_none()));
    assert_eq!((told.volumes.len(), told.volumes[0].name.as_str()), (1, "-"), "what was destroyed is counted");
}

#[test]
fn what_is_said_to_be_needed_fits() {
    for sizes in [[1, 2, 0, 4, 0, 0, 13], [0, 0, 0, 0, 0, 1, 0], [9, 9, 9, 9, 9, 9, 9]] {
        let asked = advice("tank", &census(sizes), &[], None);
        for (at, row) in asked.thresholds.iter().enumerate() {
            let told = advice("tank", &census(sizes), &[], Some(row.needed_bytes.next_multiple_of(16)));
            assert_eq!(told.thresholds[at].fits, Some(true), "{row:?}");
            assert!(told.thresholds[at].full_percent <= Some(100) && told.assumed);
        }
    }
}

#[test]
fn the_largest_that_fits_is_named() {
    let told = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], Some(10 * GIB));
    assert_eq!(told.largest_fitting, Some(16 << 10));
    assert!(
        told.advice.starts_with("special_small_blocks=16K is the largest value") && told.advice.ends_with("69 % full"),
        "{}",
        told.advice
    );
    let told = advice("tank", &census([1, 2, 0, 4, 0, 0, 13]), &[], Some(GIB));
    assert_eq!(told.largest_fitting, None);
    assert!(told.advice.contains("not even") && told.advice.contains("not all map nodes"), "{}", told.advice);
    // the special devices of the pool, with stripes for nodes, and without
    let there = WriteSizes { special: 3 * GIB, special_nodes: GIB, ..census([1, 2, 0, 4, 0, 0, 13]) };
    let told = advice("tank", &there, &[], None);
    assert_eq!((told.special_bytes, told.largest_fitting, told.assumed), (Some(4 * GIB), Some(4 << 10), false));
    let told = advice("tank", &WriteSizes { special: 5 * GIB, special_nodes: 0, ..there }, &[], None);
    assert_eq!((told.special_bytes, told.largest_fitting), (Some(5 * GIB), Some(16 << 10)));
    assert!(advice("tank", &census([0; 7]), &[], None).advice.contains("nothing is stored"));
}
