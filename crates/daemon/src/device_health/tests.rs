//! A slow device is named, and none of a healthy pool.

use millpond_api::{DeviceCap, DeviceClass, DeviceIo, DeviceLayout};
use millpond_device::Latencies;

use super::*;

/// Devices with these counts of reads and writes, each of so many microseconds.
fn devices(of: &[(&str, u64, u64)]) -> Vec<Device> {
    let device = |(path, count, micros): &(&str, u64, u64)| {
        let mut times = Latencies::default();
        // a spread of a factor of two, as there always is
        (0..*count).for_each(|nth| times.count((micros + micros * (nth % 10) / 10) * 1000));
        let io = DeviceIo { read_times: times.counts(), write_times: times.counts(), ..DeviceIo::default() };
        Device {
            id: String::new(),
            path: (*path).to_owned(),
            serial: None,
            was: None,
            class: DeviceClass::Data,
            layout: DeviceLayout::Mirror,
            state: DeviceState::Online,
            size: 0,
            allocated: 0,
            free: 0,
            errors: 0,
            repaired: 0,
            sector: 512,
            direct: true,
            limit: DeviceCap::default(),
            health: DeviceHealth::Other(String::new()),
            health_reason: None,
            io,
        }
    };
    of.iter().map(device).collect()
}

/// Returns the devices in trouble after another window.
fn after(conditions: &mut DevicesHealth, at: &mut Instant, devices: &[Device]) -> Vec<String> {
    *at += WINDOW;
    conditions.look(devices, *at);
    unwell(conditions, devices)
}

fn unwell(conditions: &DevicesHealth, devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.path.clone()).filter(|path| conditions.of(path).0 != DeviceHealth::Ok).collect()
}

#[test]
fn the_slow_one_is_named_until_it_is_no_more() {
    let (mut conditions, mut at) = (DevicesHealth::default(), Instant::now());
    after(&mut conditions, &mut at, &devices(&[("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]));
    let now = devices(&[("a", 1000, 5000), ("b", 1000, 90_000), ("c", 1000, 7000)]);
    // half a window is too short to judge
    conditions.look(&now, at + WINDOW / 2);
    assert!(unwell(&conditions, &now).is_empty());
    assert_eq!(after(&mut conditions, &mut at, &now), ["b"]);
    let (health, reason) = conditions.of("b");
    assert!(
        health == DeviceHealth::Slow && reason.as_ref().is_some_and(|r| r.starts_with("half of its reads take longer than")),
        "{reason:?}"
    );
    assert_eq!([conditions.of("a").0, conditions.of("c").0], [DeviceHealth::Ok, DeviceHealth::Ok]);
    // an idle minute changes nothing
    assert_eq!(after(&mut conditions, &mut at, &now), ["b"]);
    assert_eq!(conditions.of("b").0, DeviceHealth::Slow);
    let mut quicker = now.clone();
    let fast = devices(&[("b", 3000, 6000)]).remove(0).io;
    quicker.iter_mut().for_each(|device| {
        let grown = |then: &[u64]| {
            let longest = then.len().max(fast.read_times.len());
            (0..longest).map(|at| then.get(at).unwrap_or(&0) + fast.read_times.get(at).unwrap_or(&0)).collect::<Vec<_>>()
        };
        (device.io.read_times, device.io.write_times) = (grown(&device.io.read_times), grown(&device.io.write_times));
    });
    after(&mut conditions, &mut at, &quicker);
    assert_eq!(conditions.of("b"), (DeviceHealth::Ok, None));
}

#[test]
fn a_healthy_pool_names_none() {
    for of in [
        [("a", 1000, 5000), ("b", 1000, 9000), ("c", 1000, 15_000)], // different, but by less than the limit
        [("a", 1000, 20), ("b", 1000, 900), ("c", 1000, 30)],        // below what turns make of it
        [("a", 10, 5000), ("b", 10, 500_000), ("c", 10, 5000)],      // too few to say
        [("a", 0, 1), ("b", 1000, 500_000), ("c", 0, 1)],            // nobody to compare with
    ] {
        let (mut conditions, mut at) = (DevicesHealth::default(), Instant::now());
        after(&mut conditions, &mut at, &devices(&[("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]));
        assert!(after(&mut conditions, &mut at, &devices(&of)).is_empty(), "{of:?}");
        assert!(["a", "b", "c"].iter().all(|path| conditions.of(path).0 == DeviceHealth::Ok), "{of:?}");
    }
}

#[test]
fn another_device_at_the_same_path_is_another_one() {
    let (mut conditions, mut at) = (DevicesHealth::default(), Instant::now());
    let with_id = |id: &str, errors: u64| {
        let mut now = devices(&[("a", 0, 1), ("b", 0, 1)]);
        (now[0].id, now[0].errors) = (id.to_owned(), errors);
        now
    };
    after(&mut conditions, &mut at, &with_id("0001", 0));
    conditions.look(&with_id("0001", 5), at);
    assert_eq!(conditions.of("0001").0, DeviceHealth::Failing);
    // a new disk in the place of the old one
    conditions.look(&with_id("0002", 0), at);
    let mut now = with_id("0002", 0);
    conditions.tell(&mut now);
    assert_eq!(now[0].health, DeviceHealth::Ok);
}

#[test]
fn devices_of_another_class_are_no_peers() {
    let (mut conditions, mut at) = (DevicesHealth::default(), Instant::now());
    let mut now = devices(&[("a", 0, 1), ("b", 0, 1)]);
    after(&mut conditions, &mut at, &now);
    now = devices(&[("a", 1000, 100), ("b", 1000, 90_000)]);
    now[0].class = DeviceClass::Special;
    assert!(after(&mut conditions, &mut at, &now).is_empty());
}

#[test]
fn errors_that_grow_are_remembered_for_a_day() {
    let (mut conditions, mut at) = (DevicesHealth::default(), Instant::now());
    let mut now = devices(&[("a", 0, 1), ("b", 0, 1)]);
    now[0].errors = 7; // from before the first look
    assert!(after(&mut conditions, &mut at, &now).is_empty());
    now[1].errors = 2;
    // reported at once, not at the end of the window
    conditions.look(&now, at + Duration::from_secs(5));
    assert_eq!(conditions.of("b"), (DeviceHealth::Failing, Some("2 errors in the last 24 hours".to_owned())));
    assert_eq!(after(&mut conditions, &mut at, &now), ["b"]);
    now[1].errors = 3;
    assert_eq!(after(&mut conditions, &mut at, &now), ["b"]);
    assert_eq!(conditions.of("b"), (DeviceHealth::Failing, Some("3 errors in the last 24 hours".to_owned())));
    assert_eq!(conditions.of("a"), (DeviceHealth::Ok, None));
    at += MEMORY;
    after(&mut conditions, &mut at, &now);
    assert_eq!(conditions.of("b"), (DeviceHealth::Ok, None));
    // a removed device is forgotten
    now[1].errors = 9;
    after(&mut conditions, &mut at, &now);
    now.pop();
    after(&mut conditions, &mut at, &now);
    assert_eq!(conditions.of("b").0, DeviceHealth::Ok);
}

/// A device of a later version is no device to fill again: the user reads why.
#[test]
fn a_device_that_a_later_version_wrote_is_not_offered_as_a_replacement() {
    let mut health = DevicesHealth::default();
    let found = |newer| {
        let device = Found { called: "device a".to_owned(), path: PathBuf::from("/dev/a"), newer };
        BTreeMap::from([("7".to_owned(), device)])
    };
    let mut news = |newer| health.found_again("tank", &found(newer)).into_iter().map(|(_, message)| message).collect::<Vec<_>>();
    let [newer] = news(Some(FormatError::Version(9))).try_into().expect("one message");
    assert!(newer.contains("newer version of Millpond (format version 9") && !newer.contains("pool replace"), "{newer}");
    assert_eq!(news(Some(FormatError::Version(9))), [] as [String; 0], "once");
    assert_eq!(health.returned(), [PathBuf::from("/dev/a")]);
    assert!(health.found_again("tank", &BTreeMap::new()).is_empty());
    let [older] = health.found_again("tank", &found(None)).try_into().expect("one message");
    assert!(older.1.contains("millpond pool replace tank 7 /dev/a"), "{older:?}");
    // another device at the path is news
    let [newer] = health.found_again("tank", &found(Some(FormatError::Version(9)))).try_into().expect("one message");
    assert!(newer.1.contains("newer version"), "{newer:?}");
}
