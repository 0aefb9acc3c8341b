//! The decision, case by case.

use millpond_block::MemberId;
use millpond_format::{AREA_BYTES, CLAIM_OFFSET, Claim, Holder, Label, Member, MemberState, PoolId, SECTOR_BYTES, Shape, second_area};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
const RULES: ImportRules = ImportRules { wait: LIMIT, planted: None };

fn remembered(generation: u64, current: &[(u16, u64)]) -> LabelsInForce {
    let current = current.iter().map(|(member, device)| (MemberId(*member), DeviceId(*device))).collect();
    LabelsInForce { generation, current, left_behind: false }
}

/// The same, on a host that did without devices.
fn left_behind(labels: LabelsInForce) -> LabelsInForce {
    LabelsInForce { left_behind: true, ..labels }
}

/// Devices 10 and 11 are members 0 and 1 of a mirror.
fn found(generation: u64, newest_on: &[u64], devices: &[u64], missing: &[u16], down: &[u16]) -> Evidence {
    Evidence {
        generation,
        newest_on: newest_on.iter().copied().map(DeviceId).collect(),
        current: newest_on.iter().map(|device| (MemberId::at((device - 10) as usize), DeviceId(*device))).collect(),
        held: newest_on.iter().map(|device| (DeviceId(*device), generation)).collect(),
        taking: Vec::new(),
        present: newest_on.iter().copied().map(DeviceId).collect(),
        known: newest_on.iter().copied().map(DeviceId).collect(),
        apart: false,
        foreign: None,
        devices: devices.iter().copied().map(DeviceId).collect(),
        missing: missing.iter().copied().map(MemberId).collect(),
        down: down.iter().copied().map(MemberId).collect(),
        other_host: None,
        taker: None,
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
    let both = vec![DeviceId(10), DeviceId(11)];
    let added = Evidence { present: both.clone(), known: both, ..replaced.clone() };
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
        assert_eq!(at(30), Decision::ImportDegraded { without: vec![MemberId(0)] });
    }
    assert_eq!(RULES.decide(None, None, LIMIT), Decision::Refuse(Refusal::NothingFound));
}

#[test]
fn an_older_half_is_refused_for_ever_and_the_missing_device_is_wanted() {
    let memory = remembered(5, &[(1, 11)]);
    let stale = found(4, &[10], &[10], &[1], &[]);
    let Decision::Refuse(refusal) = RULES.decide(Some(&memory), Some(&stale), LIMIT * 100) else { panic!("it was imported") };
    assert_eq!(refusal, Refusal::Older { found: 4, remembered: memory.generation, wanted: vec![MemberId(1)] });
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
        assert_eq!(decision, Decision::Refuse(Refusal::NotCurrent { remembered: memory.generation, wanted: vec![MemberId(0)] }));
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
    assert_eq!(decision, Decision::Refuse(Refusal::OtherHost { name: "bert".to_owned(), missing: vec![MemberId(0)] }));
    // whole, it is as good as ever
    let both = Evidence { other_host: Some("bert".to_owned()), ..found(4, &[10, 11], &[10, 11], &[], &[]) };
    assert_eq!(RULES.decide(Some(&memory), Some(&both), Duration::ZERO), Decision::Import);
}

#[test]
fn what_another_host_began_to_take_is_not_done_without() {
    let half = Evidence { taker: Some("bert".to_owned()), ..found(4, &[11], &[11], &[0], &[]) };
    let memory = remembered(4, &[(0, 10), (1, 11)]);
    let decision = RULES.decide(Some(&memory), Some(&half), LIMIT);
    assert_eq!(decision, Decision::Refuse(Refusal::OtherHost { name: "bert".to_owned(), missing: vec![MemberId(0)] }));
    // whole, it is as good as ever; but that it began is no reason to take what was never in service here
    let both = Evidence { taker: Some("bert".to_owned()), ..found(4, &[10, 11], &[10, 11], &[], &[]) };
    assert_eq!(RULES.decide(Some(&memory), Some(&both), Duration::ZERO), Decision::Import);
    let others = remembered(4, &[(0, 77)]);
    assert!(matches!(RULES.decide(Some(&others), Some(&both), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
}

#[test]
fn a_claim_that_was_begun_is_seen_on_the_device_that_it_was_not_finished_on() {
    let pool = PoolId([7; 16]);
    let claim = |host: u8, term: u64, released: bool| {
        let holder = Holder { host: [host; 16], name: format!("host{host}"), session: [host; 16] };
        Claim { pool, holder, term, heartbeat: 0, time: 0, lease: 1000, released }
    };
    let (before, later) = (claim(1, 5, true), claim(0, 6, false));
    let size = 4 * AREA_BYTES;
    let looked = |member: u16, first: &Claim, second: &Claim| {
        let device = DeviceId(100 + u64::from(member));
        let label = Label {
            pool,
            name: "tank".to_owned(),
            device,
            member: MemberId(member),
            shape: model::shape(2),
            features: millpond_format::FeatureSet::default(),
            feature_names: millpond_format::FeatureNames::default(),
            notes: Vec::new(),
        };
        let read = |offset: u64| {
            let claims = [(CLAIM_OFFSET, first), (size - AREA_BYTES + CLAIM_OFFSET, second)];
            let claim = claims.into_iter().find(|(at, _)| *at == offset);
            Ok::<_, ()>(claim.map_or_else(|| label.encode(), |(_, claim)| claim.encode()))
        };
        Looked::read(member, size, read).expect("is read").expect("is of a pool")
    };
    // host 0 wrote its first claims on both devices, and its second one on device 0 alone
    let (taken, other) = (looked(0, &later, &later), looked(1, &later, &before));
    let evidence = |devices: &[&Looked<u16>], me: u8| {
        let looked = devices.iter().map(|looked| (*looked).clone()).collect();
        let evidence = Labelled::group(looked).pop().expect("a pool").evidence(Some([me; 16]));
        (evidence.other_host, evidence.taker)
    };
    assert_eq!(evidence(&[&other], 1), (None, Some("host0".to_owned())));
    assert_eq!(evidence(&[&other], 0), (Some("host1".to_owned()), None));
    assert_eq!(evidence(&[&taken], 1), (Some("host0".to_owned()), None));
    assert_eq!(evidence(&[&taken, &other], 1), (Some("host0".to_owned()), None));
    assert_eq!(evidence(&[&taken, &other], 0), (None, None));
    // a sign of life that came late, of a host that had it before
    assert_eq!(evidence(&[&looked(1, &claim(0, 4, false), &before)], 1), (None, None));
}

#[test]
fn who_is_not_current_any_more_is_remembered_before_labels_change() {
    let both = remembered(4, &[(0, 10), (1, 11)]);
    let half = found(4, &[11], &[11], &[0], &[]);
    assert_eq!(RULES.distrust(Some(&both), &half), Some(left_behind(remembered(4, &[(1, 11)]))));
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

#[test]
fn a_device_is_added_while_another_fails_and_the_power_goes() {
    // the newest label is on the new device alone, which calls one of the others present
    let both = remembered(1, &[(0, 10), (1, 11)]);
    let ids = |ids: &[u64]| ids.iter().copied().map(DeviceId).collect::<Vec<_>>();
    let held = vec![(DeviceId(11), 1), (DeviceId(12), 2)];
    let added = Evidence { held, present: ids(&[11, 12]), known: ids(&[10, 11, 12]), ..found(2, &[12], &[10, 11, 12], &[], &[]) };
    assert_eq!(RULES.decide(Some(&both), Some(&added), Duration::ZERO), Decision::Import);
    // the one that failed is trusted no more before labels say so
    assert_eq!(RULES.distrust(Some(&both), &added), Some(remembered(1, &[(1, 11)])));
    // it may stay away
    let without = Evidence { down: vec![MemberId(0)], devices: ids(&[11, 12]), ..added.clone() };
    assert_eq!(RULES.decide(Some(&both), Some(&without), Duration::ZERO), Decision::Import);
    // with none that it calls present it may be another history
    let none = Evidence { held: vec![(DeviceId(12), 2)], present: ids(&[12]), ..added };
    assert!(matches!(RULES.decide(Some(&both), Some(&none), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
}

#[test]
fn a_host_dies_while_labels_say_that_one_device_failed_and_another_is_filled() {
    // the newest label is on device 12 alone, which is being filled; device 10 failed and does not come back
    let both = remembered(3, &[(0, 10), (1, 11)]);
    let ids = |ids: &[u64]| ids.iter().copied().map(DeviceId).collect::<Vec<_>>();
    let filled = Evidence {
        current: Vec::new(),
        held: vec![(DeviceId(11), 3)],
        present: ids(&[11]),
        known: ids(&[10, 11, 12]),
        ..found(4, &[12], &[11, 12], &[], &[0])
    };
    assert_eq!(RULES.decide(Some(&both), Some(&filled), Duration::ZERO), Decision::Import);
    assert_eq!(RULES.distrust(Some(&both), &filled), Some(left_behind(remembered(3, &[(1, 11)]))));
    // device 11 was put back to an older state, is not trusted here, or is not there
    let back = Evidence { held: vec![(DeviceId(11), 2)], ..filled.clone() };
    let away = Evidence { held: Vec::new(), ..found(4, &[12], &[12], &[1], &[0]) };
    for (memory, found) in [(&both, &back), (&remembered(3, &[(0, 10)]), &filled), (&both, &away)] {
        assert!(matches!(RULES.decide(Some(memory), Some(found), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })), "{found:?}");
    }
}

#[test]
fn the_device_that_took_the_place_of_another_has_to_be_there() {
    // device 12 takes the place of device 11, which is trusted no more: its label, of the time before, calls both present
    let memory = left_behind(remembered(7, &[(1, 12)]));
    let ids = |ids: &[u64]| ids.iter().copied().map(DeviceId).collect::<Vec<_>>();
    let before = Evidence { present: ids(&[11, 12]), known: ids(&[10, 11, 12]), ..found(8, &[11], &[10, 11], &[], &[]) };
    let Decision::Refuse(refusal) = RULES.decide(Some(&memory), Some(&before), LIMIT) else { panic!("it was imported") };
    assert_eq!(refusal, Refusal::NotCurrent { remembered: 7, wanted: vec![MemberId(1)] });
    // with it there it is one history
    let both = Evidence { held: vec![(DeviceId(11), 8), (DeviceId(12), 8)], devices: ids(&[10, 11, 12]), ..before };
    assert_eq!(RULES.decide(Some(&memory), Some(&both), Duration::ZERO), Decision::Import);
}

/// A resilvered device is remembered as current before it has the place of its member. The newest
/// label, on a device that is being added, names it as a replacement.
#[test]
fn a_replacement_that_is_remembered_is_a_device_of_the_pool() {
    let mut label = Label {
        pool: PoolId([7; 16]),
        name: "tank".to_owned(),
        device: DeviceId(100),
        member: MemberId(0),
        shape: model::shape(2),
        features: millpond_format::FeatureSet::default(),
        feature_names: millpond_format::FeatureNames::default(),
        notes: Vec::new(),
    };
    label.shape.members[1].replacement = Some(DeviceId(200));
    let older = label.clone();
    label.shape.generation = 2;
    label.shape.members.push(Member { device: DeviceId(102), ..label.shape.members[0] });
    let labels = [
        older.clone(),
        Label { device: DeviceId(101), member: MemberId(1), ..older.clone() },
        Label { device: DeviceId(200), member: MemberId(1), ..older },
        Label { device: DeviceId(102), member: MemberId(2), ..label },
    ];
    let looked = |(place, label): (usize, Label)| {
        let sector = |offset: u64| Ok::<_, ()>(if offset == 0 { label.encode() } else { [0; SECTOR_BYTES] });
        Looked::read(place, 4 * AREA_BYTES, sector).expect("is read").expect("is of a pool")
    };
    let looked = labels.into_iter().enumerate().map(looked).collect();
    let found = Labelled::group(looked).pop().expect("a pool").evidence(None);
    assert_eq!(found.newest_on, [DeviceId(102)]);
    let memory = remembered(1, &[(0, 100), (1, 200)]);
    assert_eq!(RULES.decide(Some(&memory), Some(&found), Duration::ZERO), Decision::Import);
    assert_eq!(RULES.distrust(Some(&memory), &found), None);
}

#[test]
fn a_label_that_gave_a_replacement_its_place_may_be_lost() {
    // device 200 takes the place of device 100, device 101 is filled, device 102 failed long ago
    let mut before = model::shape(3);
    before.generation = 11;
    (before.members[0].replacement, before.members[1].state) = (Some(DeviceId(200)), MemberState::Filling);
    (before.members[2].state, before.members[2].down_since) = (MemberState::Down, 5);
    let mut after = before.clone();
    after.generation = 12;
    (after.members[0].device, after.members[0].replacement) = (DeviceId(200), None);
    let evidence = |labels: &[(u64, u16, &Shape)]| {
        let looked = labels.iter().map(|(device, member, shape)| {
            let (device, member, shape) = (DeviceId(*device), MemberId(*member), (*shape).clone());
            let label = Label {
                pool: PoolId([7; 16]),
                name: "tank".to_owned(),
                device,
                member,
                shape,
                features: millpond_format::FeatureSet::default(),
                feature_names: millpond_format::FeatureNames::default(),
                notes: Vec::new(),
            };
            Looked { place: device, label, claim: None, taker: None, seen: None, unread_claim: false }
        });
        Labelled::group(looked.collect()).pop().expect("a pool").evidence(None)
    };
    // the daemon dies when the new label is on device 101 alone, and again before the next import
    // writes labels
    let both = left_behind(remembered(11, &[(0, 100), (0, 200)]));
    let given = evidence(&[(100, 0, &before), (200, 0, &before), (101, 1, &after)]);
    assert_eq!(RULES.decide(Some(&both), Some(&given), Duration::ZERO), Decision::Import);
    let memory = left_behind(remembered(11, &[(0, 200)]));
    assert_eq!(RULES.distrust(Some(&both), &given), Some(memory.clone()));
    // a power cut loses that label: device 100 is in its place again, and holds everything
    let lost = evidence(&[(100, 0, &before), (200, 0, &before), (101, 1, &before)]);
    assert_eq!(RULES.decide(Some(&memory), Some(&lost), Duration::ZERO), Decision::Import);
    assert_eq!(RULES.distrust(Some(&memory), &lost), None);
    // device 101 may still have it where it is missing; a device 200 that was put back to an older
    // state, or is missing, proves nothing; and one that has its place by its own label was in
    // service there, whatever a newer label of device 100 says, which was used without it
    let older = Shape { generation: 10, ..before.clone() };
    let apart = Shape { generation: 15, ..before.clone() };
    for labels in [
        &[(100, 0, &before), (200, 0, &before)][..],
        &[(100, 0, &apart), (200, 0, &after), (101, 1, &apart)],
        &[(100, 0, &before), (200, 0, &older), (101, 1, &before)],
        &[(100, 0, &before), (101, 1, &before)],
    ] {
        let found = evidence(labels);
        assert!(matches!(RULES.decide(Some(&memory), Some(&found), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })), "{found:?}");
    }
}

#[test]
fn what_another_host_made_of_devices_that_were_left_behind_is_refused() {
    let elsewhere = Evidence { other_host: Some("bert".to_owned()), ..found(9, &[11, 12], &[11, 12], &[], &[]) };
    let memory = remembered(5, &[(0, 10)]);
    assert_eq!(RULES.decide(Some(&memory), Some(&elsewhere), Duration::ZERO), Decision::Import);
    let behind = left_behind(memory.clone());
    assert!(matches!(RULES.decide(Some(&behind), Some(&elsewhere), LIMIT), Decision::Refuse(Refusal::NotCurrent { .. })));
    // with a device that is trusted it is one history
    let with = Evidence { other_host: Some("bert".to_owned()), ..found(9, &[10, 11, 12], &[10, 11, 12], &[], &[]) };
    assert_eq!(RULES.decide(Some(&behind), Some(&with), Duration::ZERO), Decision::Import);
    // so it is where the pool came by the user's word
    assert_eq!(memory.clone().by_hand(), behind);
    // it is never forgotten, and news only once
    let later = remembered(6, &[(0, 10), (1, 13)]);
    assert_eq!(later.clone().after(Some(&behind)), left_behind(later.clone()));
    assert!(RULES.is_news(Some(&behind), &later) && !RULES.is_news(Some(&left_behind(later.clone())), &later));
    assert!(RULES.is_news(Some(&later), &left_behind(later.clone())));
}

#[test]
fn devices_that_were_written_to_apart_are_refused_whatever_is_remembered() {
    let apart = Evidence { apart: true, ..found(4, &[10, 11], &[10, 11], &[], &[]) };
    for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)]))] {
        assert_eq!(RULES.decide(memory.as_ref(), Some(&apart), LIMIT), Decision::Refuse(Refusal::Apart));
    }
}

/// Its label may be newer than all others, whatever those list.
#[test]
fn a_device_with_a_label_of_another_program_refuses_every_import() {
    let why = FormatError::Version(9);
    let (whole, half) = (found(4, &[10, 11], &[10, 11], &[], &[]), found(4, &[11], &[11], &[0], &[]));
    for readable in [whole, half, found(4, &[11], &[11], &[], &[0])] {
        let all = Evidence { foreign: Some(why), ..readable.clone() };
        for memory in [None, Some(remembered(4, &[(0, 10), (1, 11)])), Some(remembered(3, &[(1, 11)]))] {
            for waited in [Duration::ZERO, LIMIT * 100] {
                assert_eq!(RULES.decide(memory.as_ref(), Some(&all), waited), Decision::Refuse(Refusal::OtherProgram(why)), "{readable:?}");
            }
            assert!(!matches!(RULES.decide(memory.as_ref(), Some(&readable), LIMIT), Decision::Refuse(_)), "alone it would be imported");
        }
    }
}

#[test]
fn what_does_without_devices_is_remembered_before_it_serves() {
    let (whole, half) = (found(4, &[10, 11], &[10, 11], &[], &[]), found(4, &[11], &[11], &[0], &[]));
    let given_up = found(5, &[11], &[11], &[], &[0]);
    let must = |found, by_hand, left_out| RULES.must_be_remembered(found, by_hand, left_out);
    // by hand, one that was found and did not answer is as good as missing
    assert!(!must(&whole, false, false) && !must(&whole, true, false) && must(&whole, true, true));
    assert!(must(&half, false, false) && must(&half, true, false));
    // that it is given up is known here, unless the user takes what is there
    assert!(!must(&given_up, false, false) && must(&given_up, true, false));
}

/// A label that was written before a lost write, or before the first MiB was restored, does not hide
/// the other copy.
#[test]
fn the_newer_copy_of_a_label_counts_and_a_later_program_s_refuses_the_device() {
    let shape = |generation| Shape { generation, ..super::model::shape(2) };
    let label = |generation| Label {
        pool: PoolId([7; 16]),
        name: "tank".to_owned(),
        device: DeviceId(100),
        member: MemberId(0),
        shape: shape(generation),
        features: millpond_format::FeatureSet { compat: u32::from(generation > 1), ..millpond_format::FeatureSet::default() },
        feature_names: millpond_format::FeatureNames::default(),
        notes: Vec::new(),
    };
    let later_features = millpond_format::FeatureSet { incompat: 1 << 31, ..millpond_format::FeatureSet::default() };
    let later = || Label { features: later_features, ..label(2) }.encode();
    let other_pool = Label { pool: PoolId([8; 16]), features: later_features, ..label(2) }.encode();
    let (old, new, none) = (label(1).encode(), label(2).encode(), [0; SECTOR_BYTES]);
    let size = 8 << 20;
    let read = |first: Result<[u8; SECTOR_BYTES], u8>, second: Result<[u8; SECTOR_BYTES], u8>| {
        let looked = Looked::read(0, size, |offset| match offset {
            0 => first,
            offset if offset == second_area(size) => second,
            _ => Ok(none),
        });
        looked.map(|looked| looked.map(|looked| looked.label.shape.generation))
    };
    for (first, second, counts) in [
        (Ok(new), Ok(old), Ok(Some(2))),
        (Ok(old), Ok(new), Ok(Some(2))),
        (Ok(none), Ok(new), Ok(Some(2))),
        (Ok(new), Ok(none), Ok(Some(2))),
        (Ok(new), Err(5), Ok(Some(2))),
        (Ok(none), Err(5), Err(5)),
        (Err(5), Ok(new), Ok(Some(2))),
        (Err(5), Ok(later()), Ok(None)),
        (Err(5), Ok(none), Err(5)),
        (Err(5), Err(6), Err(6)),
        (Ok(later()), Ok(new), Ok(None)),
        (Ok(new), Ok(later()), Ok(None)),
        (Ok(none), Ok(later()), Ok(None)),
        (Ok(none), Ok(none), Ok(None)),
        // a second label of another pool is from an earlier use of the device
        (Ok(new), Ok(other_pool), Ok(Some(2))),
        (Ok(none), Ok(other_pool), Ok(None)),
        (Ok(other_pool), Ok(new), Ok(None)),
    ] {
        assert_eq!(read(first, second), counts);
    }
}

/// Devices with labels of one generation and different features have no common history.
#[test]
fn labels_with_different_features_are_apart() {
    let label = |at: u16, ro_compat| Label {
        pool: PoolId([7; 16]),
        name: "tank".to_owned(),
        device: DeviceId(100 + u64::from(at)),
        member: MemberId(at),
        shape: super::model::shape(2),
        features: millpond_format::FeatureSet { ro_compat, ..millpond_format::FeatureSet::default() },
        feature_names: millpond_format::FeatureNames::default(),
        notes: Vec::new(),
    };
    for (other, apart) in [(0, false), (4, true)] {
        let looked = [label(0, 0), label(1, other)].map(|label| Looked {
            place: label.member,
            label,
            claim: None,
            taker: None,
            seen: None,
            unread_claim: false,
        });
        let found = Labelled::group(looked.to_vec()).pop().expect("a pool");
        assert_eq!(found.evidence(None).apart, apart);
        let unknown: Vec<_> = found.unknown.into_iter().map(|(place, unknown)| (place, unknown.bits)).collect();
        assert_eq!(unknown, Vec::from_iter(apart.then_some((MemberId(1), 4))));
    }
}
