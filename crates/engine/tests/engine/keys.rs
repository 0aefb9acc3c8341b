//! The key table: in all areas of all devices, whatever is damaged or missing.

mod cuts;
mod devices;

use millpond_block::MemberId;
use millpond_engine::{
    Absent, Aim, Busy, Command, CommandError, Compression, DeviceCommand, GroupSpec, Invalid, JobCommand, KeyCommand, KeyTable, Layout,
    PoolId, PoolSpec, PoolState, Reply, Tuning,
};
use millpond_format::{
    AREA_BYTES, Derivation, ENCRYPTION, FEATURES, Feature, FeatureSet, KEY_PAGES, KeyId, KeyPage, KeyWrap, SECTOR_BYTES, WrapKind,
};

use crate::golden::golden;
use crate::harness::Harness;

/// Features of a program that has encryption.
pub static WITH_KEYS: &[Feature] = &[FEATURES[0], FEATURES[1], FEATURES[2], FEATURES[3], FEATURES[4], ENCRYPTION];
pub const POOL: PoolId = PoolId([7; 16]);
const MIRROR: Layout = Layout::Mirror { copies: 2 };

pub fn tuning() -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, features: WITH_KEYS, ..Tuning::default() }
}

pub fn spec(groups: Vec<GroupSpec>, features: bool) -> PoolSpec {
    PoolSpec { name: "pond".into(), id: POOL, groups, extent_bytes: None, features }
}

/// A pool with a key table.
pub fn pool(sizes_mib: &[usize], layout: Layout) -> Harness {
    Harness::create(sizes_mib, spec(vec![GroupSpec::data(layout)], true), tuning())
}

pub fn wrap(key: u64, number: u8, value: u8) -> KeyWrap {
    KeyWrap {
        key: KeyId(key),
        number,
        kind: WrapKind::KeyFile,
        derivation: Derivation::HkdfSha256,
        salt: [value; 16],
        nonce: [value; 12],
        domain: [key as u8; 8],
        wrapped: [value; 48],
    }
}

pub fn new_key(key: u64, value: u8) -> KeyCommand {
    KeyCommand::Put { wrap: Box::new(wrap(key, 0, value)), is_new: true }
}

pub fn put(key: u64, number: u8, value: u8) -> KeyCommand {
    KeyCommand::Put { wrap: Box::new(wrap(key, number, value)), is_new: false }
}

pub fn erase(key: u64) -> KeyCommand {
    KeyCommand::Erase { key: KeyId(key), number: None }
}

pub fn done(harness: &mut Harness, command: KeyCommand) {
    assert_eq!(harness.command(command), Ok(Reply::Done));
}

/// Returns keys, numbers and values of the wraps of a table.
pub fn values(table: &KeyTable) -> Vec<(u64, u8, u8)> {
    table.wraps.iter().map(|wrap| (wrap.key.0, wrap.number, wrap.wrapped[0])).collect()
}

pub fn known(harness: &Harness) -> Vec<(u64, u8, u8)> {
    values(&harness.engine.keys())
}

pub fn import(media: &[Vec<u8>]) -> Result<Harness, String> {
    import_degraded(media, false)
}

pub fn import_degraded(media: &[Vec<u8>], degraded: bool) -> Result<Harness, String> {
    Harness::import_with(media.to_vec(), Tuning { degraded, ..tuning() }, 1_000)
}

/// Returns the place of a page on a device.
pub fn place(image: &[u8], second: bool, number: u16) -> usize {
    let area = if second { image.len() as u64 / AREA_BYTES * AREA_BYTES - AREA_BYTES } else { 0 };
    (area + KeyPage::offset(number)) as usize
}

/// Returns a page on a device.
pub fn page(image: &[u8], second: bool, number: u16) -> Option<KeyPage> {
    let at = place(image, second, number);
    KeyPage::decode(&image[at..at + SECTOR_BYTES]).ok().filter(|page| (page.pool, page.number) == (POOL, number))
}

pub fn damage(image: &mut [u8], second: bool, number: u16) {
    let at = place(image, second, number);
    image[at + 100] ^= 1;
}

/// Returns whether both areas of a device have the same sound pages as the first area of another one.
pub fn has_table_of(image: &[u8], other: &[u8]) -> bool {
    (0..KEY_PAGES).all(|number| {
        [false, true].iter().all(|second| page(image, *second, number).is_some_and(|own| page(other, false, number) == Some(own)))
    })
}

/// Pages of an earlier pool with the same id on used devices, newer than any of the new one.
fn used(mib: usize) -> Vec<u8> {
    let mut image = vec![0x5a; mib << 20];
    for number in 0..KEY_PAGES {
        let old = KeyPage { pool: POOL, number, generation: 99, wraps: vec![wrap(666, 0, 66)] };
        for second in [false, true] {
            let at = place(&image, second, number);
            image[at..at + SECTOR_BYTES].copy_from_slice(&old.encode());
        }
    }
    image
}

#[test]
fn a_new_pool_has_an_empty_table_on_used_devices() {
    let media = vec![used(16), used(16)];
    let mut harness = Harness::begin_create(media, spec(vec![GroupSpec::data(MIRROR)], true), tuning());
    harness.settle();
    assert_eq!((harness.engine.state(), harness.engine.keys()), (&PoolState::Online, KeyTable::default()));
    for image in &harness.media {
        assert!((0..KEY_PAGES).all(|number| page(image, true, number).is_some_and(|page| page.wraps.is_empty())));
        assert!(has_table_of(image, &harness.media[0]));
    }
    assert_eq!(import(&harness.media).unwrap().engine.keys(), KeyTable::default());
    assert!(Harness::import(harness.media).is_err(), "a program without encryption refuses it");
}

/// INV-CRYPT-7: nothing of a wrap that was erased or replaced is left.
#[test]
fn a_change_is_in_all_areas_and_found_by_an_import() {
    let mut harness = pool(&[16, 16], MIRROR);
    done(&mut harness, new_key(5, 1));
    done(&mut harness, new_key(6, 2));
    done(&mut harness, put(5, 0, 3));
    done(&mut harness, put(5, 7, 4));
    let expected = vec![(5, 0, 3), (5, 7, 4), (6, 0, 2)];
    assert!(known(&harness) == expected && has_table_of(&harness.media[1], &harness.media[0]));
    harness.reopen();
    assert_eq!(known(&harness), expected);
    done(&mut harness, KeyCommand::Erase { key: KeyId(5), number: Some(0) });
    done(&mut harness, erase(6));
    harness.command(Command::Close).unwrap();
    for image in &harness.media {
        let gone = [wrap(5, 0, 3).wrapped, wrap(6, 0, 2).wrapped];
        assert!(!image.windows(48).any(|bytes| gone.iter().any(|old| bytes == old)), "an erased wrap is on a device");
    }
    assert_eq!(known(&import(&harness.media).unwrap()), [(5, 7, 4)]);
}

#[test]
fn a_pool_without_the_feature_has_no_table() {
    let mut harness = Harness::with(&[16], Layout::Linear, tuning());
    assert_eq!(harness.command(new_key(5, 1)), Err(CommandError::Invalid(Invalid::NoEncryption)));
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    harness.command(Command::Close).unwrap();
    assert!(page(&harness.media[0], false, 0).is_none() && page(&harness.media[0], true, 0).is_none());
    // commands that ask for all features do not know this one
    let mut harness = Harness::create(&[16], spec(vec![GroupSpec::data(Layout::Linear)], true), Tuning { features: FEATURES, ..tuning() });
    assert_eq!(harness.command(new_key(5, 1)), Err(CommandError::Invalid(Invalid::NoEncryption)));
}

/// Two commands that turn features on have the table written once, and changes wait until all labels
/// name the feature.
#[test]
fn an_upgrade_makes_a_table_on_used_space() {
    let mut harness = Harness::with(&[16, 16], MIRROR, tuning());
    harness.command(Command::Close).unwrap();
    let old = used(16);
    for image in &mut harness.media {
        for second in [false, true] {
            let (from, to) = (place(image, second, 0), place(image, second, KEY_PAGES - 1) + SECTOR_BYTES);
            image[from..to].copy_from_slice(&old[from..to]);
        }
    }
    let mut harness = import(&harness.media).unwrap();
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    harness.start(Command::Devices(DeviceCommand::TurnFeaturesOn));
    harness.start(Command::Keys(new_key(5, 1)));
    harness.settle();
    let replies: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).map(|(_, reply)| reply).collect();
    let on = FeatureSet::of([&FEATURES[2], &FEATURES[3], &ENCRYPTION]);
    let early = Err(CommandError::Invalid(Invalid::NoEncryption));
    assert_eq!(replies, [early, Ok(Reply::TurnedOn(on)), Ok(Reply::TurnedOn(FeatureSet::default()))]);
    assert!(harness.engine.keys() == KeyTable::default() && has_table_of(&harness.media[1], &harness.media[0]));
    assert_eq!(page(&harness.media[0], false, 9).unwrap().generation, 1);
    done(&mut harness, new_key(5, 1));
    harness.reopen();
    assert_eq!(known(&harness), [(5, 0, 1)]);
}

#[test]
fn a_golden_pool_can_be_upgraded() {
    let mut harness = import(&[golden("clean")]).unwrap();
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    done(&mut harness, new_key(5, 1));
    harness.audit();
    harness.reopen();
    assert_eq!(known(&harness), [(5, 0, 1)]);
}

/// Changes that come together are carried out one after the other.
#[test]
fn changes_do_not_overlap() {
    let mut harness = pool(&[16, 16], MIRROR);
    let commands = [new_key(5, 1), put(5, 0, 2), erase(5), put(5, 0, 3), new_key(5, 4), put(5, 1, 5)];
    commands.into_iter().for_each(|command| harness.start(Command::Keys(command)));
    harness.settle();
    let replies: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).collect();
    let refused: Vec<_> = replies.iter().filter(|(_, reply)| reply.is_err()).map(|(_, reply)| reply.clone()).collect();
    assert_eq!((replies.len(), refused), (6, vec![Err(CommandError::NotFound(Absent::Key))]));
    assert_eq!((known(&harness), page(&harness.media[1], true, 0).unwrap().generation), (vec![(5, 0, 4), (5, 1, 5)], 6));
}

/// Each copy alone is enough, and the others are written again.
#[test]
fn one_copy_of_a_page_is_enough() {
    let mut harness = pool(&[16, 16], MIRROR);
    done(&mut harness, new_key(5, 1));
    harness.command(Command::Close).unwrap();
    for left in 0..4 {
        let mut media = harness.media.clone();
        for copy in (0..4).filter(|copy| *copy != left) {
            damage(&mut media[copy / 2], copy % 2 == 1, 0);
        }
        let again = import(&media).unwrap();
        assert_eq!((known(&again), again.engine.keys().unknown.len()), (vec![(5, 0, 1)], 0), "copy {left}");
        assert!(again.media.iter().all(|image| has_table_of(image, &harness.media[0])), "copy {left}");
        let reader = Harness::import_with(media.clone(), Tuning { read_only: true, ..tuning() }, 1_000).unwrap();
        assert!(known(&reader) == [(5, 0, 1)] && reader.media == media, "copy {left}, read-only");
    }
}

/// An area that cannot be read as a whole is read page by page.
#[test]
fn a_bad_sector_hides_one_page() {
    let mut harness = pool(&[16], Layout::Linear);
    for key in 1..=u64::from(KEY_PAGES) {
        done(&mut harness, new_key(key, 1));
    }
    harness.command(Command::Close).unwrap();
    (0..KEY_PAGES).for_each(|number| damage(&mut harness.media[0], true, number));
    let mut again = Harness::begin_import(harness.media.clone(), tuning(), 1_000);
    again.bad = Some((0, place(&harness.media[0], false, 3) as u64));
    again.settle();
    let table = again.engine.keys();
    assert_eq!((again.engine.state(), table.unknown.clone(), table.wraps.len()), (&PoolState::Online, vec![3], usize::from(KEY_PAGES) - 1));
}

/// A page without a copy is reported, and stays as it is on the devices: another one may have it.
#[test]
fn a_page_without_a_copy_is_unknown_and_not_written() {
    let mut harness = pool(&[16, 16], MIRROR);
    done(&mut harness, new_key(5, 1));
    done(&mut harness, new_key(6, 2));
    harness.command(Command::Close).unwrap();
    let whole = harness.media.clone();
    harness.media.iter_mut().for_each(|image| [false, true].into_iter().for_each(|second| damage(image, second, 0)));
    let mut harness = import(&harness.media).unwrap();
    assert_eq!((known(&harness), harness.engine.keys().unknown), (vec![(6, 0, 2)], vec![0]));
    let refused = Err(CommandError::Busy(Busy::KeysUnknown));
    assert_eq!((harness.command(put(5, 0, 9)), harness.command(erase(5))), (refused.clone(), refused));
    done(&mut harness, new_key(7, 3));
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    let found = harness.engine.pool().unwrap().scrub.unwrap();
    assert_eq!((found.errors, found.repaired), (1, 0));
    harness.reopen();
    assert_eq!((known(&harness), harness.engine.keys().unknown), (vec![(6, 0, 2), (7, 0, 3)], vec![0]));
    for (image, before) in harness.media.iter_mut().zip(&whole) {
        for second in [false, true] {
            let at = place(image, second, 0);
            assert_eq!(image[at + 100], before[at + 100] ^ 1);
            image[at + 100] ^= 1;
        }
    }
    assert_eq!(known(&import(&harness.media).unwrap()), [(5, 0, 1), (6, 0, 2), (7, 0, 3)]);
}

#[test]
fn a_scrub_writes_damaged_and_old_pages_again() {
    let mut harness = pool(&[16, 16], MIRROR);
    done(&mut harness, new_key(5, 1));
    let old = harness.media[1].clone();
    done(&mut harness, put(5, 0, 2));
    damage(&mut harness.media[0], true, 0);
    [false, true].into_iter().for_each(|second| damage(&mut harness.media[0], second, 40));
    let at = place(&old, false, 0);
    harness.media[1][at..at + SECTOR_BYTES].copy_from_slice(&old[at..at + SECTOR_BYTES]);
    harness.command(JobCommand::Scrub).unwrap();
    // a change waits until the copies were compared
    harness.start(Command::Keys(new_key(6, 3)));
    harness.finish_jobs();
    assert_eq!(harness.engine.pop_reply().map(|(_, reply)| reply), Some(Ok(Reply::Done)));
    let found = harness.engine.pool().unwrap();
    assert_eq!(found.scrub.map(|found| (found.errors, found.repaired)), Some((4, 4)));
    assert_eq!(found.devices.iter().map(|device| (device.errors, device.repaired)).collect::<Vec<_>>(), [(3, 3), (1, 1)]);
    assert!(has_table_of(&harness.media[0], &harness.media[1]) && has_table_of(&harness.media[1], &harness.media[1]));
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().scrub.map(|found| found.errors), Some(0));
    harness.reopen();
    assert_eq!(known(&harness), [(5, 0, 2), (6, 0, 3)]);
}

/// The table is not part of what a rewind goes back to.
#[test]
fn a_rewind_and_a_rebuild_keep_the_newest_table() {
    let mut harness = pool(&[16], Layout::Linear);
    harness.volume("disk0", 1 << 20, Compression::Off);
    harness.command(Command::Checkpoint).unwrap();
    done(&mut harness, new_key(5, 1));
    harness.volume("disk1", 1 << 20, Compression::Off);
    harness.command(Command::Checkpoint).unwrap();
    done(&mut harness, put(5, 0, 2));
    damage(&mut harness.media[0], false, 0);
    let points = Harness::survey_with(&harness.media, tuning()).unwrap().points;
    let oldest = points.iter().filter(|point| point.is_usable()).map(|point| point.id).min().unwrap();
    for aim in [Aim::Rewind, Aim::Rebuild, Aim::To(oldest)] {
        let again = Harness::import_with(harness.media.clone(), Tuning { aim, ..tuning() }, 1_000).unwrap();
        assert_eq!(known(&again), [(5, 0, 2)], "{aim:?}");
        assert!(has_table_of(&again.media[0], &harness.media[0]) || page(&again.media[0], false, 0) == page(&again.media[0], true, 0));
    }
}

/// A pool that stops fails the commands that change the table, those that wait, too.
#[test]
fn changes_fail_when_the_pool_stops() {
    let mut harness = pool(&[16], Layout::Linear);
    harness.unwritable = vec![(0, place(&harness.media[0], false, 0) as u64)];
    [new_key(5, 1), new_key(6, 1)].into_iter().for_each(|command| harness.start(Command::Keys(command)));
    harness.settle();
    let replies: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).map(|(_, reply)| reply).collect();
    assert!(replies.len() == 2 && replies.iter().all(|reply| matches!(reply, Err(CommandError::Faulted(_)))), "{replies:?}");
    assert!(matches!(harness.engine.state(), PoolState::Faulted(why) if why.to_string().contains("key table")));
    harness.unwritable.clear();
    assert_eq!(known(&import(&harness.media).unwrap()), []);
}

/// A device that is not part of the pool any more gets no wraps.
#[test]
fn a_removed_device_gets_no_changes() {
    let mut harness = Harness::create(&[32, 32, 32], spec(vec![GroupSpec::data(Layout::Linear)], true), tuning());
    done(&mut harness, new_key(5, 1));
    harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 2);
    // the caller overwrites both areas when the device is released
    let size = harness.media[1].len();
    harness.media[1][..AREA_BYTES as usize].fill(0);
    harness.media[1][size - AREA_BYTES as usize..].fill(0);
    done(&mut harness, put(5, 0, 2));
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    assert!(harness.media[1][..AREA_BYTES as usize].iter().chain(&harness.media[1][size - AREA_BYTES as usize..]).all(|byte| *byte == 0));
    harness.media.remove(1);
    assert_eq!(known(&import(&harness.media).unwrap()), [(5, 0, 2)]);
}
