//! Names find the right device, or none.

use jiff::Timestamp;
use millpond_api::IoMode;
use millpond_block::MemberId;

use super::*;
use crate::state::InForce;

fn named(member: u16, id: &str, path: Option<&str>, was: Option<&str>) -> Named {
    Named {
        member: MemberId(member),
        replacement: false,
        id: id.to_owned(),
        path: path.map(PathBuf::from),
        was: was.map(PathBuf::from),
        serial: None,
    }
}

/// The first disk of a mirror died, and since the restart the second one has its name.
fn renamed() -> DeviceNames {
    DeviceNames(vec![
        named(0, "0a1b2c3d", None, Some("/dev/sdb")),
        named(1, "0a1b9999", Some("/dev/sdb"), None),
        named(2, "77777777", None, Some("/dev/sdd")),
        named(3, "12345678", Some("/dev/sde"), None),
    ])
}

#[test]
fn a_path_of_two_devices_is_neither() {
    let names = renamed();
    let refused = names.find("lo", "/dev/sdb").expect_err("two devices").message;
    for part in ["0a1b2c3d (missing, was at /dev/sdb)", "0a1b9999 (at /dev/sdb now)", "by its ID"] {
        assert!(refused.contains(part), "'{part}' is not in {refused}");
    }
    assert_eq!(names.find("lo", "/dev/sdd"), Ok(Some(MemberId(2))), "where one was that nothing else is at");
    assert_eq!(names.find("lo", "/dev/sde"), Ok(Some(MemberId(3))));
    assert_eq!(names.find("lo", "/dev/sdf"), Ok(None));
}

#[test]
fn ids_their_beginnings_and_serial_numbers_are_names() {
    let names = renamed();
    assert_eq!(names.find("lo", "0a1b2c3d"), Ok(Some(MemberId(0))));
    assert_eq!(names.find("lo", "0A1B9999"), Ok(Some(MemberId(1))));
    assert_eq!(names.find("lo", "0a1b9"), Ok(Some(MemberId(1))));
    assert!(names.find("lo", "0a1b").expect_err("two devices").message.contains("0a1b9999"));
    assert_eq!(names.find("lo", "0a1"), Ok(None), "too short");
    assert_eq!(names.find("lo", "sdd"), Ok(Some(MemberId(2))), "the name of a node");
    // member numbers are shown nowhere, and are no names of devices that are present
    assert_eq!(names.find("lo", "1"), Ok(None));
    let unknown = names.unknown("lo", "1").message;
    assert!(unknown.contains("device 1 is 0a1b9999 (at /dev/sdb now): use that name"), "{unknown}");
    assert!(names.unknown("lo", "9").message.contains("'millpond pool status lo' shows IDs"));
    assert_eq!(names.find("lo", "0"), Ok(Some(MemberId(0))), "a missing one may be called by the number that it had before");
    // a word that is a member number, and also the beginning of an id
    let mut many = DeviceNames(vec![named(1234, "aaaaaaaa", None, Some("/a")), named(5, "12345678", Some("/b"), None)]);
    assert!(many.find("lo", "1234").is_err());
    // partitions of one disk have one serial number
    many.0.iter_mut().for_each(|named| named.serial = Some("WD-1X".to_owned()));
    assert!(many.find("lo", "wd-1x").is_err());
    many.0.truncate(1);
    assert_eq!(many.find("lo", "wd-1x"), Ok(Some(MemberId(1234))));
    assert_eq!(many.find("lo", "00000005"), Ok(None), "eight digits are an id");
}

#[test]
fn a_device_that_is_coming_is_not_a_member_yet() {
    let mut names = renamed();
    names.0.push(Named { replacement: true, ..named(3, "abcdabcd", Some("/dev/sdx"), None) });
    assert!(names.find("lo", "/dev/sdx").expect_err("on its way").message.contains("/dev/sde"));
    assert_eq!(names.find("lo", "/dev/sde"), Ok(Some(MemberId(3))));
}

#[test]
fn a_missing_device_is_never_called_by_the_path_of_another() {
    let names = renamed();
    let words: Vec<String> = names.iter().map(|named| names.word(named)).collect();
    assert_eq!(words, ["0a1b2c3d", "/dev/sdb", "/dev/sdd", "/dev/sde"]);
    let unknown = DeviceNames(vec![named(0, "0a1b2c3d", None, None), named(1, "", None, None)]);
    assert_eq!(
        (unknown.member(MemberId(0)), unknown.member(MemberId(1)), unknown.member(MemberId(2))),
        ("0a1b2c3d".into(), "device 1".into(), "device 2".into())
    );
}

#[test]
fn out_of_service_a_path_is_that_of_the_device_that_was_in_use_last() {
    let current = BTreeMap::from([(1, 7), (3, 9)]);
    let in_force = InForce { generation: 4, current, replacements: BTreeMap::new(), left_behind: false, since: Timestamp::UNIX_EPOCH };
    let paths = ["/dev/sdb", "/dev/sdb", "", "/dev/sde"].map(PathBuf::from).to_vec();
    let record = PoolRecord { in_force: Some(in_force), ..PoolRecord::new("lo".into(), String::new(), paths, IoMode::default()) };
    let names = DeviceNames::remembered(&record);
    let listed: Vec<(u16, Option<&str>, Option<&str>)> =
        names.iter().map(|n| (n.member.0, n.path.as_ref().and_then(|p| p.to_str()), n.was.as_ref().and_then(|p| p.to_str()))).collect();
    assert_eq!(listed, [(0, None, Some("/dev/sdb")), (1, Some("/dev/sdb"), None), (3, Some("/dev/sde"), None)]);
    assert_eq!(names.member(MemberId(1)), "/dev/sdb");
}

#[test]
fn ids_are_eight_digits_and_different() {
    // ids as the engine makes them: generation and member, and the half of the import
    let ids = (0..200u64).map(|member| DeviceId(5 << 48 ^ (1 << 16 | member)));
    let short: Vec<String> = short_ids(ids).into_values().collect();
    assert!(short.iter().all(|id| id.len() == 8), "{short:?}");
    let mut unique = short.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), short.len());
}
