//! Snapshots that are sent, continued, refused and thinned, for lists of both ends.

use millpond_api::Snapshot;
use millpond_api::identity::{FAILOVER_MARK, Receiving, SnapshotIdentity};
use millpond_api::instant::from_millis;

use super::*;
use crate::policy::tests::record;

const HERE: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";
const OTHER: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

fn terms() -> Terms {
    Terms::of(&record("auto-{time}")).expect("terms")
}

fn identity(pool: &str, id: u64) -> SnapshotIdentity {
    SnapshotIdentity::new(pool, id, id, 1000 * id)
}

/// Snapshot `id` of the source; the policy took it.
fn own(id: u64) -> Snapshot {
    named("tank/v", id, &format!("auto-20260101T0000{id:02}Z"), "policy p")
}

fn named(of: &str, id: u64, name: &str, description: &str) -> Snapshot {
    Snapshot {
        name: format!("{of}@{name}"),
        id,
        created: from_millis(1000 * id),
        epoch: id,
        size: 4096,
        referenced_bytes: 0,
        unique_bytes: 0,
        holds: 0,
        hold_tags: Vec::new(),
        hold_list: Vec::new(),
        clones: 0,
        description: description.to_owned(),
        expires: None,
        identity: Some(identity(HERE, id)),
        received: false,
        receiving: None,
    }
}

/// The same at the target, in volume `of`.
fn received(of: &str, snapshot: &Snapshot) -> Snapshot {
    Snapshot { name: format!("{of}@{}", part(snapshot)), id: 100 + snapshot.id, received: true, ..snapshot.clone() }
}

fn there(ids: &[u64]) -> Vec<Snapshot> {
    ids.iter().map(|id| received("copy/v", &own(*id))).collect()
}

fn here(ids: &[u64]) -> Vec<Snapshot> {
    ids.iter().map(|id| own(*id)).collect()
}

/// The mark of an incomplete receive.
fn mark(of: &str, pool: &str, id: u64, base: Option<u64>) -> Snapshot {
    let receiving = Receiving { identity: identity(pool, id), position: 4096, base: base.map(|base| identity(HERE, base)) };
    Snapshot { identity: None, receiving: Some(receiving), ..named(of, 200, "receiving", "") }
}

fn step(source: Vec<Snapshot>, target: Vec<Snapshot>) -> Result<Step, String> {
    Ends::new(source, "copy/v", target).step(&terms())
}

/// Range and token of a send.
fn sent(source: Vec<Snapshot>, target: Vec<Snapshot>) -> (String, Option<String>) {
    match step(source, target).expect("a step") {
        Step::Send { range, resume, .. } => (range, resume.map(|token| token.to_string())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_range_begins_at_the_newest_common_snapshot_and_ends_at_the_newest_of_the_policy() {
    assert_eq!(sent(here(&[1, 2]), Vec::new()), ("@%auto-20260101T000002Z".to_owned(), None));
    assert_eq!(sent(here(&[1, 2, 4]), there(&[1, 2])), ("@auto-20260101T000002Z%auto-20260101T000004Z".to_owned(), None));
    // what the source has thinned does not count, and names do not either
    let mut renamed = there(&[1, 2, 3]);
    renamed[1].name = "copy/v@kept".to_owned();
    assert_eq!(sent(here(&[2, 4]), renamed).0, "@auto-20260101T000002Z%auto-20260101T000004Z");
    // snapshots of others are sent when they lie between, and are no reason to send
    let manual = named("tank/v", 5, "before-upgrade", "");
    assert_eq!(step([here(&[2]), vec![manual.clone()]].concat(), there(&[2])), Ok(Step::Nothing));
    assert_eq!(sent([here(&[2]), vec![manual], here(&[6])].concat(), there(&[2])).0, "@auto-20260101T000002Z%auto-20260101T000006Z");
    assert_eq!(step(here(&[1, 2]), there(&[2])), Ok(Step::Nothing));
    assert_eq!(step(Vec::new(), Vec::new()), Ok(Step::Nothing));
    // other volumes whose names end the same
    let neighbour: Vec<Snapshot> = here(&[2]).iter().map(|snapshot| received("copy/xv", snapshot)).collect();
    assert_eq!(sent(here(&[2]), neighbour).0, "@%auto-20260101T000002Z");
}

#[test]
fn an_interrupted_receive_continues_or_is_given_up() {
    let source = || here(&[1, 2, 3, 4]);
    let with = |mark: Snapshot| [there(&[1]), vec![mark]].concat();
    let token = identity(HERE, 2).to_string() + ":4096";
    assert_eq!(sent(source(), with(mark("copy/v", HERE, 2, Some(1)))).1, Some(token));
    // a later one of the range, on the one before it
    assert!(sent(source(), [there(&[1, 2]), vec![mark("copy/v", HERE, 3, Some(2))]].concat()).1.is_some());
    // a new volume
    let (range, token) = sent(source(), vec![mark("copy/receiving-v", HERE, 1, None)]);
    assert_eq!((range.as_str(), token), ("@%auto-20260101T000004Z", Some(identity(HERE, 1).to_string() + ":4096")));
    // its snapshot is gone, or builds on another one than the stream would
    assert_eq!(step(here(&[1, 3, 4]), with(mark("copy/v", HERE, 2, Some(1)))), Ok(Step::Abandon));
    assert_eq!(step(source(), with(mark("copy/v", HERE, 3, Some(1)))), Ok(Step::Abandon));
    assert_eq!(step(here(&[2]), vec![mark("copy/receiving-v", HERE, 1, None)]), Ok(Step::Abandon));
    // somebody else's is left alone
    let refused = step(source(), with(mark("copy/v", OTHER, 9, Some(1)))).expect_err("another pool's");
    assert!(refused.contains("of another pool"), "{refused}");
}

#[test]
fn nothing_is_sent_where_the_work_goes_on() {
    let failover = Snapshot { identity: Some(identity(OTHER, 7)), ..named("copy/v", 107, "failover-x", FAILOVER_MARK) };
    let over = [there(&[1]), vec![failover.clone()]].concat();
    let refused = step(here(&[1, 2]), over.clone()).expect_err("failed over");
    assert!(refused.contains("failed over there ('copy/v@failover-x')"), "{refused}");
    assert_eq!(step(here(&[1]), over).ok(), None, "also when there is nothing to send");
    // brought back, it is common
    let back = Snapshot { received: true, ..named("tank/v", 3, "failover-x", FAILOVER_MARK) };
    let back = Snapshot { identity: failover.identity.clone(), ..back };
    assert_eq!(
        sent([here(&[1]), vec![back], here(&[4])].concat(), [there(&[1]), vec![failover]].concat()).0,
        "@failover-x%auto-20260101T000004Z"
    );
}

#[test]
fn the_target_loses_only_what_the_policy_made_and_the_source_no_longer_has() {
    let superfluous = |source: Vec<Snapshot>, target: Vec<Snapshot>| Ends::new(source, "copy/v", target).superfluous(&terms());
    assert_eq!(superfluous(here(&[3, 4]), there(&[1, 2, 3])), ["copy/v@auto-20260101T000001Z", "copy/v@auto-20260101T000002Z"]);
    assert_eq!(superfluous(here(&[1, 3]), there(&[1, 2, 3])), ["copy/v@auto-20260101T000002Z"]);
    // nothing is common: nothing is known
    assert_eq!(superfluous(here(&[9]), there(&[1, 2, 3])), Vec::<String>::new());
    // newer than the newest common one: the source went back to an older state
    assert_eq!(superfluous(here(&[1]), there(&[1, 2, 3])), Vec::<String>::new());
    let change = |change: fn(&mut Snapshot)| {
        let mut target = there(&[1, 2]);
        change(&mut target[0]);
        superfluous(here(&[2]), target)
    };
    assert_eq!(change(|_| ()).len(), 1);
    assert!(change(|one| one.holds = 1).is_empty());
    assert!(change(|one| one.clones = 1).is_empty());
    assert!(change(|one| one.received = false).is_empty());
    assert!(change(|one| one.description = "mine".to_owned()).is_empty());
    assert!(change(|one| one.name = "copy/v@renamed".to_owned()).is_empty());
}
