//! INV-CRYPT-8: devices that come, go and return have the newest key table before they count as whole.

use millpond_block::{Io, IoKind, MemberId};
use millpond_engine::{Class, Command, DeviceCommand, GroupSpec, Layout, MemberState, PoolState, Reply};
use millpond_format::{KEY_PAGES, KeyPage, Label, SECTOR_BYTES};

use super::{damage, done, erase, has_table_of, import, import_degraded, known, new_key, page, place, pool, put, spec, tuning};
use crate::harness::Harness;
use crate::mirror::{MIRROR, states};

/// Makes a device of a mirror fail during changes. Returns the devices after that.
fn changed_without(lost: u16) -> Harness {
    let mut harness = pool(&[16, 16], MIRROR);
    done(&mut harness, new_key(5, 1));
    done(&mut harness, new_key(6, 1));
    harness.dead = vec![lost];
    done(&mut harness, put(5, 0, 2));
    done(&mut harness, erase(6));
    assert_eq!(states(&harness)[usize::from(lost)], MemberState::Down);
    harness
}

/// Returns whether an operation writes to this page of a table, or to the whole table.
fn is_of_page(io: &Io, image: &[u8], number: u16) -> bool {
    let writes = |at: usize| match &io.kind {
        IoKind::Write { offset, pieces } => {
            let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
            (*offset as usize..*offset as usize + bytes).contains(&at)
        }
        _ => false,
    };
    [false, true].into_iter().any(|second| writes(place(image, second, number)))
}

#[test]
fn a_device_that_was_away_gets_the_table_before_it_is_whole() {
    for lost in [0, 1] {
        let at = usize::from(lost);
        let mut harness = changed_without(lost);
        assert_eq!(page(&harness.media[at], false, 0).unwrap().wraps[0].wrapped[0], 1, "it is as it was");
        harness.command(Command::Close).unwrap();
        let mut again = Harness::begin_import(harness.media.clone(), tuning(), 1_000);
        let mut was_filling = false;
        for _ in 0..3_000 {
            again.step();
            again.now += 10;
            if *again.engine.state() != PoolState::Online {
                continue;
            }
            let label = Label::decode_knowing(&again.media[1 - at][..SECTOR_BYTES], super::WITH_KEYS).unwrap();
            was_filling |= label.shape.members[at].state == MemberState::Filling;
            if label.shape.members[at].state == MemberState::Present {
                assert!(has_table_of(&again.media[at], &again.media[1 - at]), "a label calls it whole");
            }
        }
        assert!(was_filling && states(&again)[at] == MemberState::Present);
        let alone = import_degraded(&again.media[at..=at], true).unwrap();
        assert_eq!((known(&alone), alone.engine.keys().outdated.len()), (vec![(5, 0, 2)], 0));
    }
}

/// A page that a device got before it was given up was never acknowledged.
#[test]
fn an_out_of_date_device_does_not_count() {
    let mut harness = changed_without(1);
    let newer = KeyPage { generation: 50, ..page(&harness.media[1], false, 0).unwrap() };
    let at = place(&harness.media[1], false, 0);
    harness.media[1][at..at + SECTOR_BYTES].copy_from_slice(&newer.encode());
    let mut again = import(&harness.media).unwrap();
    assert_eq!(known(&again), [(5, 0, 2)]);
    again.finish_jobs();
    assert!(states(&again) == [MemberState::Present; 2] && has_table_of(&again.media[1], &again.media[0]));
}

/// If no whole device has a page, and none is missing, what an older one has is better than nothing.
#[test]
fn a_page_of_an_out_of_date_device_is_taken_if_there_is_no_other() {
    let mut harness = changed_without(1);
    [false, true].into_iter().for_each(|second| damage(&mut harness.media[0], second, 0));
    let mut again = import(&harness.media).unwrap();
    let table = again.engine.keys();
    assert_eq!((known(&again), table.outdated, table.unknown), (vec![(5, 0, 1)], vec![0], vec![]));
    again.finish_jobs();
    assert!(states(&again) == [MemberState::Present; 2] && has_table_of(&again.media[1], &again.media[0]));
    done(&mut again, put(5, 0, 3));
    assert!(again.engine.keys().outdated.is_empty());
}

/// While a device is missing that may have the newest copy, an older one counts nowhere, and is not
/// overwritten.
#[test]
fn a_page_of_a_missing_device_is_waited_for() {
    let mut harness = pool(&[16, 16, 16], Layout::Mirror { copies: 3 });
    done(&mut harness, new_key(5, 1));
    done(&mut harness, new_key(6, 1));
    harness.dead = vec![2];
    done(&mut harness, put(5, 0, 2));
    harness.command(Command::Close).unwrap();
    let [mut whole, missing, older] = <[Vec<u8>; 3]>::try_from(harness.media).unwrap();
    [false, true].into_iter().for_each(|second| damage(&mut whole, second, 0));
    let before = older.clone();
    let mut again = import_degraded(&[whole, older], true).unwrap();
    assert_eq!((known(&again), again.engine.keys().unknown), (vec![(6, 0, 1)], vec![0]));
    for _ in 0..200 {
        again.now += 100;
        again.settle();
    }
    assert_eq!(states(&again), [MemberState::Present, MemberState::Down, MemberState::Filling], "it cannot be whole");
    let at = place(&before, false, 0);
    assert!(again.media[1][at..at + SECTOR_BYTES] == before[at..at + SECTOR_BYTES]);
    again.command(Command::Close).unwrap();
    let [whole, older] = <[Vec<u8>; 2]>::try_from(again.media).unwrap();
    let mut again = import(&[whole, missing, older]).unwrap();
    assert_eq!((known(&again), again.engine.keys().outdated), (vec![(5, 0, 2), (6, 0, 1)], vec![0]));
    again.finish_jobs();
    assert!(states(&again) == [MemberState::Present; 3] && again.media.iter().all(|image| has_table_of(image, &again.media[0])));
}

#[test]
fn a_replaced_device_has_the_table() {
    for failed in [false, true] {
        let mut harness = if failed { changed_without(0) } else { pool(&[16, 16], MIRROR) };
        if !failed {
            done(&mut harness, new_key(5, 2));
        }
        let mut device = harness.new_device(16);
        device.geometry.size = 16 << 20;
        // it was used before, by a pool with the same id
        harness.media[2] = super::used(16);
        harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
        // changes while it is filled
        harness.start(Command::Keys(new_key(7, 3)));
        harness.settle();
        harness.start(Command::Keys(put(7, 0, 4)));
        harness.finish_jobs();
        let replies: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).map(|(_, reply)| reply).collect();
        assert_eq!(replies, [Ok(Reply::Done), Ok(Reply::Done), Ok(Reply::Done)]);
        assert!(has_table_of(&harness.media[2], &harness.media[1]), "failed {failed}");
        let alone = import_degraded(&harness.media[2..], true).unwrap();
        assert_eq!(known(&alone), [(5, 0, 2), (7, 0, 4)], "failed {failed}");
    }
}

#[test]
fn a_spare_has_the_table_once_it_is_in_use() {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, MIRROR, 2), group(Class::Spare, Layout::Linear, 1)];
    let mut harness = Harness::create(&[16, 16, 16], spec(groups, true), tuning());
    done(&mut harness, new_key(5, 1));
    assert!((0..KEY_PAGES).all(|number| page(&harness.media[2], false, number).is_none()), "a spare holds no roots and no keys");
    harness.dead = vec![0];
    done(&mut harness, put(5, 0, 2));
    harness.finish_jobs();
    assert!(states(&harness)[0] == MemberState::Present && has_table_of(&harness.media[2], &harness.media[1]));
    assert_eq!(known(&import_degraded(&harness.media[2..], true).unwrap()), [(5, 0, 2)]);
}

/// A device that is added during a change gets the table after it.
#[test]
fn an_added_device_has_the_table() {
    for turns in 0..12 {
        let mut harness = pool(&[16], Layout::Linear);
        done(&mut harness, new_key(5, 1));
        let device = harness.new_device(16);
        harness.media[1] = super::used(16);
        harness.start(Command::Keys(put(5, 0, 2)));
        (0..turns).for_each(|_| _ = harness.step());
        let groups = vec![GroupSpec::data(Layout::Linear)];
        harness.start(Command::Devices(DeviceCommand::AddDevices { groups, devices: vec![device] }));
        harness.start(Command::Keys(put(5, 1, 3)));
        harness.settle();
        let replies: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).map(|(_, reply)| reply).collect();
        assert_eq!(replies, [Ok(Reply::Done), Ok(Reply::Done), Ok(Reply::Done)], "after {turns} turns");
        assert!(has_table_of(&harness.media[1], &harness.media[0]), "after {turns} turns");
        assert_eq!(known(&import(&harness.media).unwrap()), [(5, 0, 2), (5, 1, 3)], "after {turns} turns");
    }
}

/// A device fails in some step of a change: the change goes on without it, and is answered once the labels
/// say that it is out of date, so that an import of that device alone is refused or knows it.
#[test]
fn a_change_goes_on_without_a_device_that_fails() {
    let mut failed_in = 0;
    for dies_at in 0..14 {
        let mut harness = pool(&[16, 16], MIRROR);
        done(&mut harness, new_key(5, 1));
        harness.start(Command::Keys(put(5, 0, 2)));
        let mut operations = 0;
        let mut answered = false;
        for _ in 0..400 {
            harness.turn();
            for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                operations += 1;
                if operations == dies_at {
                    harness.dead = vec![1];
                }
                harness.perform(io);
            }
            let reply = harness.engine.pop_reply();
            if reply.is_some() && !answered && states(&harness)[1] == MemberState::Down {
                let label = Label::decode_knowing(&harness.media[0][..SECTOR_BYTES], super::WITH_KEYS).unwrap();
                assert_eq!(label.shape.members[1].state, MemberState::Down, "answered before the labels say so, at {dies_at}");
                failed_in += 1;
            }
            answered |= reply.is_some_and(|(_, reply)| reply == Ok(Reply::Done));
        }
        assert!(answered, "at {dies_at}");
        assert_eq!(known(&import_degraded(&harness.media[..1], true).unwrap()), [(5, 0, 2)], "at {dies_at}");
        harness.dead.clear();
        let mut both = import(&harness.media).unwrap();
        both.finish_jobs();
        assert!(known(&both) == [(5, 0, 2)] && has_table_of(&both.media[1], &both.media[0]), "at {dies_at}");
    }
    assert!(failed_in > 4, "{failed_in} failures during the change");
}

/// No page changes between the moment at which a device got the table and the one at which labels call it
/// whole.
#[test]
fn no_change_overtakes_a_device_that_becomes_whole() {
    let mut harness = changed_without(0);
    let device = harness.new_device(16);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
    let mut held: Option<(u64, Io)> = None;
    let mut tables = 0;
    for turn in 0..600u64 {
        harness.now += 10;
        harness.start(Command::Keys(put(5, 0, turn as u8)));
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let table = io.device.0 == 2 && is_of_page(&io, &harness.media[2], 0);
            let fills = table && matches!(&io.kind, IoKind::Write { pieces, .. } if pieces[0].len() > SECTOR_BYTES);
            assert!(held.is_none() || !is_of_page(&io, &harness.media[1], 0) || fills, "a change beside the table of a filled device");
            if fills && tables == 0 {
                held = Some((turn, io));
            } else {
                harness.perform(io);
            }
            tables += u32::from(fills);
        }
        if held.as_ref().is_some_and(|(since, _)| since + 20 < turn) {
            harness.perform(held.take().unwrap().1);
        }
    }
    harness.finish_jobs();
    assert_eq!(tables, 2, "{:?}", harness.engine.pool().unwrap().devices);
    assert!(has_table_of(&harness.media[2], &harness.media[1]));
    let last = known(&harness);
    assert_eq!(known(&import_degraded(&harness.media[2..], true).unwrap()), last);
}
