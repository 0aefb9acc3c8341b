use super::*;

fn device(whole_pages: bool) -> SimDevice {
    let geometry = DeviceGeometry { size: 64 * PAGE as u64, logical_sector: 512, physical_sector: 4096 };
    SimDevice::new(geometry, Profile { whole_pages, erased: Erased::Zero }, 1)
}

fn page(value: u8) -> Page {
    Rc::new([value; PAGE])
}

fn write(device: &mut SimDevice, no: WriteNo, at: usize, value: u8) {
    device.begin_write(no, at, vec![page(value)]);
    device.finish(no);
}

fn read(device: &SimDevice, at: usize) -> Vec<u8> {
    let mut out = vec![0; PAGE];
    device.read(at, &mut out, &mut Rng::new(0));
    out
}

#[test]
fn a_flush_covers_what_had_completed_when_it_was_submitted_and_nothing_more() {
    let mut d = device(true);
    write(&mut d, 1, 0, 1);
    d.begin_write(2, 1, vec![page(2)]);
    let mark = d.flush_mark();
    d.finish(2);
    write(&mut d, 3, 0, 3);
    d.finish_flush(mark);
    assert_eq!(d.unflushed(), BTreeSet::from([2, 3]));
    d.power_cut(&Survival::Nothing, &mut Rng::new(5));
    assert_eq!(read(&d, 0), [1; PAGE]);
    assert_eq!(read(&d, 1), [0; PAGE]);
}

#[test]
fn a_power_cut_may_leave_any_version_of_a_page() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let mut d = device(true);
        write(&mut d, 1, 0, 1);
        d.finish_flush(d.flush_mark());
        write(&mut d, 2, 0, 2);
        write(&mut d, 3, 0, 3);
        d.begin_write(4, 0, vec![page(4)]);
        d.power_cut(&Survival::Each(20), &mut Rng::new(seed));
        let bytes = read(&d, 0);
        assert!(bytes.iter().all(|b| *b == bytes[0]), "torn although whole");
        seen.insert(bytes[0]);
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3, 4]));
}

#[test]
fn pages_tear_at_sectors_where_the_device_tears() {
    let mut torn = 0;
    for seed in 0..200 {
        let mut d = device(false);
        write(&mut d, 1, 0, 1);
        d.power_cut(&Survival::Each(50), &mut Rng::new(seed));
        let bytes = read(&d, 0);
        assert!(bytes.chunks(SECTOR).all(|s| s.iter().all(|b| *b == s[0])));
        torn += u32::from(bytes.iter().any(|b| *b != bytes[0]));
    }
    assert!(torn > 10, "{torn}");
}

#[test]
fn a_kill_keeps_what_completed_and_loses_nothing_else() {
    let mut landed = 0;
    for seed in 0..50 {
        let mut d = device(true);
        write(&mut d, 1, 0, 1);
        d.begin_write(2, 1, vec![page(2)]);
        d.kill(&mut Rng::new(seed));
        assert_eq!(read(&d, 0), [1; PAGE]);
        landed += u32::from(read(&d, 1) == [2; PAGE]);
        assert!(!d.unflushed().is_empty(), "a kill is not a flush");
    }
    assert!((5..45).contains(&landed), "{landed}");
}

#[test]
fn a_chosen_set_survives_exactly() {
    let mut d = device(true);
    for no in 1..=4 {
        write(&mut d, no, no as usize, no as u8);
    }
    d.power_cut(&Survival::Set { keep: BTreeSet::from([1, 3]), torn: None }, &mut Rng::new(1));
    assert_eq!([1, 2, 3, 4].map(|at| read(&d, at)[0]), [1, 0, 3, 0]);
}

#[test]
fn a_late_discard_erases_what_was_written_meanwhile() {
    let mut d = device(true);
    d.begin_discard(1, 0, 2);
    write(&mut d, 2, 0, 9);
    d.finish(1);
    assert_eq!(read(&d, 0)[0], 0);
}

#[test]
fn rot_changes_one_written_page() {
    let mut d = device(true);
    write(&mut d, 1, 5, 7);
    assert!(d.rot(&mut Rng::new(3)).is_some());
    assert_ne!(read(&d, 5), [7; PAGE]);
    assert!(device(true).rot(&mut Rng::new(3)).is_none());
}

#[test]
fn a_page_cache_shows_what_a_failed_flush_dropped_until_it_is_dropped_itself() {
    let dropped = |seed: u64| {
        let mut d = device(true).buffered();
        write(&mut d, 1, 0, 1);
        d.drop_unflushed(d.flush_mark(), &mut Rng::new(seed));
        (d.only_shown() > 0).then_some(d)
    };
    let d = (0..20).find_map(dropped).expect("one in two is dropped");
    let after = |act: &dyn Fn(&mut SimDevice)| {
        let mut d = d.clone();
        act(&mut d);
        read(&d, 0)[0]
    };
    assert_eq!(after(&|_| ()), 1);
    assert_eq!(after(&|d| d.finish_flush(d.flush_mark())), 1, "a later flush says nothing of it");
    assert_eq!(after(&|d| d.power_cut(&Survival::Completed, &mut Rng::new(1))), 0);
    assert_eq!(after(&|d| d.forget()), 0);
    assert_eq!(after(&|d| d.evict(100, &mut Rng::new(1))), 0);
    // A page that is written again is dirty again.
    let rewritten = |d: &mut SimDevice| {
        write(d, 2, 0, 2);
        d.write_back();
        d.forget();
    };
    assert_eq!(after(&rewritten), 2);
}
