//! Events of one object, under its names.

use super::*;

fn event(number: u64, kind: EventKind, subject: &str) -> Event {
    let json = serde_json::json!({ "number": number, "time": "2027-01-31T00:00:00Z", "event": kind, "subject": subject, "pool": "tank" });
    serde_json::from_value(json).expect("an event")
}

fn numbers(name: &str, events: &[Event]) -> Vec<u64> {
    of(name, events.to_vec()).iter().map(|event| event.number).collect()
}

#[test]
fn a_history_follows_names() {
    let events = [
        event(1, EventKind::PoolCreated, "tank"),
        event(2, EventKind::VolumeCreated, "tank/old"),
        event(3, EventKind::VolumeCreated, "tank/vm"),
        event(4, EventKind::SnapshotCreated, "tank/old@a"),
        event(5, EventKind::Destroyed, "tank/vm"),
        event(6, EventKind::Renamed, "tank/old tank/vm"),
        event(7, EventKind::ExportCreated, "3 tank/vm"),
        event(8, EventKind::Renamed, "tank/vm@a tank/vm@b"),
        event(9, EventKind::VolumeCreated, "tank/old"),
        event(10, EventKind::VolumeCreated, "tank/vm2"),
        event(11, EventKind::SnapshotExpired, "tank/vm@b"),
    ];
    assert_eq!(numbers("tank/vm", &events), [2, 4, 6, 7, 8, 11], "neither the destroyed volume of this name nor the later 'old'");
    assert_eq!(numbers("tank/vm@b", &events), [4, 6, 8, 11]);
    assert_eq!(numbers("tank/vm2", &events), [10]);
    assert_eq!(numbers("tank", &events), (1..=11).collect::<Vec<_>>());
    assert!(numbers("pond", &events).is_empty());
}
