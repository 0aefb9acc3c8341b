//! A pattern of bytes that shows misplaced data.

/// Returns `length` bytes of a pattern from place `at` on. Other places and other seeds have other
/// bytes, at steps of one byte, of a sector and of a block.
pub fn pattern(at: u64, length: usize, seed: u8) -> Vec<u8> {
    (at..at + length as u64).map(|place| (place / 7) as u8 ^ (place / 251) as u8 ^ (place >> 16) as u8 ^ seed).collect()
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn other_places_and_seeds_have_other_bytes() {
        let whole = pattern(0, 1 << 20, 3);
        assert!(whole[4096..8192] == pattern(4096, 4096, 3));
        for (step, length) in [(1, 64), (512, 512), (4096, 4096), (1 << 16, 4096)] {
            let parts: Vec<&[u8]> = whole.windows(length).step_by(step).take(16).collect();
            assert!(parts.iter().enumerate().all(|(nth, part)| parts[..nth].iter().all(|other| other != part)), "{step}");
        }
        assert!((0..=255).filter(|seed| pattern(0, 512, *seed) == whole[..512]).eq([3]));
    }
}
