//! Features: pools that a later program made or upgraded, and the upgrade itself under power cuts.

use std::slice::from_ref;

use millpond_block::{IoKind, MemberId, Op};
use millpond_engine::{
    Aim, Busy, Class, Command, CommandError, Compression, DeviceCommand, GroupSpec, Layout, MemberState, PoolSpec, PoolState, Reply,
    Target, Tuning,
};
use millpond_format::testing::{Kind, put_checksum_right};
use millpond_format::{AREA_BYTES, BASES, DeviceNote, FEATURES, FORWARDS, Feature, FeatureKind, FeatureSet, Label, PoolId, SECTOR_BYTES};

use crate::golden::{golden, relabel, second_area};
use crate::harness::Harness;

const fn feature(name: &'static str, kind: FeatureKind, bit: u8) -> Feature {
    Feature { name, kind, bit, since: "9.4.0", automatic: false, meaning: "A feature of a later version.", closes: "Older ones lack it." }
}

pub const HINTS: Feature = feature("hints", FeatureKind::Compat, 5);
pub const TREES: Feature = feature("trees", FeatureKind::RoCompat, 6);
pub const DEDUP: Feature = feature("dedup", FeatureKind::Incompat, 7);

/// Features of programs of later versions.
static WITH_HINTS: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS];
static WITH_TREES: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS, TREES];
pub static WITH_ALL: &[Feature] = &[FEATURES[0], FEATURES[1], HINTS, TREES, DEDUP];

pub fn tuning(features: &'static [Feature]) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, features, ..Tuning::default() }
}

pub fn import(media: &[Vec<u8>], features: &'static [Feature]) -> Result<Harness, String> {
    Harness::import_with(media.to_vec(), tuning(features), 1)
}

pub fn label(image: &[u8], at: usize) -> Label {
    Label::decode_knowing(&image[at..at + SECTOR_BYTES], WITH_ALL).unwrap()
}

/// Returns the labels of a device as they are on the medium.
pub fn sectors(image: &[u8]) -> [Vec<u8>; 2] {
    [0, second_area(image)].map(|at| image[at..at + SECTOR_BYTES].to_vec())
}

/// Returns the features in force that do not follow from the shape.
pub fn in_force(harness: &Harness) -> FeatureSet {
    harness.engine.pool().unwrap().features.without(FeatureSet::of(FEATURES))
}

/// Turns on all features that a program knows, in a pool of another one.
pub fn upgraded(media: &[Vec<u8>], features: &'static [Feature]) -> Harness {
    let mut harness = import(media, features).unwrap();
    assert_eq!(in_force(&harness), FeatureSet::default(), "an import turns nothing on");
    let on = FeatureSet::of(features).without(FeatureSet::of(FEATURES));
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(on)));
    assert_eq!(in_force(&harness), on);
    harness.command(Command::Close).unwrap();
    harness
}

#[test]
fn a_second_upgrade_changes_nothing() {
    let mut harness = Harness::import(vec![golden("clean")]).unwrap();
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(FeatureSet::of([&BASES, &FORWARDS]))));
    let before = harness.engine.labels_in_force();
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(FeatureSet::default())));
    assert_eq!((harness.engine.labels_in_force(), in_force(&harness)), (before, FeatureSet::default()));
}

#[test]
fn a_new_pool_has_all_features_if_that_is_wanted() {
    let spec = PoolSpec {
        name: "pond".into(),
        id: PoolId([7; 16]),
        groups: vec![GroupSpec::data(Layout::Mirror { copies: 2 })],
        extent_bytes: None,
        features: true,
    };
    let mut harness = Harness::create(&[16, 16], spec, tuning(WITH_ALL));
    let all = FeatureSet::of([&HINTS, &TREES, &DEDUP]);
    assert_eq!(in_force(&harness), all);
    assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Ok(Reply::TurnedOn(FeatureSet::default())));
    for image in &harness.media {
        for at in [0, second_area(image)] {
            assert_eq!(label(image, at).features, all);
        }
    }
    assert!(import(&harness.media, FEATURES).err().unwrap().contains("dedup (since 9.4.0)"));
    assert_eq!(in_force(&import(&harness.media, WITH_ALL).unwrap()), all);
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
