use millpond_format::{Derivation, WrapKind};

use super::*;

const POOL: PoolId = PoolId([7; 16]);

fn wrap(key: u64, number: u8) -> KeyWrap {
    KeyWrap {
        key: KeyId(key),
        number,
        kind: WrapKind::KeyFile,
        derivation: Derivation::HkdfSha256,
        salt: [number; 16],
        nonce: [2; 12],
        domain: [3; 8],
        wrapped: [4; 48],
    }
}

fn keys() -> Keys {
    Keys { pages: empty_pages(POOL).map(Some).collect(), ..Keys::default() }
}

/// Carries out a command at once.
fn change(keys: &mut Keys, command: &KeyCommand) -> Result<(), CommandError> {
    let page = keys.changed(command)?;
    keys.written(KeyWork::Change(Tag(0), page), POOL);
    Ok(())
}

fn put(keys: &mut Keys, wrap: KeyWrap, is_new: bool) -> Result<(), CommandError> {
    change(keys, &KeyCommand::Put { wrap: Box::new(wrap), is_new })
}

fn erase(keys: &mut Keys, key: u64, number: Option<u8>) -> Result<(), CommandError> {
    change(keys, &KeyCommand::Erase { key: KeyId(key), number })
}

fn ids(keys: &Keys) -> Vec<(u64, u8)> {
    keys.listed().wraps.iter().map(|wrap| (wrap.key.0, wrap.number)).collect()
}

fn invalid(why: Invalid) -> Result<(), CommandError> {
    Err(CommandError::Invalid(why))
}

#[test]
fn wraps_of_a_key_are_in_one_page() {
    let mut keys = keys();
    let absent = Err(CommandError::NotFound(Absent::Key));
    put(&mut keys, wrap(9, 1), true).unwrap();
    put(&mut keys, wrap(5, 0), true).unwrap();
    put(&mut keys, wrap(9, 0), false).unwrap();
    assert_eq!((ids(&keys), keys.page(0).unwrap().generation), (vec![(9, 0), (9, 1), (5, 0)], 3));
    assert_eq!(put(&mut keys, wrap(9, 2), true), invalid(Invalid::KeyExists));
    assert_eq!((put(&mut keys, wrap(1, 0), false), erase(&mut keys, 1, None)), (absent.clone(), absent.clone()));
    assert_eq!(put(&mut keys, wrap(0, 0), true), invalid(Invalid::KeyWrap), "this id marks a free place");
    // one takes the place of the other
    let other = KeyWrap { wrapped: [8; 48], ..wrap(9, 1) };
    put(&mut keys, other.clone(), false).unwrap();
    assert_eq!((ids(&keys).len(), &keys.page(0).unwrap().wraps[1]), (3, &other));
    assert_eq!(erase(&mut keys, 9, Some(7)), absent);
    erase(&mut keys, 9, Some(0)).unwrap();
    assert_eq!(erase(&mut keys, 9, Some(1)), invalid(Invalid::LastWrap));
    erase(&mut keys, 9, None).unwrap();
    assert_eq!((ids(&keys), keys.page(0).unwrap().generation), (vec![(5, 0)], 6));
}

#[test]
fn a_full_table_takes_no_more() {
    let mut keys = keys();
    for key in 1..=u64::from(KEY_PAGES) {
        for number in 0..WRAPS_PER_PAGE as u8 {
            put(&mut keys, wrap(key, number), number == 0).unwrap();
        }
    }
    assert_eq!(put(&mut keys, wrap(1000, 0), true), invalid(Invalid::KeyTableFull));
    assert_eq!(put(&mut keys, wrap(5, 200), false), invalid(Invalid::KeyTableFull));
    put(&mut keys, wrap(5, 3), false).unwrap();
    assert_eq!(ids(&keys).len(), millpond_format::MAX_WRAPS);
}

#[test]
fn unknown_pages_are_left_alone() {
    let mut keys = keys();
    put(&mut keys, wrap(9, 0), true).unwrap();
    put(&mut keys, wrap(5, 0), true).unwrap();
    keys.pages[0] = None;
    assert_eq!((ids(&keys), keys.listed().unknown, keys.unknown()), (vec![(5, 0)], vec![0], 1));
    let unknown = Err(CommandError::Busy(Busy::KeysUnknown));
    assert_eq!((put(&mut keys, wrap(9, 1), false), erase(&mut keys, 9, None)), (unknown.clone(), unknown));
    put(&mut keys, wrap(7, 0), true).unwrap();
    assert!(keys.page(0).is_none() && keys.bytes()[..SECTOR_BYTES] == [0; SECTOR_BYTES]);
    assert_eq!((ids(&keys).len(), keys.bytes().len()), (2, TABLE_BYTES));
}

/// Debug output of commands and of the table is in traces of the simulator and of daemons.
#[test]
fn no_wrap_is_shown() {
    let secret = KeyWrap { salt: [0xa1; 16], nonce: [0xa2; 12], wrapped: [0xa3; 48], ..wrap(9, 0) };
    let mut keys = keys();
    put(&mut keys, secret.clone(), true).unwrap();
    keys.changes.push_back((Tag(1), KeyCommand::Put { wrap: Box::new(secret), is_new: true }));
    let shown = format!("{keys:?} {:?}", keys.listed());
    assert!(shown.contains("KeyWrap") && [0xa1, 0xa2, 0xa3].iter().all(|byte: &u8| !shown.contains(&format!("{byte}"))), "{shown}");
}
