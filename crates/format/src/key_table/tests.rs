use super::*;
use crate::crc32c;

fn wrap(key: u64, number: u8) -> KeyWrap {
    KeyWrap {
        key: KeyId(key),
        number,
        kind: WrapKind::Passphrase,
        derivation: Derivation::Argon2id { memory_kib: 256 << 10, passes: 3, lanes: 1 },
        salt: [1; 16],
        nonce: [2; 12],
        domain: [3; 8],
        wrapped: [4; 48],
    }
}

fn page(wraps: Vec<KeyWrap>) -> KeyPage {
    KeyPage { pool: PoolId([7; 16]), number: 5, generation: 9, wraps }
}

#[test]
fn a_page_has_room_for_its_wraps_and_no_more() {
    for count in [0, 1, 2, WRAPS_PER_PAGE] {
        let page = page((0..count).map(|at| wrap(at as u64 / 2 + 1, at as u8)).collect());
        assert_eq!(KeyPage::decode(&page.encode()), Ok(page), "{count}");
    }
    let more = page((0..=WRAPS_PER_PAGE).map(|at| wrap(1, at as u8)).collect());
    assert!(std::panic::catch_unwind(|| more.encode()).is_err());
    assert_eq!((KeyPage::offset(0), KeyPage::offset(KEY_PAGES - 1)), (640 << 10, (640 + 63 * 4) << 10));
}

#[test]
fn wraps_are_in_order_and_before_free_places() {
    let order = Err(FormatError::Field("order of wraps"));
    for wraps in [[wrap(2, 0), wrap(1, 0)], [wrap(1, 1), wrap(1, 0)], [wrap(1, 1), wrap(1, 1)]] {
        assert_eq!(KeyPage::decode(&page(wraps.to_vec()).encode()), order, "{wraps:?}");
    }
    let mut sector = page(vec![wrap(1, 0), wrap(2, 0)]).encode();
    sector[WRAPS_AT..WRAPS_AT + KeyWrap::BYTES].fill(0);
    assert_eq!(KeyPage::decode(&sealed(sector)), order, "a free place before a wrap");
}

/// Updates the checksum of a page.
fn sealed(mut sector: [u8; SECTOR_BYTES]) -> [u8; SECTOR_BYTES] {
    let sum = crc32c(&sector[..SECTOR_BYTES - 4]).to_le_bytes();
    sector[SECTOR_BYTES - 4..].copy_from_slice(&sum);
    sector
}

/// The cost of a derivation is spent before the wrap is known to be authentic.
#[test]
fn derivations_without_bound_are_refused() {
    let read = |memory_kib, passes, lanes| {
        let wrap = KeyWrap { derivation: Derivation::Argon2id { memory_kib, passes, lanes }, ..wrap(1, 0) };
        KeyPage::decode(&page(vec![wrap]).encode()).is_ok()
    };
    for (memory_kib, passes, lanes) in [(8, 1, 1), (4 << 20, 64, 64), (512, 1, 64)] {
        assert!(read(memory_kib, passes, lanes), "{memory_kib} {passes} {lanes}");
    }
    for (memory_kib, passes, lanes) in
        [(7, 1, 1), ((4 << 20) + 1, 1, 1), (8, 0, 1), (8, 65, 1), (8, 1, 0), (1 << 20, 1, 65), (511, 1, 64), (u32::MAX, 1, u32::MAX)]
    {
        assert!(!read(memory_kib, passes, lanes), "{memory_kib} {passes} {lanes}");
    }
}

/// Each damage, with a correct checksum, and the error.
#[test]
fn damaged_pages_are_refused() {
    let whole = page(vec![KeyWrap { derivation: Derivation::HkdfSha256, kind: WrapKind::KeyFile, ..wrap(1, 0) }]).encode();
    let field = |name| FormatError::Field(name);
    let damages: [(usize, u8, FormatError); 14] = [
        (0, b'X', FormatError::Magic),
        (8, 2, FormatError::Version(2)),
        (26, 64, field("page")),
        (35, 0x40, field("generation")),
        (36, 1, field("reserve")),
        (63, 1, field("reserve")),
        (WRAPS_AT + 9, 0, field("kind")),
        (WRAPS_AT + 9, 5, field("kind")),
        (WRAPS_AT + 10, 2, field("derivation")),
        (WRAPS_AT + 11, 1, field("derivation")),
        (WRAPS_AT + 20, 1, field("derivation")),
        (WRAPS_AT + 108, 1, field("wrap")),
        (WRAPS_AT + KeyWrap::BYTES + 60, 1, field("free place")),
        (SECTOR_BYTES - 5, 1, field("reserve")),
    ];
    for (at, byte, error) in damages {
        let mut sector = whole;
        sector[at] = byte;
        assert_eq!(KeyPage::decode(&sealed(sector)), Err(error), "byte {at}");
        let resealed = if error == FormatError::Magic { FormatError::Magic } else { FormatError::Checksum };
        assert_eq!(KeyPage::decode(&sector), Err(resealed), "byte {at}, without a new checksum");
    }
    // the id of the first wrap: its place counts as free, and its other bytes are not 0
    let mut sector = whole;
    sector[WRAPS_AT] = 0;
    assert_eq!(KeyPage::decode(&sealed(sector)), Err(field("free place")));
    assert_eq!(KeyPage::decode(&whole[..SECTOR_BYTES - 1]), Err(FormatError::Checksum));
    assert_eq!(KeyPage::decode(&[0; SECTOR_BYTES]), Err(FormatError::Magic));
}

/// All fields that choose what the key is used for are authenticated with it.
#[test]
fn the_clear_part_has_each_field() {
    let first = wrap(0x0102, 3);
    let clear = first.clear_part(PoolId([7; 16]));
    assert_eq!((clear.len(), &clear[..16], &clear[16..18]), (76, &[7; 16][..], &[2, 1][..]));
    assert_eq!(clear[16..], page(vec![first.clone()]).encode()[WRAPS_AT..WRAPS_AT + CLEAR]);
    assert_ne!(first.clear_part(PoolId([8; 16])), clear);
    let others = [
        KeyWrap { key: KeyId(9), ..first.clone() },
        KeyWrap { number: 9, ..first.clone() },
        KeyWrap { kind: WrapKind::Command, ..first.clone() },
        KeyWrap { derivation: Derivation::HkdfSha256, ..first.clone() },
        KeyWrap { salt: [9; 16], ..first.clone() },
        KeyWrap { nonce: [9; 12], ..first.clone() },
        KeyWrap { domain: [9; 8], ..first.clone() },
    ];
    assert!(others.iter().all(|other| other.clear_part(PoolId([7; 16])) != clear));
    assert_eq!(KeyWrap { wrapped: [9; 48], ..first }.clear_part(PoolId([7; 16])), clear);
}
