use super::{MAX_OBJECT_BYTES, OBJECT_HEAD_BYTES, ObjectFault, ObjectHead};
use crate::{FormatError, Holder, ObjectName, PoolId, Term, crc32c};

const POOL: PoolId = PoolId([7; 16]);
const NAME: ObjectName = ObjectName::Term(Term(5));

fn holder(name: &str) -> Holder {
    Holder { host: [1; 16], name: name.into(), session: [2; 16] }
}

fn head() -> ObjectHead {
    ObjectHead { pool: POOL, term: Term(5), holder: holder("pond"), name: NAME, length: 4096, payload_checksum: 0 }
}

/// Encodes a head whose bytes `change` changes, with the checksum that belongs to them.
fn with(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = head().encode().to_vec();
    change(&mut bytes);
    let sum = crc32c(&bytes[..4092]);
    bytes[4092..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn what_is_written_is_read_and_a_long_host_name_is_cut() {
    assert_eq!(ObjectHead::decode(&head().encode()), Ok(head()));
    let long = ObjectHead { holder: holder(&"ä".repeat(200)), ..head() };
    assert_eq!(ObjectHead::decode(&long.encode()).map(|head| head.holder.name), Ok("ä".repeat(127)));
    let longest = ObjectName::Pin(crate::ObjectId([255; 16]), PoolId([255; 16]));
    let pin = ObjectHead { name: longest, length: MAX_OBJECT_BYTES, ..head() };
    assert_eq!(ObjectHead::decode(&pin.encode()), Ok(pin));
}

#[test]
fn damage_of_each_field_is_found_by_the_checksum() {
    let whole = head().encode();
    for at in 8..OBJECT_HEAD_BYTES {
        let mut bytes = whole;
        bytes[at] ^= 0x40;
        assert_eq!(ObjectHead::decode(&bytes), Err(FormatError::Checksum), "byte {at}");
    }
    let mut other = whole;
    other[0] = b'X';
    assert_eq!(ObjectHead::decode(&other), Err(FormatError::Magic));
    assert_eq!(ObjectHead::decode(&whole[..4095]), Err(FormatError::Truncated));
    assert_eq!(ObjectHead::decode(&[]), Err(FormatError::Truncated));
}

#[test]
fn fields_out_of_range_are_refused_with_a_right_checksum() {
    const LENGTH: usize = 8 + 2 + 16 + 4 + 16 + 16;
    const NAME_AT: usize = LENGTH + 8 + 4;
    assert_eq!(ObjectHead::decode(&with(|_| {})), Ok(head()));
    let refused = |field| Err(FormatError::Field(field));
    assert_eq!(ObjectHead::decode(&with(|b| b[8] = 2)), Err(FormatError::Version(2)));
    assert_eq!(ObjectHead::decode(&with(|b| b[LENGTH..LENGTH + 8].fill(0))), refused("length"));
    assert_eq!(ObjectHead::decode(&with(|b| b[LENGTH + 4] = 1)), refused("length"));
    assert_eq!(ObjectHead::decode(&with(|b| b[NAME_AT + 2] = b'T')), refused("object name"));
    assert_eq!(ObjectHead::decode(&with(|b| b[NAME_AT] = 200)), refused("object name"));
    assert_eq!(ObjectHead::decode(&with(|b| b[NAME_AT + 1] = 255)), Err(FormatError::Truncated));
    let host_name = NAME_AT + 2 + NAME.to_string().len();
    assert_eq!(ObjectHead::decode(&with(|b| b[host_name + 1] = 1)), refused("host name"));
    assert_eq!(ObjectHead::decode(&with(|b| b[26] = 6)), refused("term"));
}

#[test]
fn an_object_of_another_name_pool_or_length_is_not_taken() {
    let object = ObjectHead::seal(POOL, Term(5), holder("pond"), NAME, b"content");
    let (head, payload) = ObjectHead::expect_whole(&object, POOL, NAME).expect("whole");
    assert_eq!((head.length, payload), (4096 + 7, &b"content"[..]));
    let fault = |bytes: &[u8], pool, name| ObjectHead::expect_whole(bytes, pool, name).map(|_| ()).expect_err("a fault");
    assert_eq!(fault(&object, PoolId([8; 16]), NAME), ObjectFault::Pool(POOL));
    assert_eq!(fault(&object, POOL, ObjectName::Term(Term(6))), ObjectFault::Name(NAME));
    assert_eq!(fault(&object[..4100], POOL, NAME), ObjectFault::Length { found: 4100, expected: 4103 });
    assert_eq!(fault(&object[..100], POOL, NAME), ObjectFault::Head(FormatError::Truncated));
    let mut rotten = object.clone();
    rotten[4098] ^= 1;
    assert_eq!(fault(&rotten, POOL, NAME), ObjectFault::Payload);
    // the head alone has the name, and the length that the store gives is compared with it
    assert!(ObjectHead::expect(&object[..4096], POOL, NAME, Some(4103)).is_ok());
    assert!(ObjectHead::expect(&object[..4096], POOL, NAME, Some(4102)).is_err());
}
