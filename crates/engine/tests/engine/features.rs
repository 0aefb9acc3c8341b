//! Features: pools that a later program made or upgraded, and the upgrade itself under power cuts.

use std::slice::from_ref;

use millpond_block::{Io, IoKind, MemberId, Op};
use millpond_engine::{
    Aim, Busy, Class, Command, CommandError, Compression, DeviceCommand, GroupSpec, JobCommand, Layout, MemberState, PoolState, Reply,
    Target, Tuning,
};
use millpond_format::testing::{Kind, put_checksum_right};
use millpond_format::{AREA_BYTES, DeviceNote, FEATURES, Feature, FeatureKind, FeatureSet, Label, SECTOR_BYTES};

use crate::golden::{golden, relabel, second_area};
use crate::harness::Harness;

const fn feature(name: &'static str, kind: FeatureKind, bit: u8) -> Feature {
    Feature { name, kind, bit, since: "9.4.0", automatic: false, meaning: "A feature of a later version.", closes: "Older ones lack it." }
}

const HINTS: Feature = feature("hints", FeatureKind::Compat, 5);
const TREES: Feature = feature("trees", FeatureKind::RoCompat, 6);
const DEDUP: Feature = feature("dedup", FeatureKind::Incompat, 7);

/// Features of programs of later versions.
static WITH_HINTS: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS];
static WITH_TREES: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS, TREES];
static WITH_ALL: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS, TREES, DEDUP];

fn tuning(features: &'static [Feature]) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, features, ..Tuning::default() }
}

fn import(media: &[Vec<u8>], features: &'static [Feature]) -> Result<Harness, String> {
    Harness::import_with(media.to_vec(), tuning(features), 1)
}

fn label(image: &[u8], at: usize) -> Label {
    Label::decode_knowing(&image[at..at + SECTOR_BYTES], WITH_ALL).unwrap()
}

/// Returns the features in force that do not follow from the shape.
fn in_force(harness: &Harness) -> FeatureSet {
    harness.engine.pool().unwrap().features.without(FeatureSet::of(FEATURES))
}

/// Turns on all features that a program knows, in a pool of another one.
fn upgraded(media: &[Vec<u8>], features: &'static [Feature]) -> Harness {
    let mut harness = import(media, features).unwrap();
    assert_eq!(in_force(&harness), FeatureSet::default(), "an import turns nothing on");
    let on = FeatureSet::of(features).without(FeatureSet::of(FEATURES));
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(on)));
    assert_eq!(in_force(&harness), on);
    harness.command(Command::Close).unwrap();
    harness
}

#[test]
fn an_upgrade_of_this_program_changes_nothing() {
    let mut harness = Harness::import(vec![golden("clean")]).unwrap();
    let before = harness.engine.labels_in_force();
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(FeatureSet::default())));
    assert_eq!((harness.engine.labels_in_force(), in_force(&harness)), (before, FeatureSet::default()));
}

#[test]
fn an_unknown_incompatible_feature_is_named() {
    let media = upgraded(&[golden("clean")], WITH_ALL).media;
    assert_eq!(
        import(&media, FEATURES).err().unwrap(),
        "device 0 has a label for another program (needs features that this program does not have: dedup (since 9.4.0), \
         trees (since 9.4.0)); use the one that it was made with, or a newer one"
    );
    let tuning = Tuning { read_only: true, ..tuning(FEATURES) };
    assert!(Harness::import_with(media.clone(), tuning, 1).is_err(), "not even read-only");
    let (_, name, why) = Label::of_other_program(&media[0][..SECTOR_BYTES]).unwrap();
    assert_eq!((name.as_str(), why.to_string().contains("dedup")), ("pond", true));
    // a program that has one of them is refused because of the other alone
    let why = import(&media, WITH_TREES).err().unwrap();
    assert!(why.contains("dedup (since 9.4.0)") && !why.contains("trees"), "{why}");
    let again = import(&media, WITH_ALL).unwrap();
    assert_eq!(in_force(&again), FeatureSet::of([&HINTS, &TREES, &DEDUP]));
}

/// A device of a pool that a later program upgraded is never left out for one that was away
/// meanwhile: neither in the place of a spare that is missing, nor with leave to do without devices.
#[test]
fn a_device_of_a_later_program_is_not_left_out() {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, Layout::Mirror { copies: 2 }, 2), group(Class::Spare, Layout::Linear, 1)];
    let mut harness = Harness::with_groups(&[16; 3], groups, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let before = harness.media;
    let after = upgraded(&before, WITH_ALL).media;
    let media = [before[0].clone(), after[1].clone()];
    let refused = |why: &str| why.starts_with("device 1 has a label for another program") && why.contains("dedup (since 9.4.0)");
    for degraded in [false, true] {
        for aim in [Aim::Newest, Aim::Rewind, Aim::Rebuild] {
            let tuning = Tuning { degraded, aim, ..tuning(FEATURES) };
            let why = Harness::import_with(media.to_vec(), tuning, 1).err().unwrap();
            assert!(refused(&why), "degraded {degraded}, {aim:?}: {why}");
        }
    }
    let why = Harness::survey(&media).err().unwrap();
    assert!(refused(&why), "survey: {why}");
    assert!(Harness::import_degraded(vec![before[0].clone()], true).is_ok(), "alone it is a pool");
}

#[test]
fn a_feature_that_writers_have_to_know_allows_to_read() {
    let media = upgraded(&[golden("clean")], WITH_TREES).media;
    let why = "pool 'pond' can only be read by this program: writing needs features that this program does not have: trees (since 9.4.0)";
    assert_eq!(import(&media, FEATURES).err().unwrap(), why);
    let tuning = Tuning { read_only: true, ..tuning(FEATURES) };
    let mut harness = Harness::import_with(media.clone(), tuning, 1).unwrap();
    let disk = Target::Head(harness.engine.volumes().iter().find(|v| v.name == "disk").unwrap().id);
    assert_eq!(harness.request(disk, Op::Read, 0, 4096, &[]).unwrap(), [0x11; 4096]);
    assert!(harness.command(DeviceCommand::TurnFeaturesOn).is_err());
    assert!(harness.media == media, "a read-only import writes nothing");
}

#[test]
fn an_unknown_compatible_feature_is_ignored_and_kept() {
    let media = upgraded(&[golden("clean")], WITH_HINTS).media;
    assert_eq!(label(&media[0], 0).feature_names.text(), "", "such labels need no names");
    let mut harness = import(&media, FEATURES).unwrap();
    let device = harness.new_device(8);
    let groups = vec![GroupSpec::data(Layout::Linear)];
    harness.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
    for image in &harness.media {
        for at in [0, second_area(image)] {
            assert_eq!(label(image, at).features, FeatureSet::of([&HINTS]));
        }
    }
}

#[test]
fn features_are_not_turned_on_while_labels_are_written() {
    let mut harness = import(&[golden("clean")], WITH_ALL).unwrap();
    let device = harness.new_device(8);
    let groups = vec![GroupSpec::data(Layout::Linear)];
    harness.start(Command::Devices(DeviceCommand::AddDevices { groups, devices: vec![device] }));
    harness.turn();
    let refused = harness.command_beside(Command::Devices(DeviceCommand::TurnFeaturesOn));
    assert_eq!(refused, Err(CommandError::Busy(Busy::Relabeling)));
    harness.settle();
    assert!(harness.engine.pop_reply().expect("the device is added").1.is_ok());
    assert!(in_force(&harness).is_empty() && named_everywhere(&harness.media, FeatureSet::default()), "a refused command changes nothing");
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    assert!(named_everywhere(&harness.media, FeatureSet::of([&HINTS, &TREES, &DEDUP])));
}

/// Labels that are wanted again while features are turned on delay the answer until the features
/// are in force; so does another command for the same features.
#[test]
fn an_upgrade_is_answered_when_its_features_are_in_force() {
    let mut harness = import(&[golden("clean")], WITH_ALL).unwrap();
    let wanted = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    let device = label(&harness.media[0], 0).device;
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    harness.turn();
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/a".into(), serial: String::new() }]);
    let mut answers = Vec::new();
    for _ in 0..500 {
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            harness.perform(io);
        }
        while let Some((_, reply)) = harness.engine.pop_reply() {
            assert!(in_force(&harness) == wanted, "{reply:?} {:?}", in_force(&harness));
            assert!(named_everywhere(&harness.media, wanted));
            answers.push(reply.unwrap());
        }
    }
    // each feature is turned on by one command
    assert_eq!(answers, [wanted, FeatureSet::default()].map(Reply::TurnedOn));
    assert_eq!(label(&harness.media[0], 0).notes.len(), 1, "the labels were written once more");
}

/// A pool that stops fails the commands that wait for its labels.
#[test]
fn an_upgrade_fails_when_the_pool_stops() {
    let mut harness = import(&[golden("clean")], WITH_ALL).unwrap();
    harness.dead = vec![0];
    let failed = harness.command(DeviceCommand::TurnFeaturesOn);
    assert!(matches!(failed, Err(CommandError::Faulted(_))), "{failed:?}");
}

#[test]
fn bits_without_names_are_refused_too() {
    for (byte, readable) in [(14, true), (18, false)] {
        let mut image = golden("clean");
        relabel(&mut image, |label| {
            label[byte + 3] = 0x40;
            put_checksum_right(Kind::Label, label);
        });
        let why = import(&[image.clone()], FEATURES).err().unwrap();
        assert!(why.contains("features 0x40000000 that this program does not have"), "{why}");
        let tuning = Tuning { read_only: true, ..tuning(FEATURES) };
        assert_eq!(Harness::import_with(vec![image], tuning, 1).is_ok(), readable);
    }
}

/// Returns whether both labels of every device name these features.
fn named_everywhere(media: &[Vec<u8>], features: FeatureSet) -> bool {
    media.iter().all(|image| [0, second_area(image)].iter().all(|at| label(image, *at).features == features))
}

/// Imports a pool with a later program. In no turn are features in force that a label does not name.
fn import_checked(media: &[Vec<u8>], what: &str) -> Harness {
    let mut harness = Harness::begin_import(media.to_vec(), tuning(WITH_ALL), 1);
    for _ in 0..200 {
        harness.step();
        let on = harness.engine.pool().map_or(FeatureSet::default(), |pool| pool.features);
        assert!(on.is_empty() || named_everywhere(&harness.media, on), "in force before every label names them: {what}");
    }
    harness.settle();
    harness
}

/// INV-LABEL-3. Of the labels that were being written at a power cut, each may be as before, torn
/// or new. Second labels are written once all first ones are durable.
#[test]
fn a_power_cut_may_leave_each_label_of_an_upgrade_old_torn_or_new() {
    let mut harness = Harness::with(&[16, 16], Layout::Mirror { copies: 2 }, tuning(FEATURES));
    let volume = harness.volume("disk", 1 << 20, Compression::Off);
    harness.write(Target::Head(volume), 0, &[7; 4096]);
    harness.command(Command::Close).unwrap();
    let before = harness.media;
    let after = upgraded(&before, WITH_ALL).media;
    let wanted = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    for cut in 0..18 {
        let (seconds, in_flight) = (cut >= 9, [cut % 3, cut / 3 % 3]);
        let what = format!("second labels {seconds}, bytes written of each {:?}", in_flight.map(|state| [0, 512, SECTOR_BYTES][state]));
        let mut media = before.clone();
        for ((image, new), state) in media.iter_mut().zip(&after).zip(in_flight) {
            let at = if seconds { second_area(image) } else { 0 };
            image[..at.min(SECTOR_BYTES)].copy_from_slice(&new[..at.min(SECTOR_BYTES)]);
            let written = at..at + [0, 512, SECTOR_BYTES][state];
            image[written.clone()].copy_from_slice(&new[written]);
        }
        let named = seconds || in_flight.contains(&2);
        let mut newer = import_checked(&media, &what);
        assert_eq!(in_force(&newer), if named { wanted } else { FeatureSet::default() }, "{what}");
        assert!(!named || named_everywhere(&newer.media, wanted), "{what}");
        assert_eq!(newer.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap(), [7; 4096], "{what}");
        assert_eq!(import(&media, FEATURES).is_err(), named, "{what}");
    }
}

/// INV-LABEL-3. Power may fail between any two writes of labels. The pool is whole for the new
/// program after each, and features are in force only where every label names them. The old program
/// imports the pool as long as no label names the features, and refuses it otherwise.
#[test]
fn a_power_cut_during_an_upgrade_leaves_the_old_or_the_new_features() {
    let mut harness = Harness::with(&[16, 16], Layout::Mirror { copies: 2 }, tuning(FEATURES));
    let volume = harness.volume("disk", 1 << 20, Compression::Off);
    harness.write(Target::Head(volume), 0, &[7; 4096]);
    harness.command(Command::Close).unwrap();
    let mut harness = import(&harness.media, WITH_ALL).unwrap();
    let wanted = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    let mut states = vec![harness.media.clone()];
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    let mut answered = false;
    for _ in 0..500 {
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let area = |offset: u64| offset == 0 || offset == (16 << 20) - AREA_BYTES;
            let is_label = matches!(&io.kind, IoKind::Write { offset, .. } if area(*offset));
            harness.perform(io);
            if is_label {
                states.push(harness.media.clone());
            }
        }
        let everywhere = named_everywhere(&harness.media, wanted);
        assert!(everywhere || in_force(&harness).is_empty(), "in force before every label names them");
        answered |= harness.engine.pop_reply().is_some();
        assert!(everywhere || !answered, "answered before every label names them");
    }
    assert!(answered && in_force(&harness) == wanted);
    assert_eq!(states.len(), 5, "two labels on each of two devices");
    for (written, media) in states.iter().enumerate() {
        let mut newer = import_checked(media, &format!("after {written} labels"));
        assert_eq!(in_force(&newer), if written == 0 { FeatureSet::default() } else { wanted }, "after {written} labels");
        assert_eq!(newer.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap(), [7; 4096]);
        for image in &newer.media {
            let labels = [0, second_area(image)].map(|at| label(image, at).features);
            assert_eq!(labels, [if written == 0 { FeatureSet::default() } else { wanted }; 2], "after {written} labels");
        }
        // an old second copy is no way around the first one
        assert_eq!(import(media, FEATURES).is_err(), written > 0, "after {written} labels");
    }
}

/// State of a copy of a label after an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Old,
    New,
    Torn,
    /// It can be neither read nor written.
    Bad,
}

const COPIES: [Copied; 4] = [Copied::Old, Copied::New, Copied::Torn, Copied::Bad];

/// A device of a pool, its state before and after an upgrade, and the offset of a bad copy.
struct Halfway {
    image: Vec<u8>,
    bad: Option<usize>,
    what: String,
}

impl Halfway {
    fn new(before: &[u8], after: &[u8], states: [Copied; 2]) -> Halfway {
        let mut image = before.to_vec();
        let ends = [0, second_area(before)];
        for (at, state) in ends.into_iter().zip(states) {
            let bytes = match state {
                Copied::Old | Copied::Bad => 0,
                Copied::Torn => 512,
                Copied::New => SECTOR_BYTES,
            };
            image[at..at + bytes].copy_from_slice(&after[at..at + bytes]);
        }
        let bad = ends.into_iter().zip(states).find(|(_, state)| *state == Copied::Bad).map(|(at, _)| at);
        Halfway { image, bad, what: format!("{states:?}") }
    }

    /// Imports it. Returns the harness, and what each power cut during the import may leave: each
    /// label that is being written as before, torn or new.
    fn import(&self, features: &'static [Feature]) -> (Result<Harness, String>, Vec<Vec<u8>>) {
        let mut harness = Harness::begin_import(vec![self.image.clone()], tuning(features), 1);
        harness.bad = self.bad.map(|at| (0, at as u64));
        harness.unwritable = self.bad.map(|at| (0, at as u64)).into_iter().collect();
        let ends = [0, second_area(&self.image) as u64];
        let mut cuts = Vec::new();
        for _ in 0..300 {
            harness.turn();
            for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                if let IoKind::Write { offset, pieces } = &io.kind
                    && ends.contains(offset)
                    && self.bad != Some(*offset as usize)
                {
                    for bytes in [512, SECTOR_BYTES] {
                        let (mut image, at) = (harness.media[0].clone(), *offset as usize);
                        image[at..at + bytes].copy_from_slice(&pieces[0].bytes()[..bytes]);
                        cuts.push(image);
                    }
                }
                harness.perform(io);
            }
        }
        let refused = match harness.engine.state() {
            PoolState::Online => None,
            PoolState::Faulted(why) => Some(why.to_string()),
            other => panic!("{other:?}: {}", self.what),
        };
        (refused.map_or(Ok(harness), Err), cuts)
    }

    fn with(&self, image: Vec<u8>) -> Halfway {
        Halfway { image, bad: self.bad, what: format!("{}, power cut", self.what) }
    }
}

/// INV-LABEL-3. One valid label is enough to use a device, whatever the other copy is; it is not
/// overwritten before there is another. Features are in force only if both copies name them, also
/// after a power cut at any write of a label; and an older program refuses the device as soon as
/// one copy names them.
#[test]
fn one_valid_label_is_enough_whatever_the_other_copy_is() {
    let before = golden("clean");
    let after = upgraded(from_ref(&before), WITH_ALL).media.remove(0);
    let wanted = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    let ends = [0, second_area(&before)];
    let all = COPIES.iter().flat_map(|first| COPIES.map(|second| [*first, second]));
    for states in all.filter(|states| *states != [Copied::Bad; 2]) {
        let device = Halfway::new(&before, &after, states);
        let what = &device.what;
        let readable = states.iter().any(|state| matches!(state, Copied::Old | Copied::New));
        let named = states.contains(&Copied::New);
        assert_eq!(device.import(FEATURES).0.is_ok(), readable && !named, "an older program: {what}");
        let (imported, cuts) = device.import(WITH_ALL);
        let Ok(mut newer) = imported else {
            assert!(!readable, "{what}");
            continue;
        };
        assert!(readable, "{what}");
        let whole = named && device.bad.is_none();
        assert_eq!(in_force(&newer), if whole { wanted } else { FeatureSet::default() }, "{what}");
        let named_by_label = newer.engine.pool().unwrap().named_features.without(FeatureSet::of(FEATURES));
        assert_eq!(named_by_label, if named { wanted } else { FeatureSet::default() }, "reading goes by the label: {what}");
        for (at, state) in ends.into_iter().zip(states).filter(|(_, state)| *state == Copied::New) {
            assert!(newer.media[0][at..at + SECTOR_BYTES] == device.image[at..at + SECTOR_BYTES], "{state:?} of {what} is overwritten");
        }
        assert!(!whole || named_everywhere(&newer.media, wanted), "{what}");
        let right = states[0] == states[1];
        assert_eq!(cuts.is_empty(), right || device.bad.is_some(), "{what}");
        for cut in cuts {
            let cut = device.with(cut);
            assert_eq!(cut.import(FEATURES).0.is_err(), named, "an older program: {}", cut.what);
            let again = cut.import(WITH_ALL).0.unwrap_or_else(|why| panic!("{why}: {}", cut.what));
            assert_eq!(in_force(&again), if named { wanted } else { FeatureSet::default() }, "{}", cut.what);
        }
        let disk = Target::Head(newer.engine.volumes().iter().find(|volume| volume.name == "disk").unwrap().id);
        newer.write(disk, 0, &[9; 4096]);
        newer.command(Command::Close).unwrap();
        let (again, _) = device.with(newer.media.remove(0)).import(WITH_ALL);
        assert_eq!(again.unwrap().request(disk, Op::Read, 0, 4096, &[]).unwrap(), [9; 4096], "{what}");
    }
}

/// A pool whose label cannot be written on one side of a device is served, and says so. It would stop
/// if it had to write that label, so it turns no feature on.
#[test]
fn a_copy_that_cannot_be_written_is_an_error_of_its_device() {
    let before = golden("clean");
    let after = upgraded(from_ref(&before), WITH_TREES).media.remove(0);
    let device = Halfway::new(&before, &after, [Copied::New, Copied::Bad]);
    for features in [WITH_TREES, WITH_ALL] {
        let mut harness = device.import(features).0.unwrap();
        assert_eq!(harness.engine.pool().unwrap().devices[0].errors, 1);
        let refused = harness.command(DeviceCommand::TurnFeaturesOn);
        assert_eq!(refused, Err(CommandError::Busy(Busy::LabelUnwritten(MemberId(0)))));
        assert!(*harness.engine.state() == PoolState::Online && in_force(&harness).is_empty());
    }
    // a mirror keeps the device, which has all data
    let mut harness = Harness::with(&[16, 16], Layout::Mirror { copies: 2 }, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let media = upgraded(&harness.media, WITH_ALL).media;
    let second = second_area(&media[0]) as u64;
    let mut harness = Harness::begin_import(media, tuning(WITH_ALL), 1);
    (harness.bad, harness.unwritable) = (Some((0, second)), vec![(0, second)]);
    harness.settle();
    let pool = harness.engine.pool().unwrap();
    assert!(pool.state == PoolState::Online && pool.devices.iter().all(|device| device.state == MemberState::Present), "{pool:?}");
    assert!(in_force(&harness).is_empty());
}

/// INV-LABEL-3. A second label may be from before the upgrade, or rotten.
#[test]
fn a_second_label_that_lacks_features_is_written_before_they_are_in_force() {
    let before = golden("clean");
    let after = upgraded(from_ref(&before), WITH_ALL).media.remove(0);
    let at = second_area(&after);
    let (mut old, mut rotten) = (after.clone(), after);
    old[at..at + SECTOR_BYTES].copy_from_slice(&before[at..at + SECTOR_BYTES]);
    rotten[at + 100] ^= 1;
    let wanted = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    for image in [old, rotten] {
        assert!(import(from_ref(&image), FEATURES).is_err(), "an old second copy is no way around the first one");
        let harness = import(from_ref(&image), WITH_ALL).unwrap();
        assert_eq!(in_force(&harness), wanted);
        assert!(named_everywhere(&harness.media, wanted));
        // the first label is the only one until then, and is not written
        assert!(harness.media[0][..SECTOR_BYTES] == image[..SECTOR_BYTES]);
    }
    // without features the copy is written, too, and the other label stays as it is
    let mut image = before.clone();
    image[at + 100] ^= 1;
    let harness = import(from_ref(&image), WITH_ALL).unwrap();
    assert!(sectors(&harness.media[0]) == sectors(&before));
}

/// Two labels of one generation with different features have no common history: no change of the
/// features goes without a generation of its own.
#[test]
fn features_take_part_in_the_comparison_of_labels() {
    let mut harness = Harness::with(&[16, 16], Layout::Mirror { copies: 2 }, tuning(WITH_ALL));
    harness.command(Command::Close).unwrap();
    let mut media = harness.media;
    let other = Label { features: FeatureSet::of([&TREES]), ..label(&media[1], 0) }.encode();
    for at in [0, second_area(&media[1])] {
        media[1][at..at + SECTOR_BYTES].copy_from_slice(&other);
    }
    let why = import(&media, WITH_ALL).err().unwrap();
    assert!(why.contains("contradicts the others"), "{why}");
}

/// Imports an upgraded pool of two devices that both have data. One copy of the first one's label,
/// whose offset is returned, too, can be neither read nor written.
fn with_a_bad_copy(second: bool) -> (Harness, u64) {
    let mut harness = Harness::with(&[16, 16], Layout::Linear, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let mut media = upgraded(&harness.media, WITH_ALL).media;
    let at = if second { second_area(&media[0]) } else { 0 };
    media[0][at..at + SECTOR_BYTES].fill(0);
    let at = at as u64;
    (import_with_bad(media, at), at)
}

fn import_with_bad(media: Vec<Vec<u8>>, at: u64) -> Harness {
    let mut harness = Harness::begin_import(media, tuning(WITH_ALL), 1);
    (harness.bad, harness.unwritable) = (Some((0, at)), vec![(0, at)]);
    harness.settle();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert!(in_force(&harness).is_empty());
    harness
}

/// Returns the labels of a device as they are on the medium.
fn sectors(image: &[u8]) -> [Vec<u8>; 2] {
    [0, second_area(image)].map(|at| image[at..at + SECTOR_BYTES].to_vec())
}

fn add_device(harness: &mut Harness) -> Command {
    let device = harness.new_device(16);
    let groups = vec![GroupSpec::data(Layout::Linear)];
    Command::Devices(DeviceCommand::AddDevices { groups, devices: vec![device] })
}

/// The shape may change with one label of a device, and features stay out of force; with the next
/// import, too.
#[test]
fn a_copy_that_cannot_be_written_stops_no_pool() {
    for second in [false, true] {
        let (mut harness, at) = with_a_bad_copy(second);
        let added = add_device(&mut harness);
        harness.command(added).unwrap();
        assert!(*harness.engine.state() == PoolState::Online && in_force(&harness).is_empty());
        assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Err(CommandError::Busy(Busy::LabelUnwritten(MemberId(0)))));
        harness.command(Command::Close).unwrap();
        let again = import_with_bad(harness.media, at);
        assert_eq!(again.engine.pool().unwrap().devices.len(), 3);
    }
}

/// The replacement has two labels, so the features are in force.
#[test]
fn features_are_in_force_once_a_device_with_a_bad_label_is_replaced() {
    for second in [false, true] {
        let (mut harness, _) = with_a_bad_copy(second);
        let device = harness.new_device(16);
        harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        assert_eq!(in_force(&harness), FeatureSet::of([&HINTS, &TREES, &DEDUP]));
    }
}

/// Neither a description nor a scrub is worth overwriting the only label of a device.
#[test]
fn the_only_label_of_a_device_is_not_overwritten_for_notes_or_a_scrub() {
    for second in [false, true] {
        let (mut harness, _) = with_a_bad_copy(second);
        let before: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        let device = harness.engine.pool().unwrap().devices[1].id;
        harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
        harness.settle();
        harness.command(JobCommand::Scrub).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        assert!(harness.engine.pool().unwrap().scrub.unwrap().errors > 0, "the scrub finds it");
        assert!(harness.media.iter().map(|image| sectors(image)).eq(before), "labels are written");
    }
}

/// A copy that can be written again is written before the only label, whichever it is: power may fail
/// in any of these writes.
#[test]
fn a_copy_that_can_be_written_again_is_written_before_the_only_label() {
    for second in [false, true] {
        let (mut harness, at) = with_a_bad_copy(second);
        (harness.bad, harness.unwritable) = (None, Vec::new());
        let added = add_device(&mut harness);
        harness.start(added);
        let (mut cuts, mut order) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            harness.turn();
            for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                if let IoKind::Write { offset, pieces } = &io.kind
                    && [0, (16 << 20) - AREA_BYTES].contains(offset)
                    && io.device.0 == 0
                {
                    let (mut media, start) = (harness.media.clone(), *offset as usize);
                    media[0][start..start + 512].copy_from_slice(&pieces[0].bytes()[..512]);
                    cuts.push(media);
                    order.push(*offset);
                }
                harness.perform(io);
            }
        }
        assert!(harness.engine.pop_reply().expect("the device is added").1.is_ok());
        assert_eq!((order.len(), order.first()), (2, Some(&at)));
        assert_eq!(in_force(&harness), FeatureSet::of([&HINTS, &TREES, &DEDUP]));
        for media in cuts {
            let again = import(&media, WITH_ALL);
            assert!(again.is_ok(), "second {second}: {:?}", again.err());
        }
    }
}

/// A spare that lacks a copy of its label waits for another change of the labels.
#[test]
fn the_only_label_of_a_device_is_not_overwritten_for_a_spare() {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, Layout::Mirror { copies: 2 }, 2), group(Class::Spare, Layout::Linear, 1)];
    let mut harness = Harness::with_groups(&[16; 3], groups, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let mut media = upgraded(&harness.media, WITH_ALL).media;
    let at = second_area(&media[0]);
    media[2][at..at + SECTOR_BYTES].fill(0);
    let before = sectors(&media[0]);
    let harness = import_with_bad(media.clone(), at as u64);
    assert!(sectors(&harness.media[0]) == before);
    // with two labels of the others, all are written
    let harness = import(&media, WITH_ALL).unwrap();
    assert!(sectors(&harness.media[0]) != before && in_force(&harness) == FeatureSet::of([&HINTS, &TREES, &DEDUP]));
}

/// A second label of another pool, by a later program, is from an earlier use of the device.
#[test]
fn a_second_label_of_another_pool_does_not_matter() {
    let mut image = golden("clean");
    let at = second_area(&image);
    let features = FeatureSet::of([&DEDUP]);
    for (pool, used) in [(millpond_format::PoolId([9; 16]), true), (label(&image, 0).pool, false)] {
        let later = Label { pool, features, ..label(&image, 0) }.encode();
        image[at..at + SECTOR_BYTES].copy_from_slice(&later);
        assert_eq!(import(from_ref(&image), FEATURES).is_ok(), used);
    }
}

/// Imports a pool of version 0.1.0, without features, whose first device gets a bad copy later on.
fn plain() -> Harness {
    let mut harness = Harness::with(&[16, 16], Layout::Linear, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    import(&harness.media, FEATURES).unwrap()
}

/// A scrub writes a wrong copy alone, in pools without features, too: the other label of the device
/// stays as it is, also if the write fails.
#[test]
fn a_scrub_writes_a_wrong_copy_alone() {
    for (second, writable) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut harness = plain();
        let before: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        let at = if second { second_area(&harness.media[0]) } else { 0 };
        harness.media[0][at..at + SECTOR_BYTES].fill(0x5a);
        if !writable {
            harness.unwritable = vec![(0, at as u64)];
        }
        harness.command(JobCommand::Scrub).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        let found = harness.engine.pool().unwrap().scrub.unwrap();
        assert_eq!((found.errors, found.repaired), (1, u64::from(writable)));
        let after: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        assert_eq!(after == before, writable, "the copy is as it was");
        assert!(after[0][usize::from(!second)] == before[0][usize::from(!second)] && after[1] == before[1], "others are written");
        // a description is stored once both labels are there
        let device = harness.engine.pool().unwrap().devices[1].id;
        harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
        harness.settle();
        assert_eq!(sectors(&harness.media[1]) != before[1], writable);
    }
}

/// A change of the labels waits for the copies that a scrub writes, and begins with those that are not
/// flushed yet: power may fail at each write.
#[test]
fn a_change_of_labels_beside_a_scrub_leaves_a_label() {
    for (second, described) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut tried = 0;
        'wait: for wait in 0..12 {
            let mut harness = plain();
            let at = if second { second_area(&harness.media[0]) } else { 0 };
            harness.media[0][at..at + SECTOR_BYTES].fill(0x5a);
            harness.start(Command::Job(JobCommand::Scrub));
            // what is in the cache of the first device: offset and bytes of its labels
            let mut cached: Vec<(usize, Vec<u8>)> = Vec::new();
            let (mut durable, mut found) = (harness.media[0].clone(), false);
            // label writes that take some turns
            let mut slow: Vec<(u64, Io)> = Vec::new();
            for turn in 0..120u64 {
                if turn == wait && described {
                    let device = harness.engine.pool().unwrap().devices[1].id;
                    harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
                } else if turn == wait {
                    let added = add_device(&mut harness);
                    harness.start(added);
                }
                harness.turn();
                while slow.first().is_some_and(|(since, _)| since + 4 < turn) {
                    let (_, io) = slow.remove(0);
                    if let IoKind::Write { offset, pieces } = &io.kind {
                        cached.push((*offset as usize, pieces[0].bytes()[..SECTOR_BYTES].to_vec()));
                    }
                    harness.perform(io);
                }
                for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                    match &io.kind {
                        IoKind::Write { offset, .. } if io.device.0 == 0 && [0, (16 << 20) - AREA_BYTES].contains(offset) => {
                            let same = |(_, io): &(u64, Io)| matches!(io.kind, IoKind::Write { offset: other, .. } if other == *offset);
                            assert!(!slow.iter().any(same), "a copy is written twice at once: either may be the last");
                            // before the scrub has found the copy, a change of the labels knows of none
                            found |= *offset as usize == at;
                            if !found {
                                continue 'wait;
                            }
                            // power fails: this one is torn, and those before it are lost
                            let mut torn = durable.clone();
                            torn[*offset as usize..*offset as usize + SECTOR_BYTES].fill(0xee);
                            let left = [0, second_area(&torn)].map(|at| Label::decode(&torn[at..at + SECTOR_BYTES]).is_ok());
                            assert!(left.contains(&true), "second {second}, after {wait} turns: no label is left");
                            slow.push((turn, io));
                            continue;
                        }
                        IoKind::Flush if io.device.0 == 0 => {
                            for (at, bytes) in cached.drain(..) {
                                durable[at..at + SECTOR_BYTES].copy_from_slice(&bytes);
                            }
                        }
                        _ => {}
                    }
                    harness.perform(io);
                }
            }
            harness.settle();
            assert_eq!(harness.engine.pool().unwrap().devices.len(), if described { 2 } else { 3 });
            let [first, last] = sectors(&harness.media[0]);
            assert!(first == last, "second {second}, after {wait} turns");
            tried += 1;
        }
        assert!(tried > 4, "second {second}: {tried} changes beside the scrub");
    }
}

/// A bad first copy is left behind by a change of the shape, and counts no more when it can be read
/// again.
#[test]
fn an_older_first_copy_does_not_count() {
    let mut harness = plain();
    let old = sectors(&harness.media[0])[0].clone();
    harness.media[0][..SECTOR_BYTES].fill(0x5a);
    harness.unwritable = vec![(0, 0)];
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    let added = add_device(&mut harness);
    harness.command(added).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    harness.command(Command::Close).unwrap();
    harness.media[0][..SECTOR_BYTES].copy_from_slice(&old);
    // the others are away
    let why = import(&harness.media[..1], FEATURES).err().unwrap();
    assert!(why.contains('3') || why.contains("lacks"), "{why}");
    let again = import(&harness.media, FEATURES).unwrap();
    assert_eq!(again.engine.pool().unwrap().devices.len(), 3);
}
