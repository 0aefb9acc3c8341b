//! The decision, case by case.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
const RULES: ImportRules = ImportRules { wait: LIMIT, planted: None };

fn remembered(generation: u64, current: &[(u16, u64)]) -> LabelsInForce {
    LabelsInForce { generation, current: current.iter().map(|(member, device)| (*member, DeviceId(*device))).collect() }
}

/// Devices 10 and 11 are members 0 and 1 of a mirror.
fn found(generation: u64, newest_on: &[u64], devices: &[u64], missing: &[u16], down: &[u16]) -> Evidence {
    Evidence {
        generation,
        newest_on: newest_on.iter().copied().map(DeviceId).collect(),
        current: newest_on.iter().map(|device| (u16::try_from(device - 10).expect("few"), DeviceId(*device))).collect(),
        present: newest_on.iter().copied().map(DeviceId).collect(),
        devices: devices.iter().copied().map(DeviceId).collect(),
        missing: missing.to_vec(),
        down: down.to_vec(),
        other_host: None,
    }
}

#[test]
fn what_is_whole_is_imported_at_once() {
    let both = found(4, &[10, 11], &[10, 11], &[], &[]);
    for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)])), Some(remembered(3, &[(0, 10)]))] {
        assert_eq!(RULES.decide(memory.as_ref(), Some(&both), Duration::ZERO), Decision::Import, "{memory:?}");
    }
    // when none of them was in service here another host has to have been at it
    let others = Some(remembered(4, &[(0, 77)]));
    assert!(matches!(RULES.decide(others.as_ref(), Some(&both), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
    let elsewhere = Evidence { other_host: Some("bert".to_owned()), ..both };
    assert_eq!(RULES.decide(others.as_ref(), Some(&elsewhere), Duration::ZERO), Decision::Import);
    // the daemon was killed while a device was added, whose label is written first
    let (alone, replaced) = (remembered(1, &[(0, 10)]), found(2, &[11], &[10, 11], &[], &[]));
    let added = Evidence { present: vec![DeviceId(10), DeviceId(11)], ..replaced.clone() };
    assert_eq!(RULES.decide(Some(&alone), Some(&added), Duration::ZERO), Decision::Import);
    // a newer label that has another device in the place of the one that was in service here is of another history, all devices there or not
    assert!(matches!(RULES.decide(Some(&alone), Some(&replaced), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
    let without = found(2, &[11], &[11], &[0], &[]);
    assert!(matches!(RULES.decide(Some(&alone), Some(&without), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
    // one that was given up in service is known to be missing
    let rest = found(5, &[11], &[11], &[], &[0]);
    assert_eq!(RULES.decide(Some(&remembered(5, &[(1, 11)])), Some(&rest), Duration::ZERO), Decision::Import);
}

#[test]
fn missing_devices_are_waited_for_and_then_done_without() {
    let half = found(4, &[11], &[11], &[0], &[]);
    for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)]))] {
        let at = |seconds| RULES.decide(memory.as_ref(), Some(&half), Duration::from_secs(seconds));
        assert_eq!(at(0), Decision::WaitUntil(LIMIT));
        assert_eq!(at(29), Decision::WaitUntil(LIMIT));
        assert_eq!(at(30), Decision::ImportDegraded { without: vec![0] });
    }
    assert_eq!(RULES.decide(None, None, LIMIT), Decision::Refuse(Refusal::NothingFound));
}

#[test]
fn an_older_half_is_refused_for_ever_and_the_missing_device_is_wanted() {
    let memory = remembered(5, &[(1, 11)]);
    let stale = found(4, &[10], &[10], &[1], &[]);
    let Decision::Refuse(refusal) = RULES.decide(Some(&memory), Some(&stale), LIMIT * 100) else { panic!("it was imported") };
    assert_eq!(refusal, Refusal::Older { found: 4, remembered: memory.generation, wanted: vec![1] });
    // devices put back as a whole to an older state are no better
    let older = found(3, &[10, 11], &[10, 11], &[], &[]);
    let decision = RULES.decide(Some(&memory), Some(&older), LIMIT);
    assert_eq!(decision, Decision::Refuse(Refusal::Older { found: 3, remembered: 5, wanted: vec![] }));
}

#[test]
fn a_half_with_a_history_of_its_own_is_refused_however_new_its_label_is() {
    let memory = remembered(5, &[(0, 10)]);
    for generation in [5, 9] {
        let other = found(generation, &[11], &[11], &[], &[0]);
        let decision = RULES.decide(Some(&memory), Some(&other), LIMIT);
        assert_eq!(decision, Decision::Refuse(Refusal::NotCurrent { remembered: memory.generation, wanted: vec![0] }));
    }
    // the same device with the one that is remembered beside it
    let both = found(9, &[10, 11], &[10, 11], &[], &[]);
    assert_eq!(RULES.decide(Some(&memory), Some(&both), Duration::ZERO), Decision::Import);
}

#[test]
fn what_another_host_had_is_not_done_without() {
    let half = Evidence { other_host: Some("bert".to_owned()), ..found(4, &[11], &[11], &[0], &[]) };
    let memory = remembered(4, &[(0, 10), (1, 11)]);
    let decision = RULES.decide(Some(&memory), Some(&half), LIMIT);
    assert_eq!(decision, Decision::Refuse(Refusal::OtherHost { name: "bert".to_owned(), missing: vec![0] }));
    // whole, it is as good as ever
    let both = Evidence { other_host: Some("bert".to_owned()), ..found(4, &[10, 11], &[10, 11], &[], &[]) };
    assert_eq!(RULES.decide(Some(&memory), Some(&both), Duration::ZERO), Decision::Import);
}

#[test]
fn who_is_not_current_any_more_is_remembered_before_labels_change() {
    let both = remembered(4, &[(0, 10), (1, 11)]);
    let half = found(4, &[11], &[11], &[0], &[]);
    assert_eq!(RULES.distrust(Some(&both), &half), Some(remembered(4, &[(1, 11)])));
    let newer = found(5, &[11], &[10, 11], &[], &[]);
    // not the generation: a label that a killed daemon wrote may be gone after a power cut
    assert_eq!(RULES.distrust(Some(&both), &newer), Some(remembered(4, &[(1, 11)])));
    // from then on the other half alone is refused, and both are taken
    let (other, whole) = (found(4, &[10], &[10], &[1], &[]), found(4, &[10, 11], &[10, 11], &[], &[]));
    let memory = Some(remembered(4, &[(1, 11)]));
    assert!(matches!(RULES.decide(memory.as_ref(), Some(&other), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
    assert_eq!(RULES.decide(memory.as_ref(), Some(&whole), LIMIT), Decision::Import);
    assert_eq!(RULES.distrust(Some(&both), &whole), None);
    assert_eq!(RULES.distrust(None, &half), None);
    // replaced elsewhere, all of them
    let (others, elsewhere) = (remembered(3, &[(0, 77)]), Evidence { other_host: Some("bert".to_owned()), ..whole });
    assert_eq!(RULES.distrust(Some(&others), &elsewhere), Some(remembered(3, &[(0, 10), (1, 11)])));
}
