use super::*;

#[test]
fn a_sector_says_who_it_is_and_every_flipped_bit_shows() {
    for op in 1..40 {
        let mut sector = [0u8; SECTOR];
        stamp(op, 3, 77 + op, &mut sector);
        assert_eq!(identify(&sector), Content::Stamp { op, volume: 3, cell: 77 + op });
        for bit in (0..SECTOR * 8).step_by(37) {
            let mut bad = sector;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(identify(&bad), Content::Garbage, "bit {bit}");
        }
    }
    assert_eq!(identify(&[0; SECTOR]), Content::Zero);
}
