use super::*;

const NAME: SegmentName = SegmentName { term: Term(3), import: 0, count: 0x1234_5678_9abc };

fn record(segment: u32) -> NameRecord {
    NameRecord { segment: SegmentId(segment), name: SegmentName { count: u64::from(segment), ..NAME }, pages: 4096 }
}

fn doomed(count: u64, object: Doomed) -> DoomedName {
    DoomedName { name: SegmentName { count, ..NAME }, object, generation: 9 }
}

/// Decodes bytes after a change.
fn changed<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> T, change: impl Fn(&mut [u8])) -> T {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    decode(&bytes)
}

#[test]
fn a_name_is_the_name_of_one_object() {
    let mut e = Encoder::default();
    NAME.encode(&mut e);
    assert_eq!(e.bytes(), [3, 0, 0, 0, 0, 0, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12]);
    assert_eq!(SegmentName::decode(&mut Decoder::new(e.bytes())), Ok(NAME));
    assert_eq!(ObjectName::from(NAME).to_string(), "seg/bc/00000003.0000-123456789abc");
    let highest = SegmentName { term: Term(u32::MAX), import: u16::MAX, count: SegmentName::COUNTS - 1 };
    let mut e = Encoder::default();
    highest.encode(&mut e);
    assert_eq!(SegmentName::decode(&mut Decoder::new(e.bytes())), Ok(highest));
}

#[test]
#[should_panic(expected = "more than 48 bits")]
fn a_count_is_never_cut() {
    SegmentName { count: SegmentName::COUNTS, ..NAME }.encode(&mut Encoder::default());
}

#[test]
fn pages_hold_what_was_put_into_them() {
    let page: Vec<NameRecord> = (256..384).map(record).collect();
    let bytes = NameRecord::encode_page(&page);
    assert_eq!(bytes.len(), NAMES_PER_PAGE as usize * NameRecord::BYTES);
    assert_eq!(NameRecord::decode_page(&bytes), Ok(page.clone()));
    assert_eq!(NameRecord::decode_page(&[]), Ok(vec![]));
    let some: Vec<NameRecord> = page.into_iter().step_by(5).collect();
    assert_eq!(NameRecord::decode_page(&NameRecord::encode_page(&some)), Ok(some));
}

#[test]
fn damaged_pages_are_refused() {
    let decode = NameRecord::decode_page;
    let refused = |field| Err(FormatError::Field(field));
    let bytes = NameRecord::encode_page(&[record(5), record(127)]);
    let second = NameRecord::BYTES;
    assert_eq!(changed(&bytes, decode, |_| {}), Ok(vec![record(5), record(127)]));
    assert_eq!(changed(&bytes, decode, |b| b[0] = 127), refused("segment"), "twice");
    assert_eq!(changed(&bytes, decode, |b| b[second] = 4), refused("segment"), "backwards");
    assert_eq!(changed(&bytes, decode, |b| b[second] = 128), refused("segment"), "of the next page");
    assert_eq!(changed(&bytes, decode, |b| b[..4].fill(255)), refused("segment"), "no segment");
    assert_eq!(changed(&bytes, decode, |b| b[16..18].fill(0)), refused("pages"));
    assert_eq!(changed(&bytes, decode, |b| b[16..18].copy_from_slice(&1u16.to_le_bytes())), refused("pages"), "a head alone");
    assert_eq!(changed(&bytes, decode, |b| b[16] = 1), refused("pages"), "4,097");
    assert_eq!(changed(&bytes, decode, |b| b[18] = 1), refused("flags"));
    assert_eq!(changed(&bytes, decode, |b| b[second + 19] = 0x80), refused("flags"));
    assert_eq!(decode(&bytes[..second + 3]), Err(FormatError::Truncated));
}

#[test]
fn lists_hold_what_was_put_into_them() {
    let list = [
        doomed(7, Doomed::There { pages: 2 }),
        doomed(8, Doomed::InDoubt { deleted: false }),
        doomed(1 << 40, Doomed::InDoubt { deleted: true }),
        DoomedName { name: SegmentName { term: Term(4), import: 0, count: 0 }, ..doomed(0, Doomed::There { pages: 4096 }) },
    ];
    let bytes = DoomedName::encode_list(&list);
    assert_eq!(bytes.len(), list.len() * DoomedName::BYTES);
    assert_eq!(DoomedName::decode_list(&bytes).as_deref(), Ok(&list[..]));
    assert_eq!(DoomedName::decode_list(&[]), Ok(vec![]));
}

#[test]
fn damaged_lists_are_refused() {
    let decode = DoomedName::decode_list;
    let refused = |field| Err(FormatError::Field(field));
    let there = doomed(7, Doomed::There { pages: 300 });
    let doubt = doomed(8, Doomed::InDoubt { deleted: false });
    let bytes = DoomedName::encode_list(&[there, doubt]);
    let second = DoomedName::BYTES;
    assert_eq!(changed(&bytes, decode, |_| {}), Ok(vec![there, doubt]));
    assert_eq!(changed(&bytes, decode, |b| b[6] = 8), refused("name"), "twice");
    assert_eq!(changed(&bytes, decode, |b| b[0] = 4), refused("name"), "of a later term");
    assert_eq!(changed(&bytes, decode, |b| b[12..14].fill(0)), refused("pages"));
    assert_eq!(changed(&bytes, decode, |b| b[13] = 0x20), refused("pages"));
    assert_eq!(changed(&bytes, decode, |b| b[14] = 1), refused("pages"), "in doubt, with pages");
    assert_eq!(changed(&bytes, decode, |b| b[14] = 3), refused("pages"), "in doubt, with pages");
    assert_eq!(changed(&bytes, decode, |b| b[14] = 2), refused("flags"), "deleted once, and not in doubt");
    assert_eq!(changed(&bytes, decode, |b| b[second + 14] = 2), refused("flags"), "deleted once, and not in doubt");
    assert_eq!(changed(&bytes, decode, |b| b[second + 14] = 5), refused("flags"));
    assert_eq!(changed(&bytes, decode, |b| b[second + 14] = 0), refused("pages"), "there, without pages");
    assert_eq!(changed(&bytes, decode, |b| b[second + 23] = 0x40), refused("generation"));
    let deleted = DoomedName { object: Doomed::InDoubt { deleted: true }, ..doubt };
    assert_eq!(changed(&bytes, decode, |b| b[second + 14] = 3), Ok(vec![there, deleted]));
    assert_eq!(decode(&bytes[..second + 20]), Err(FormatError::Truncated));
}
