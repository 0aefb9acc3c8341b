//! Content, order and refusals of the plan of a destroy.

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, HoldInfo, SnapshotId, SnapshotInfo, Time, VolumeId, VolumeInfo, VolumeOptions};

use super::plan::Catalog;

fn volume(id: u32, name: &str, origin: Option<&str>) -> VolumeInfo {
    VolumeInfo {
        id: VolumeId(id),
        name: name.to_owned(),
        size: 4096,
        sector: SectorProfile::S512e,
        cache: CacheMode::Writeback,
        compression: Compression::Off,
        read_only: false,
        read_cache: millpond_engine::ReadCacheUse::default(),
        options: VolumeOptions::default(),
        referenced_bytes: 0,
        unique_bytes: 1000,
        snapshots: 0,
        origin: origin.map(str::to_owned),
        created: Time(0),
        base: None,
    }
}

fn snapshot(id: u64, volume: u32, name: &str, holds: u32) -> SnapshotInfo {
    SnapshotInfo {
        id: SnapshotId(id),
        volume: VolumeId(volume),
        name: name.to_owned(),
        created: Time(0),
        epoch: id,
        referenced_bytes: 0,
        unique_bytes: 10,
        holds,
        hold_list: (0..holds).map(|n| HoldInfo { tag: Some(format!("tag{n}")), since: None, until: None, locked: false }).collect(),
        clones: 0,
        description: String::new(),
        expires: None,
        size: 4096,
    }
}

/// `v` with snapshots a, b (held), c; clone `w` of v@c with snapshot x; clone `y` of w@x.
fn catalog() -> Catalog {
    Catalog::new(
        "p",
        vec![volume(1, "v", None), volume(2, "w", Some("v@c")), volume(3, "y", Some("w@x"))],
        vec![snapshot(1, 1, "a", 0), snapshot(2, 1, "b", 1), snapshot(3, 1, "c", 0), snapshot(4, 2, "x", 0)],
    )
}

/// Returns the plan for names, separated by blanks.
fn plan(names: &str, with_snapshots: bool, with_clones: bool) -> Result<Vec<String>, String> {
    let catalog = catalog();
    let doomed: Vec<_> = names.split(' ').map(|name| (name, name.parse().expect(name))).collect();
    let plan = catalog.plan(&doomed, with_snapshots, with_clones).map_err(|e| e.to_string())?;
    Ok(plan.targets(&catalog).into_iter().map(|target| catalog.name_of(target)).collect())
}

#[test]
fn a_plain_snapshot_goes_alone() {
    assert_eq!(plan("p/v@a", false, false), Ok(vec!["p/v@a".to_owned()]));
}

#[test]
fn holds_clones_and_snapshots_refuse_and_say_what_to_add() {
    assert!(plan("p/v@b", false, false).expect_err("held").contains("millpond release p/v@b --tag tag0"));
    assert!(plan("p/v@c", false, false).expect_err("cloned").contains("(w)"));
    assert!(plan("p/v", false, false).expect_err("snapshots").contains("-r"));
    assert!(plan("p/v", true, false).is_err());
    assert!(plan("p/v@a%c", false, false).is_err());
}

#[test]
fn clones_go_before_what_they_stand_on() {
    assert_eq!(plan("p/v@c", true, true).map(|names| names.join(" ")), Ok("p/y p/w@x p/w p/v@c".to_owned()));
}

#[test]
fn what_is_held_never_goes_and_says_who_holds_it() {
    for names in ["p/v@b", "p/v", "p/v@a%b", "p/v@%", "p/v@a p/v@b", "p/y p/v@b"] {
        let refusal = plan(names, true, true).expect_err(names);
        assert!(refusal.contains("'p/v@b' (tag tag0)") && refusal.contains("-R does not override"), "{names}: {refusal}");
    }
}

#[test]
fn several_names_are_one_plan() {
    let joined = |names: &str| plan(names, false, false).map(|names| names.join(" "));
    assert_eq!(joined("p/v@c p/v@a p/v@a"), Err("'v@c' has clones (w); add -R to destroy them with it".to_owned()));
    // a clone that is named goes first, and needs no -R
    assert_eq!(joined("p/w@x p/y"), Ok("p/y p/w@x".to_owned()));
    assert_eq!(plan("p/v@c p/v@a p/w p/y", true, false).map(|names| names.join(" ")), Ok("p/y p/w@x p/w p/v@a p/v@c".to_owned()));
    // a snapshot that goes with its volume is listed once
    assert_eq!(plan("p/w@x p/w p/y", true, false).map(|names| names.join(" ")), Ok("p/y p/w@x p/w".to_owned()));
    assert!(joined("p/v@a p/v@z").expect_err("unknown").contains("v@z"));
}

#[test]
fn ranges_include_both_ends() {
    assert_eq!(plan("p/v@c%c", true, true).map(|names| names.join(" ")), Ok("p/y p/w@x p/w p/v@c".to_owned()));
    assert_eq!(plan("p/v@%a", false, false).map(|names| names.join(" ")), Ok("p/v@a".to_owned()));
    assert_eq!(plan("p/w@%", true, true).map(|names| names.join(" ")), Ok("p/y p/w@x".to_owned()));
    assert_eq!(plan("p/y@%", false, false), Ok(Vec::new()));
    assert!(plan("p/v@b%a", true, true).expect_err("reversed").contains("older"));
    assert!(plan("p/v@a%z", true, true).expect_err("unknown").contains("v@z"));
}

#[test]
fn freed_bytes_are_exact_for_one_snapshot_and_for_whole_volumes() {
    let catalog = catalog();
    let frees = |name: &str| catalog.plan(&[(name, name.parse().expect(name))], true, true).expect(name).frees(&catalog);
    assert_eq!(frees("p/v@a"), (10, true));
    assert_eq!(frees("p/w@x%x"), (1010, false));
    assert_eq!(frees("p/y"), (1000, true));
    assert_eq!(frees("p/w"), (2000, true));
    assert_eq!(frees("p/v@c"), (2010, false));
    assert_eq!(frees("p/y@%"), (0, true));
}
