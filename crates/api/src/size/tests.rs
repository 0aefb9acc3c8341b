//! Sizes: reading and printing.

use super::*;

fn bytes(text: &str) -> u64 {
    text.parse::<Size>().expect(text).0
}

#[test]
fn units_are_powers_of_1024() {
    assert_eq!(bytes("512"), 512);
    assert_eq!(bytes("512B"), 512);
    for text in ["64k", "64K", "64KiB", "64kb", "64kib"] {
        assert_eq!(bytes(text), 65536, "{text}");
    }
    assert_eq!(bytes("10G"), 10 << 30);
    assert_eq!(bytes("1.5T"), 3 << 39);
    assert_eq!(bytes("0.25k"), 256);
    assert_eq!(bytes("7E"), 7 << 60);
}

#[test]
fn nonsense_is_refused_in_one_line() {
    for text in [
        "",
        "G",
        "1.",
        ".5G",
        "1..5G",
        "1.5",
        "10X",
        "10 G",
        "10GG",
        "1e3",
        "-5",
        "8E",
        "99999999999999999999",
        "1.1111111111111111111111111111111111111111G",
    ] {
        let refusal = text.parse::<Size>().expect_err(text).to_string();
        assert!(refusal.contains("not a size") && !refusal.contains('\n'), "{refusal}");
    }
    let refusal = "10\u{41a}".parse::<Size>().expect_err("Cyrillic").to_string();
    assert!(refusal.contains("CYRILLIC CAPITAL LETTER KA"), "{refusal}");
}

#[test]
fn changes_apply_within_bounds() {
    assert_eq!("+5G".parse::<SizeChange>().map(|c| c.apply(1 << 30)), Ok(Some(6 << 30)));
    assert_eq!("-1G".parse::<SizeChange>().map(|c| c.apply(1 << 30)), Ok(Some(0)));
    assert_eq!("-1G".parse::<SizeChange>().map(|c| c.apply(1)), Ok(None));
    assert_eq!("4k".parse::<SizeChange>().map(|c| c.apply(1)), Ok(Some(4096)));
    assert_eq!("+7E".parse::<SizeChange>().map(|c| c.apply(7 << 60)), Ok(None));
}

#[test]
fn printing_never_says_more_than_there_is() {
    for (n, text) in
        [(0, "0B"), (1023, "1023B"), (1024, "1K"), (1536, "1.50K"), (1 << 30, "1G"), ((1 << 30) - 1, "1023.99M"), (u64::MAX, "15.99E")]
    {
        assert_eq!(Size(n).to_string(), text);
    }
}

#[test]
fn what_prints_whole_reads_back() {
    for power in 0..6 {
        for n in [1u64, 3, 1000] {
            let size = Size(n << (10 * power));
            assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
