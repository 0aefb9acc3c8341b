//! Tables that refer to data in the file, and beyond its end.
use std::io::Write;

use super::*;

fn file(length: usize, marks: &[(usize, &[u8])]) -> File {
    let mut bytes = vec![0; length];
    for (at, mark) in marks {
        bytes[*at..at + mark.len()].copy_from_slice(mark);
    }
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("written");
    file
}

#[test]
fn qcow2_names_its_clusters() {
    let image = |length: usize, l1: u64, l2: u64, data: u64| {
        let marks: [(usize, &[u8]); 7] = [
            (0, b"QFI\xfb"),
            (4, &3u32.to_be_bytes()),
            (20, &16u32.to_be_bytes()),
            (36, &1u32.to_be_bytes()),
            (40, &l1.to_be_bytes()),
            (65536, &(l2 | 1 << 63).to_be_bytes()),
            (131_072, &(data | 1 << 63).to_be_bytes()),
        ];
        check(&file(length, &marks), Format::Qcow2).map_err(|e| e.to_string())
    };
    assert_eq!(image(262_144, 65536, 131_072, 196_608), Ok(()));
    assert!(image(262_144, 65536, 131_072, 262_144).unwrap_err().contains("data lies at byte 262144"));
    assert!(image(262_144, 65536, 1 << 40, 0).unwrap_err().contains("a table lies at byte"));
    assert!(image(262_144, 1 << 50, 0, 0).unwrap_err().contains("table of tables"));
    // zero clusters, and compressed data
    assert_eq!(image(262_144, 65536, 131_072, 1 << 40 | 1), Ok(()));
    assert!(image(262_144, 65536, 131_072, 1 << 62 | 1 << 41).unwrap_err().contains("compressed"));
}

#[test]
fn other_formats_name_their_blocks() {
    let vdi = |length, allocated: u32| {
        let word = |n: u32| n.to_le_bytes();
        let (map, data, block, blocks) = (word(512), word(1024), word(1 << 20), word(2));
        let (allocated, entry) = (word(allocated), word(u32::MAX));
        let marks: [(usize, &[u8]); 7] =
            [(0x154, &map), (0x158, &data), (0x178, &block), (0x180, &blocks), (0x184, &allocated), (516, &entry), (512, &word(0))];
        check(&file(length, &marks), Format::Vdi)
    };
    assert!(vdi(1024 + (1 << 20), 1).is_ok());
    assert!(vdi(1023 + (1 << 20), 1).is_err());
    assert!(check(&file(600, &[]), Format::Vdi).is_err(), "blocks of no bytes");
    assert!(check(&file(2048, &[(0, b"conectix")]), Format::Vhd).is_err(), "no footer");
    assert!(check(&file(40, &[(0, b"KDMV")]), Format::Vmdk).is_err(), "no header");
    assert!(part(&file(1024, &[]), 2, 0).is_ok() && part(&file(1023, &[]), 2, 0).is_err());
}
