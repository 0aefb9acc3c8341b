//! Sizes as users type them.

use anyhow::{Context, Result, bail};

/// Parses bytes such as `4096`, `64k`, `1.5G`, `1TiB`; units are powers of 1024.
///
/// # Errors
/// The text is no number with such a unit, or too large.
pub fn parse_size(text: &str) -> Result<u64> {
    let trimmed = text.trim().trim_end_matches(['B', 'b']).trim_end_matches(['i', 'I']);
    let (digits, shift) = match trimmed.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 10),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 20),
        Some((at, 'g' | 'G')) => (&trimmed[..at], 30),
        Some((at, 't' | 'T')) => (&trimmed[..at], 40),
        Some(_) => (trimmed, 0),
        None => bail!("an empty size; write for example 4k or 1G"),
    };
    let scale = 1u64 << shift;
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(scale).with_context(|| format!("{text} is too large"));
    }
    let value: f64 = digits.parse().with_context(|| format!("'{text}' is not a size; write for example 4k or 1G"))?;
    let bytes = value * scale as f64;
    if !(0.0..1e18).contains(&bytes) {
        bail!("{text} is out of range");
    }
    Ok(bytes as u64)
}

/// Formats bytes: 1536 is `1.5 KiB`.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_typed() {
        for (text, bytes) in [("512", 512), ("4k", 4096), ("64K", 65536), ("1.5G", 3 << 29), ("1TiB", 1 << 40), ("2MB", 2 << 20)] {
            assert_eq!(parse_size(text).expect(text), bytes, "{text}");
        }
        for bad in ["", "k", "x4", "-1", "99999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(show_size(1536), "1.5 KiB");
    }
}
