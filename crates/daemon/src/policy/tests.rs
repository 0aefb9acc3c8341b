//! Properties of policies: what is accepted, and which snapshots belong to a policy.

use super::*;

pub(in crate::policy) fn record(template: &str) -> PolicyRecord {
    PolicyRecord {
        name: "p".to_owned(),
        keep: "1h:2d".to_owned(),
        group: false,
        at: None,
        zone: "UTC".to_owned(),
        lock: None,
        expire: None,
        prune: None,
        template: template.to_owned(),
        freeze: None,
        freeze_required: false,
        send: None,
        send_since: None,
        volumes: Vec::new(),
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("time")
}

#[test]
fn a_snapshot_belongs_to_its_policy_by_mark_and_time() {
    let terms = Terms::of(&record(TEMPLATE)).expect("terms");
    let time = at("2026-11-26T14:15:03.9Z");
    let name = terms.name_at(time);
    assert_eq!(name, "auto-p-20261126T141503Z");
    for known in [name.as_str(), "auto-p-20261126T141503Z-2", "20261126T141503Z", "renamed.20261126T141503Z"] {
        assert_eq!(terms.time_of(known, "policy p"), Some(at("2026-11-26T14:15:03Z")), "{known}");
    }
    for (other, description) in [
        ("before-upgrade", "policy p"),
        ("auto-p-20261126T1415", "policy p"),
        ("auto-p-20261399T141503Z", "policy p"),
        ("auto-p-20261126T141503Z", ""),
        ("auto-p-20261126T141503Z", "policy q"),
        ("", "policy p"),
    ] {
        assert_eq!(terms.time_of(other, description), None, "{other} ({description})");
    }
}

#[test]
fn templates_locks_and_zones_are_checked() {
    for wrong in ["auto", "{time}-{time}", "a/b-{time}", "", &format!("{}{{time}}", "x".repeat(250))] {
        assert!(Terms::of(&record(wrong)).is_err(), "{wrong}");
    }
    assert!(Terms::of(&PolicyRecord { zone: "Nowhere/Never".to_owned(), ..record(TEMPLATE) }).is_err());
    let seconds = PolicyRecord { keep: "1s:1h".to_owned(), ..record(TEMPLATE) };
    assert!(Terms::of(&PolicyRecord { lock: Some(100_000), ..seconds.clone() }).is_ok());
    assert!(Terms::of(&PolicyRecord { lock: Some(100_001), ..seconds }).is_err());
    for (path, good) in [("/run/{vmid}.qga", true), ("run/{vmid}.qga", false), ("", false), ("/run/a\nb", false)] {
        assert_eq!(Terms::of(&PolicyRecord { freeze: Some(path.to_owned()), ..record(TEMPLATE) }).is_ok(), good, "{path}");
    }
    assert!(Terms::of(&PolicyRecord { lock: Some(7200), expire: Some(3600), ..record(TEMPLATE) }).is_err());
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let attached = Attached { pool_id: "07".repeat(16), volume: 3, name: "tank/v".to_owned(), since: at("2026-01-01T00:00:00Z") };
    let full = PolicyRecord { at: Some("daily".to_owned()), lock: Some(1), volumes: vec![attached], ..record(TEMPLATE) };
    for record in [full, record("{time}")] {
        let text = serde_json::to_string(&record).expect("JSON");
        assert_eq!(serde_json::from_str::<PolicyRecord>(&text).expect("a record"), record);
    }
}
