//! Power cuts at each event of the life of a key table. What was written since the last flush of a device
//! may be there or not, in any combination; the last write of each may be torn.

use millpond_block::{IoKind, MemberId};
use millpond_engine::{Command, DeviceCommand, GroupSpec, JobCommand, Layout, PoolState};
use millpond_format::{ENCRYPTION, FEATURES, Feature, KEY_PAGES, Label, SECTOR_BYTES};

use super::{WITH_KEYS, done, erase, import, import_degraded, known, new_key, page, pool, put, spec, tuning, used};
use crate::harness::Harness;
use crate::mirror::MIRROR;

/// A write that may be lost: device, offset, bytes.
type Cached = (usize, usize, Vec<u8>);

/// The devices as they may be after a power cut.
struct Recorder {
    /// Content that was flushed.
    durable: Vec<Vec<u8>>,
    cached: Vec<Cached>,
}

impl Recorder {
    fn new(harness: &Harness) -> Recorder {
        Recorder { durable: harness.media.clone(), cached: Vec::new() }
    }

    /// Performs an operation. Returns whether it was a write or flush.
    fn perform(&mut self, harness: &mut Harness, io: millpond_block::Io) -> bool {
        let device = usize::from(io.device.0);
        let changes = match &io.kind {
            IoKind::Write { offset, pieces } => {
                let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect();
                self.cached.push((device, *offset as usize, bytes));
                true
            }
            IoKind::Flush => {
                for (_, at, bytes) in self.cached.extract_if(.., |(of, ..)| *of == device) {
                    self.durable[device][at..at + bytes.len()].copy_from_slice(&bytes);
                }
                true
            }
            _ => false,
        };
        harness.perform(io);
        changes
    }

    fn with(&self, which: impl Fn(usize) -> bool, torn: Option<usize>) -> Vec<Vec<u8>> {
        let mut media = self.durable.clone();
        for (nth, (device, at, bytes)) in self.cached.iter().enumerate() {
            let length = if torn == Some(nth) { 512.min(bytes.len()) } else { bytes.len() };
            if which(nth) || torn == Some(nth) {
                media[*device][*at..*at + length].copy_from_slice(&bytes[..length]);
            }
        }
        media
    }

    /// Returns states after a power cut: nothing of what is in caches, all of it, all with one write torn or
    /// lost, one write alone or torn alone.
    fn cuts(&self) -> Vec<Vec<Vec<u8>>> {
        let mut states = vec![self.with(|_| false, None)];
        if self.cached.is_empty() {
            return states;
        }
        states.push(self.with(|_| true, None));
        for nth in 0..self.cached.len() {
            states.push(self.with(|_| false, Some(nth)));
            states.push(self.with(|other| other != nth, Some(nth)));
            if self.cached.len() > 1 {
                states.push(self.with(|other| other == nth, None));
                states.push(self.with(|other| other != nth, None));
            }
        }
        states
    }
}

/// Runs turns until nothing happens any more. `each` gets the states that a power cut after each write or
/// flush may leave, with the number of answers until then.
fn run(harness: &mut Harness, mut each: impl FnMut(Vec<Vec<Vec<u8>>>, usize)) {
    let (mut recorder, mut answers, mut quiet) = (Recorder::new(harness), 0, 0);
    while quiet < 30 {
        harness.now += 10;
        harness.turn();
        quiet += 1;
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            if recorder.perform(harness, io) {
                quiet = 0;
                each(recorder.cuts(), answers);
            }
        }
        while let Some((_, reply)) = harness.engine.pop_reply() {
            reply.unwrap();
            answers += 1;
        }
    }
}

/// Imports a pool whose table must have no unknown page, and again after it wrote to the devices.
fn import_known(media: &[Vec<u8>], what: &str) -> Harness {
    let again = import(media).unwrap_or_else(|why| panic!("{why}: {what}"));
    assert!(again.engine.keys().unknown.is_empty(), "{what}");
    let twice = import(&again.media).unwrap_or_else(|why| panic!("{why}: {what}, again"));
    assert_eq!(twice.engine.keys(), again.engine.keys(), "{what}");
    again
}

#[test]
fn a_pool_that_was_being_made_has_a_table_or_is_none() {
    for devices in [1, 2] {
        let layout = if devices == 1 { Layout::Linear } else { MIRROR };
        let media = vec![used(8); devices];
        let mut harness = Harness::begin_create(media, spec(vec![GroupSpec::data(layout)], true), tuning());
        let (mut made, mut none) = (0, 0);
        run(&mut harness, |states, _| {
            for media in states {
                // a label promises a table in both areas
                for image in &media {
                    if Label::decode_knowing(&image[..SECTOR_BYTES], WITH_KEYS).is_ok_and(|label| label.features.has(&ENCRYPTION)) {
                        assert!((0..KEY_PAGES).all(|number| {
                            [false, true].iter().all(|second| page(image, *second, number).is_some_and(|page| page.wraps.is_empty()))
                        }));
                    }
                }
                match import(&media) {
                    Ok(again) => {
                        assert!(known(&again).is_empty() && again.engine.keys().unknown.is_empty());
                        made += 1;
                    }
                    Err(_) => none += 1,
                }
            }
        });
        assert!(*harness.engine.state() == PoolState::Online && made > 0 && none > 0, "{made} {none}");
    }
}

/// Power may fail at any moment of an upgrade: if a label names the feature, the whole table is there, with
/// nothing of what was in its place.
#[test]
fn an_upgrade_leaves_a_whole_table_or_no_feature() {
    let mut harness = Harness::with(&[8, 8], MIRROR, tuning());
    harness.command(Command::Close).unwrap();
    let old = used(8);
    for image in &mut harness.media {
        for second in [false, true] {
            let (from, to) = (super::place(image, second, 0), super::place(image, second, KEY_PAGES - 1) + SECTOR_BYTES);
            image[from..to].copy_from_slice(&old[from..to]);
        }
    }
    let mut harness = import(&harness.media).unwrap();
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    let (mut on, mut off) = (0, 0);
    run(&mut harness, |states, answers| {
        for media in states {
            let mut again = import_known(&media, "upgrade");
            let has = again.engine.pool().unwrap().features.has(&ENCRYPTION);
            assert!(known(&again).is_empty() && (has || answers == 0));
            if has {
                on += 1;
                done(&mut again, new_key(5, 1));
            } else {
                off += 1;
                again.command(DeviceCommand::TurnFeaturesOn).unwrap();
            }
        }
    });
    assert!(on > 4 && off > 4, "{on} {off}");
}

/// INV-CRYPT-6, INV-CRYPT-9: after a power cut a page is as before a change or as after it, and as after it once that is
/// answered. Each device alone has one of both.
#[test]
fn a_change_is_there_or_not_and_stays_once_it_is_answered() {
    for devices in [1, 2] {
        let layout = if devices == 1 { Layout::Linear } else { MIRROR };
        let mut harness = pool(&vec![8; devices], layout);
        done(&mut harness, new_key(5, 1));
        done(&mut harness, new_key(6, 1));
        let steps = [(put(5, 0, 2), vec![(5, 0, 2), (6, 0, 1)]), (erase(6), vec![(5, 0, 2)])];
        let mut before = known(&harness);
        for (command, after) in steps {
            harness.start(Command::Keys(command));
            let (mut olds, mut news) = (0, 0);
            run(&mut harness, |states, answers| {
                for media in states {
                    let found = known(&import_known(&media, "change"));
                    assert!(found == after || (found == before && answers == 0), "{found:?}");
                    olds += usize::from(found == before);
                    news += usize::from(found == after);
                    for image in media.chunks(1).filter(|_| devices > 1) {
                        let alone = import_degraded(image, true).unwrap();
                        let found = known(&alone);
                        assert!(alone.engine.keys().unknown.is_empty());
                        assert!(found == after || (found == before && answers == 0), "{found:?}");
                    }
                }
            });
            assert!(olds > 2 && news > 2, "{olds} {news}");
            before = after;
        }
    }
}

/// A second cut may come while an import writes pages again.
#[test]
fn a_cut_while_pages_are_written_again_loses_none() {
    let mut harness = pool(&[8], Layout::Linear);
    done(&mut harness, new_key(5, 1));
    let before = harness.media[0].clone();
    done(&mut harness, put(5, 0, 2));
    let after = harness.media[0].clone();
    let at = [false, true].map(|second| super::place(&after, second, 0));
    for (second, bytes) in [(true, SECTOR_BYTES), (true, 512), (false, SECTOR_BYTES), (false, 512)] {
        // one copy is old or torn
        let mut image = after.clone();
        let at = at[usize::from(second)];
        image[at..at + bytes].copy_from_slice(&before[at..at + bytes]);
        let mut again = Harness::begin_import(vec![image], tuning(), 1_000);
        run(&mut again, |states, _| {
            for media in states {
                assert_eq!(known(&import_known(&media, "mend")), [(5, 0, 2)]);
            }
        });
        assert_eq!(known(&again), [(5, 0, 2)]);
    }
}

/// A scrub writes a page again while the only other copy stays.
#[test]
fn a_cut_during_a_scrub_loses_no_page() {
    for second in [false, true] {
        let mut harness = pool(&[8], Layout::Linear);
        done(&mut harness, new_key(5, 1));
        super::damage(&mut harness.media[0], second, 0);
        harness.start(Command::Job(JobCommand::Scrub));
        while harness.engine.pool().unwrap().scrub.is_none_or(|found| found.errors == 0) {
            harness.now += 10;
            harness.step();
        }
        assert!(harness.engine.pop_reply().is_some_and(|(_, reply)| reply.is_ok()));
        // it changes the page that is just written again
        harness.start(Command::Keys(put(5, 0, 2)));
        run(&mut harness, |states, answers| {
            for media in states {
                let found = known(&import_known(&media, "scrub"));
                assert!(found == [(5, 0, 2)] || (answers == 0 && found == [(5, 0, 1)]), "{found:?} after {answers} answers");
            }
        });
        assert_eq!(harness.engine.pool().unwrap().scrub.map(|found| (found.errors, found.repaired)), Some((1, 1)));
    }
}

/// Power fails while a device is filled: one that returns with an old table, or a new one. Where labels call
/// it whole it has the newest table, although the other device is lost with the cut.
#[test]
fn a_filled_device_has_the_table_whenever_power_fails() {
    for replaced in [false, true] {
        let mut harness = pool(&[8, 8], MIRROR);
        done(&mut harness, new_key(5, 1));
        harness.dead = vec![1];
        done(&mut harness, put(5, 0, 2));
        let mut harness = if replaced {
            let device = harness.new_device(8);
            harness.media[2] = used(8);
            harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
            harness
        } else {
            harness.command(Command::Close).unwrap();
            Harness::begin_import(harness.media, tuning(), 1_000)
        };
        let (mut whole, mut used_alone) = (0, 0);
        let filled = if replaced { 2 } else { 1 };
        let mut event = 0;
        run(&mut harness, |states, _| {
            event += 1;
            for media in states {
                let label = |at: usize| Label::decode_knowing(&media[at][..SECTOR_BYTES], WITH_KEYS);
                let is_whole = label(filled).is_ok_and(|label| label.shape.members[1].state == millpond_engine::MemberState::Present);
                // on the old device this label is from before it was given up
                let newer = label(filled).is_ok_and(|own| label(0).is_ok_and(|other| own.shape.generation >= other.shape.generation));
                if is_whole && newer {
                    whole += 1;
                    let alone = import_degraded(&media[filled..=filled], true).unwrap();
                    assert_eq!(
                        (known(&alone), alone.engine.keys().unknown.len()),
                        (vec![(5, 0, 2)], 0),
                        "replaced {replaced}, event {event}"
                    );
                    used_alone += 1;
                }
                let pair = [media[0].clone(), media[filled].clone()];
                if label(filled).is_ok() {
                    assert_eq!(known(&import_known(&pair, "fill")), [(5, 0, 2)]);
                }
            }
        });
        assert!(whole > 0 && used_alone > 0, "replaced {replaced}: {whole}");
    }
}

/// Changes beside a device that is filled.
#[test]
fn changes_beside_a_fill_stay_when_power_fails() {
    let mut harness = pool(&[8, 8], MIRROR);
    done(&mut harness, new_key(5, 1));
    harness.dead = vec![1];
    done(&mut harness, put(5, 0, 2));
    let device = harness.new_device(8);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
    (3..9).for_each(|value| harness.start(Command::Keys(put(5, 0, value))));
    run(&mut harness, |states, answers| {
        // the first answer is that of the replacement
        let least = if answers > 1 { answers as u8 } else { 2 };
        for media in states {
            let pair = [media[0].clone(), media[2].clone()];
            let has_label = Label::decode_knowing(&media[2][..SECTOR_BYTES], WITH_KEYS).is_ok();
            let again = if has_label { import_known(&pair, "changes") } else { import_degraded(&pair[..1], true).unwrap() };
            assert!(known(&again)[0].2 >= least, "{:?} after {answers} answers", known(&again));
        }
    });
    assert_eq!(known(&harness), [(5, 0, 8)]);
}

/// A program that does not know the feature never imports a pool that has a table in use.
#[test]
fn an_older_program_refuses_a_pool_with_keys() {
    let older: &'static [Feature] = FEATURES;
    let mut harness = pool(&[8], Layout::Linear);
    done(&mut harness, new_key(5, 1));
    let refused = Harness::import_with(harness.media, millpond_engine::Tuning { features: older, ..tuning() }, 1).err().unwrap();
    assert!(refused.contains("encryption (since 0.2.0)"), "{refused}");
}
