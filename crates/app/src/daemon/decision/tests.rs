//! The decision, case by case.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn remembered(generation: u64, current: &[(u16, u64)]) -> InForce {
    InForce { generation, current: current.iter().copied().collect(), since: Timestamp::UNIX_EPOCH }
}

/// Devices 10 and 11 are members 0 and 1 of a mirror.
fn found(generation: u64, newest_on: &[u64], devices: &[u64], missing: &[u16], down: &[u16]) -> Evidence {
    Evidence {
        generation,
        newest_on: newest_on.to_vec(),
        devices: devices.to_vec(),
        missing: missing.to_vec(),
        down: down.to_vec(),
        other_host: None,
    }
}

fn record() -> PoolRecord {
    let text = r#"{"name": "tank", "id": "00", "devices": ["/a", "/b"]}"#;
    serde_json::from_str(text).expect("a record of an older daemon")
}

#[test]
fn what_is_whole_is_imported_at_once() {
    let both = found(4, &[10, 11], &[10, 11], &[], &[]);
    for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)])), Some(remembered(3, &[(0, 10)])), Some(remembered(4, &[(0, 77)]))] {
        assert_eq!(decide(memory.as_ref(), Some(&both), Duration::ZERO, LIMIT), Decision::Import, "{memory:?}");
    }
    // one that was given up in service is known to be missing
    let rest = found(5, &[11], &[11], &[], &[0]);
    assert_eq!(decide(Some(&remembered(5, &[(1, 11)])), Some(&rest), Duration::ZERO, LIMIT), Decision::Import);
}

#[test]
fn missing_devices_are_waited_for_and_then_done_without() {
    let half = found(4, &[11], &[11], &[0], &[]);
    for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)]))] {
        let at = |seconds| decide(memory.as_ref(), Some(&half), Duration::from_secs(seconds), LIMIT);
        assert_eq!(at(0), Decision::WaitUntil(LIMIT));
        assert_eq!(at(29), Decision::WaitUntil(LIMIT));
        assert_eq!(at(30), Decision::ImportDegraded { without: vec![0] });
    }
    assert_eq!(decide(None, None, LIMIT, LIMIT), Decision::Refuse(Refusal::NothingFound));
}

#[test]
fn an_older_half_is_refused_for_ever_and_the_missing_device_is_named() {
    let memory = remembered(5, &[(1, 11)]);
    let stale = found(4, &[10], &[10], &[1], &[]);
    let Decision::Refuse(refusal) = decide(Some(&memory), Some(&stale), LIMIT * 100, LIMIT) else { panic!("it was imported") };
    assert_eq!(refusal, Refusal::Older { found: 4, remembered: memory.clone(), wanted: vec![1] });
    let told = refusal.told(&record());
    assert!(told.contains("device 1 (/b)") && told.contains("pool import tank --degraded") && told.contains("1970-01-01"), "{told}");
    // devices put back as a whole to an older state are no better
    let older = found(3, &[10, 11], &[10, 11], &[], &[]);
    let Decision::Refuse(refusal) = decide(Some(&memory), Some(&older), LIMIT, LIMIT) else { panic!("it was imported") };
    assert!(refusal.told(&record()).contains("bring back the devices in that state"));
}

#[test]
fn a_half_with_a_history_of_its_own_is_refused_however_new_its_label_is() {
    let memory = remembered(5, &[(0, 10)]);
    for generation in [5, 9] {
        let other = found(generation, &[11], &[11], &[], &[0]);
        let decision = decide(Some(&memory), Some(&other), LIMIT, LIMIT);
        assert_eq!(decision, Decision::Refuse(Refusal::NotCurrent { remembered: memory.clone(), wanted: vec![0] }));
    }
    // the same device with the one that is remembered beside it
    let both = found(9, &[10, 11], &[10, 11], &[], &[]);
    assert_eq!(decide(Some(&memory), Some(&both), Duration::ZERO, LIMIT), Decision::Import);
}

#[test]
fn what_another_host_had_is_not_done_without() {
    let half = Evidence { other_host: Some("bert".to_owned()), ..found(4, &[11], &[11], &[0], &[]) };
    let memory = remembered(4, &[(0, 10), (1, 11)]);
    let Decision::Refuse(refusal) = decide(Some(&memory), Some(&half), LIMIT, LIMIT) else { panic!("it was imported") };
    let told = refusal.told(&record());
    assert!(told.contains("'bert'") && told.contains("device 0 (/a)"), "{told}");
    // whole, it is as good as ever
    let both = Evidence { other_host: Some("bert".to_owned()), ..found(4, &[10, 11], &[10, 11], &[], &[]) };
    assert_eq!(decide(Some(&memory), Some(&both), Duration::ZERO, LIMIT), Decision::Import);
}
