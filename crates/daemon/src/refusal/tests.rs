//! Messages of refusals.

use std::time::Duration;

use millpond_block::MemberId;
use millpond_engine::{Decision, DeviceId, Evidence, ImportRules, LabelsInForce};

use super::*;

fn record() -> PoolRecord {
    let text = r#"{"name": "tank", "id": "00", "devices": ["/a", "/b"],
                   "in_force": {"generation": 5, "current": {"1": 11}, "since": "1970-01-01T00:00:00Z"}}"#;
    serde_json::from_str(text).expect("a record")
}

/// Returns the message about devices that are refused.
fn message_about(record: &PoolRecord, found: &Evidence) -> String {
    match ImportRules::default().decide(record.remembered().as_ref(), Some(found), Duration::ZERO) {
        Decision::Refuse(refusal) => {
            let foreign = ("/c".into(), FormatError::Version(9));
            describe(&refusal, record, &[vec!["/a".into()], vec!["/b".into()]], &[foreign])
        }
        decision => panic!("{decision:?}"),
    }
}

fn found(generation: u64, devices: &[u64], missing: &[u16]) -> Evidence {
    let devices: Vec<DeviceId> = devices.iter().copied().map(DeviceId).collect();
    Evidence {
        generation,
        newest_on: devices.clone(),
        current: (0..).map(MemberId).zip(devices.iter().copied()).collect(),
        held: devices.iter().map(|device| (*device, generation)).collect(),
        taking: Vec::new(),
        present: devices.clone(),
        known: devices.clone(),
        apart: false,
        foreign: None,
        devices,
        missing: missing.iter().copied().map(MemberId).collect(),
        down: Vec::new(),
        other_host: None,
        taker: None,
    }
}

#[test]
fn the_missing_device_is_named_and_the_way_out() {
    let words = message_about(&record(), &found(4, &[10], &[1]));
    assert!(
        words.contains("device 1 (was /b)") && words.contains("pool import tank --degraded") && words.contains("1970-01-01"),
        "{words}"
    );
    let words = message_about(&record(), &found(3, &[10, 11], &[]));
    assert!(words.contains("bring back the devices in that state"), "{words}");
}

#[test]
fn where_nothing_is_missing_both_states_are_offered() {
    // device 0 has a newer label that lists device 1, which is there, as given up
    let both = Evidence { present: vec![DeviceId(10)], ..found(6, &[10], &[]) };
    let words = message_about(&record(), &Evidence { devices: vec![DeviceId(10), DeviceId(11)], ..both });
    assert!(words.contains("are all there: device 1 (was /b)"), "{words}");
    assert!(words.contains("replace the rest"), "{words}");
    assert!(words.contains("'millpond pool import tank --degraded' and '-d DEVICE'") && !words.contains("bring back"), "{words}");
}

#[test]
fn the_other_host_is_named() {
    let half = Evidence { other_host: Some("bert".to_owned()), ..found(5, &[11], &[0]) };
    let words = message_about(&record(), &half);
    assert!(words.contains("'bert'") && words.contains("device 0 (was /a)"), "{words}");
}

#[test]
fn a_device_of_a_later_version_is_named() {
    let words = message_about(&record(), &Evidence { foreign: Some(FormatError::Version(9)), ..found(5, &[10, 11], &[]) });
    assert!(words.contains("/c has a label of a newer version") && words.contains("install that version"), "{words}");
}

#[test]
fn what_is_remembered_is_what_was_in_force() {
    let labels = LabelsInForce { generation: 5, current: vec![(MemberId(1), DeviceId(11))], left_behind: false };
    assert_eq!(record().remembered(), Some(labels));
}

#[test]
fn devices_that_contradict_each_other_are_named_by_side() {
    let words = message_about(&record(), &Evidence { apart: true, ..found(5, &[10, 11], &[]) });
    assert!(words.contains("(/a against /b)") && words.contains("'millpond pool import tank --degraded' and '-d DEVICE'"), "{words}");
}
