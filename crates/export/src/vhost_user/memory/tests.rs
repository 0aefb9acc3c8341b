use vm_memory::GuestAddress;

use super::{Memory, copy_in, copy_out, has};

const PAGE: u64 = 4096;

/// Returns memory with two adjacent regions, a hole, and a third region.
fn memory() -> Memory {
    let ranges = [0, PAGE, 3 * PAGE].map(|at| (GuestAddress(at), PAGE as usize));
    Memory::from_ranges(&ranges).expect("three pages")
}

#[test]
fn bytes_are_copied_within_and_across_regions() {
    let memory = memory();
    for (at, length) in [(0, 1), (100, 4096 - 100), (4000, 200), (0, 8192), (3 * PAGE, 4096)] {
        let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8 ^ 0x5a).collect();
        assert!(has(&memory, GuestAddress(at), length));
        assert_eq!(copy_in(&memory, GuestAddress(at), &bytes), Ok(()));
        let mut found = vec![0; length];
        assert_eq!(copy_out(&memory, GuestAddress(at), &mut found), Ok(()));
        assert!(found == bytes, "{at} {length}");
    }
}

#[test]
fn there_is_nothing_outside() {
    let memory = memory();
    for (at, length) in
        [(8191, 2), (2 * PAGE, 1), (3 * PAGE - 1, 2), (4 * PAGE, 1), (u64::MAX, 1), (u64::MAX, 2), (0, usize::MAX), (0, 3 * 4096)]
    {
        assert!(!has(&memory, GuestAddress(at), length), "{at} {length}");
        if length < 1 << 20 {
            assert!(copy_in(&memory, GuestAddress(at), &vec![1; length]).is_err(), "{at} {length}");
            assert!(copy_out(&memory, GuestAddress(at), &mut vec![1; length]).is_err(), "{at} {length}");
        }
    }
}
