use vm_memory::GuestAddress;

use super::{Chain, ChainError, MAX_DESCRIPTORS, Segment};
use crate::testing::MemoryDisk;
use crate::testing::driver::{DATA, Driver, HIGH, INDIRECT, LOW, NEXT, WRITE};
use crate::vhost_user::Limits;
use millpond_block::SectorProfile;

const SIZE: u16 = 8;

/// Case of a bad chain: name, expected error, and the function that makes the chain.
type Wrong = (&'static str, ChainError, fn(&Driver));

fn driver() -> Driver {
    Driver::new(MemoryDisk::new(4096, SectorProfile::S512e), SIZE, 0, Limits::default())
}

fn walk(driver: &Driver, head: u16) -> Result<Chain, ChainError> {
    let mut chain = Chain::default();
    chain.walk(driver.ring.memory(), GuestAddress(0x1_0000), SIZE, head).map(|()| chain)
}

#[test]
fn a_chain_is_taken_in_its_order() {
    let driver = driver();
    driver.descriptor(5, DATA, 16, NEXT, 2);
    driver.descriptor(2, DATA + 0x100, 0, NEXT, 7); // empty: left out
    driver.descriptor(7, HIGH, 512, NEXT | WRITE, 0);
    driver.descriptor(0, DATA + 0x200, 1, WRITE, 5);
    let chain = walk(&driver, 5).expect("a chain");
    assert_eq!(chain.readable.as_slice(), [Segment { at: GuestAddress(DATA), length: 16 }]);
    let writable = [Segment { at: GuestAddress(HIGH), length: 512 }, Segment { at: GuestAddress(DATA + 0x200), length: 1 }];
    assert_eq!(chain.writable.as_slice(), writable);
}

#[test]
fn a_long_table_is_followed_to_its_end_and_back() {
    let driver = driver();
    // 20 descriptors in reverse order: each one is outside the descriptors read ahead.
    let table = DATA + 0x1000;
    for index in 0..20u64 {
        let mut bytes = (DATA + index).to_le_bytes().to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&(if index == 0 { WRITE } else { WRITE | NEXT }).to_le_bytes());
        bytes.extend_from_slice(&(index as u16).wrapping_sub(1).to_le_bytes());
        driver.poke(table + 16 * (index + 1), &bytes);
    }
    // The chain of a table begins with the table's first descriptor.
    let mut first = (DATA + 0x500).to_le_bytes().to_vec();
    first.extend_from_slice(&16u32.to_le_bytes());
    first.extend_from_slice(&NEXT.to_le_bytes());
    first.extend_from_slice(&20u16.to_le_bytes());
    driver.poke(table, &first);
    for index in 1..=20u64 {
        let next = if index == 1 { 0 } else { index as u16 - 1 };
        driver.poke(table + 16 * index + 14, &next.to_le_bytes());
    }
    driver.descriptor(0, table, 16 * 21, INDIRECT, 0);
    let chain = walk(&driver, 0).expect("a chain");
    assert_eq!(chain.readable.len(), 1);
    let places: Vec<u64> = chain.writable.iter().map(|segment| segment.at.0 - DATA).collect();
    assert_eq!(places, (0..20).rev().collect::<Vec<_>>());
}

#[test]
fn what_is_wrong_is_named() {
    let cases: [Wrong; 12] = [
        ("a loop", ChainError::TooLong, |d| d.descriptor(0, DATA, 1, NEXT, 0)),
        ("next beyond the table", ChainError::Index, |d| d.descriptor(0, DATA, 1, NEXT, SIZE)),
        ("memory below a hole", ChainError::Memory, |d| d.descriptor(0, LOW - 1, 2, 0, 0)),
        ("memory in the hole", ChainError::Memory, |d| d.descriptor(0, LOW, 1, 0, 0)),
        ("memory at the end of all addresses", ChainError::Memory, |d| d.descriptor(0, u64::MAX, 2, 0, 0)),
        ("4 GiB", ChainError::Memory, |d| d.descriptor(0, DATA, u32::MAX, 0, 0)),
        ("read after write", ChainError::Order, |d| {
            d.descriptor(0, DATA, 1, WRITE | NEXT, 1);
            d.descriptor(1, DATA, 1, 0, 0);
        }),
        ("an empty table", ChainError::Table, |d| d.descriptor(0, DATA, 0, INDIRECT, 0)),
        ("half a descriptor", ChainError::Table, |d| d.descriptor(0, DATA, 24, INDIRECT, 0)),
        ("a table and more", ChainError::Nested, |d| d.descriptor(0, DATA, 16, INDIRECT | NEXT, 1)),
        ("a table after something", ChainError::Nested, |d| {
            d.descriptor(0, DATA, 1, NEXT, 1);
            d.descriptor(1, DATA, 16, INDIRECT, 0);
        }),
        ("a table in a table", ChainError::Nested, |d| {
            d.poke(DATA, &[[0; 12].as_slice(), &INDIRECT.to_le_bytes(), &[0; 2]].concat());
            d.descriptor(0, DATA, 16, INDIRECT, 0);
        }),
    ];
    for (what, error, make) in cases {
        let driver = driver();
        make(&driver);
        assert_eq!(walk(&driver, 0).map(|_| ()), Err(error), "{what}");
    }
    assert_eq!(walk(&driver(), SIZE).map(|_| ()), Err(ChainError::Index), "the head is none");
}

#[test]
fn no_chain_is_longer_than_allowed() {
    let driver = driver();
    let count = u32::from(MAX_DESCRIPTORS) + 1;
    for index in 0..u64::from(count) {
        let mut bytes = DATA.to_le_bytes().to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&NEXT.to_le_bytes());
        bytes.extend_from_slice(&(index as u16 + 1).to_le_bytes());
        driver.poke(DATA + 16 * index, &bytes);
    }
    driver.descriptor(0, DATA, 16 * count, INDIRECT, 0);
    assert_eq!(walk(&driver, 0).map(|_| ()), Err(ChainError::TooLong));
}
