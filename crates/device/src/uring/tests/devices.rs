use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use millpond_block::{Buf, BufSlice, DeviceError, DeviceSlot, Io, IoDone, IoId, IoKind, PAGE};

use crate::file::tests::once_free;
use crate::{Event, HostDevice, MemoryDevice, Monotonic, OpenOptions, Ring, Wait};
use millpond_testing::Random;

const FIRST: DeviceSlot = DeviceSlot(0);

fn open(path: &Path, size: u64, direct: bool) -> HostDevice {
    once_free(|| HostDevice::open(path, OpenOptions { create_size: Some(size), direct, read_only: false })).expect("open")
}

fn piece(byte: u8, bytes: usize) -> BufSlice {
    let mut buf = Buf::zeroed(bytes);
    buf.bytes_mut().fill(byte);
    BufSlice::new(buf, 0..bytes)
}

/// Runs operations until they complete and returns the completions by id.
fn run(ring: &mut Ring, kinds: Vec<IoKind>) -> Vec<IoDone> {
    let count = kinds.len();
    for (id, kind) in kinds.into_iter().enumerate() {
        ring.submit(Io { id: IoId(id as u64), device: FIRST, kind, urgent: false });
    }
    let mut done = BTreeMap::new();
    while done.len() < count {
        ring.turn(Wait::AtMost(Duration::from_secs(10))).expect("turn");
        while let Some(event) = ring.pop() {
            let Event::Io(io) = event else { panic!("unexpected {event:?}") };
            assert!(done.insert(io.id, io).is_none(), "answered twice");
        }
    }
    done.into_values().collect()
}

fn read(offset: u64, length: usize) -> IoKind {
    let mut buf = Buf::zeroed(length);
    buf.bytes_mut().fill(0xee);
    IoKind::Read { offset, length, buf }
}

fn one(ring: &mut Ring, kind: IoKind) -> IoDone {
    run(ring, vec![kind]).pop().expect("one")
}

/// Random operations return the same bytes as the device in memory.
fn twin(device: HostDevice, instant: bool) {
    let size = device.geometry().size;
    let mut ring = Ring::new().expect("ring");
    assert_eq!(ring.add_device(device).expect("room"), FIRST);
    ring.devices.set_instant(FIRST, instant);
    let mut memory = MemoryDevice::new(size);
    let mut generator = Random::new(1);
    let mut random = |below| generator.below(below);
    let pages = size / PAGE as u64;
    for round in 0..300u64 {
        let first = random(pages);
        let count = (1 + random(24)).min(pages - first);
        let (offset, length) = (first * PAGE as u64, count as usize * PAGE);
        match random(8) {
            0..3 => {
                let mut pieces = Vec::new();
                let mut left = length;
                while left > 0 {
                    let bytes = ((1 + random(4)) as usize * PAGE).min(left);
                    pieces.push(piece(1 + random(255) as u8, bytes));
                    left -= bytes;
                }
                let shadow = Io { id: IoId(0), device: FIRST, kind: IoKind::Write { offset, pieces: pieces.clone() }, urgent: false };
                assert_eq!(memory.execute(shadow).result, Ok(()));
                assert_eq!(one(&mut ring, IoKind::Write { offset, pieces }).result, Ok(()), "round {round}");
            }
            3 => {
                // The content of a discarded range is undefined, so it is written before it is read
                // again.
                assert_eq!(one(&mut ring, IoKind::Discard { offset, length: length as u64 }).result, Ok(()));
                let pieces = vec![piece(round as u8, length)];
                memory.write(offset, pieces[0].bytes());
                assert_eq!(one(&mut ring, IoKind::Write { offset, pieces }).result, Ok(()));
            }
            4 => assert_eq!(one(&mut ring, IoKind::Flush).result, Ok(())),
            5 => {
                let zero = || IoKind::Zero { offset, length: length as u64 };
                let shadow = Io { id: IoId(0), device: FIRST, kind: zero(), urgent: false };
                assert_eq!(memory.execute(shadow).result, Ok(()));
                assert_eq!(one(&mut ring, zero()).result, Ok(()), "round {round}");
            }
            _ => {
                let done = one(&mut ring, read(offset, length));
                assert_eq!(done.result, Ok(()));
                let mut want = vec![0; length];
                memory.read(offset, &mut want);
                assert!(done.buf.expect("buffer").bytes()[..length] == want, "round {round}: {length} bytes at {offset}");
            }
        }
    }
}

fn over(device: HostDevice) -> Ring {
    let mut ring = Ring::new().expect("ring");
    assert_eq!(ring.add_device(device).expect("room"), FIRST);
    ring
}

/// A file without space, and ranges of various lengths.
#[test]
fn zeros_take_space_of_the_host() {
    use std::os::unix::fs::MetadataExt;
    for (place, direct) in [("/dev/shm", false), ("/tmp", false), ("/tmp", true)] {
        if !Path::new(place).is_dir() {
            eprintln!("SKIPPED: no {place}");
            continue;
        }
        let dir = tempfile::tempdir_in(place).expect("directory");
        let path = dir.path().join("d");
        let mut ring = over(open(&path, 16 << 20, direct));
        let taken = || std::fs::metadata(&path).expect("metadata").blocks() * 512;
        assert!(taken() < 1 << 20);
        for (offset, length) in [(4 << 20, 4 << 20), (9 << 20, 4096), (10 << 20, (64 << 10) + 4096)] {
            assert_eq!(one(&mut ring, IoKind::Zero { offset, length }).result, Ok(()), "{place}");
        }
        assert_eq!(one(&mut ring, IoKind::Flush).result, Ok(()));
        assert!((4 << 20..6 << 20).contains(&taken()), "{} in {place}", taken());
        let space = ring.remove_device(FIRST).expect("the device").take_space();
        assert!(space.has(&(4 << 20..8 << 20)) && !space.has(&(0..4 << 20)), "{place}: {space:?}");
        let past = IoKind::Zero { offset: 16 << 20, length: 4096 };
        let mut ring = over(open(&path, 16 << 20, direct));
        assert!(one(&mut ring, past).result.is_err());
    }
}

#[test]
fn files_behave_like_memory() {
    let places = ["/dev/shm", "/tmp"].map(|place| [(false, false), (false, true), (true, false), (true, true)].map(|how| (place, how)));
    for (place, (direct, instant)) in places.into_iter().flatten() {
        if !Path::new(place).is_dir() {
            eprintln!("SKIPPED: no {place}");
            continue;
        }
        let dir = tempfile::tempdir_in(place).expect("directory");
        let device = open(&dir.path().join("d"), 2 << 20, direct);
        if direct && !device.direct() {
            eprintln!("SKIPPED: no O_DIRECT in {place}");
            continue;
        }
        twin(device, instant);
    }
}

#[test]
fn block_devices_behave_like_memory() {
    for (sector, direct) in [(512, false), (512, true), (4096, false), (4096, true)] {
        let Some(disk) = crate::file::tests::Loop::new(4 << 20, sector) else { return };
        twin(open(&disk.device, 4 << 20, direct), false);
    }
}

#[test]
fn more_pieces_than_one_request_carries() {
    for (direct, instant, count) in [(false, false, 2500usize), (true, false, 2500), (false, true, 250), (true, true, 250)] {
        let dir = tempfile::tempdir().expect("directory");
        let mut ring = Ring::new().expect("ring");
        ring.add_device(open(&dir.path().join("d"), 16 << 20, direct)).expect("room");
        ring.devices.set_instant(FIRST, instant);
        let pieces: Vec<BufSlice> = (0..count).map(|number| piece(number as u8, PAGE)).collect();
        assert_eq!(one(&mut ring, IoKind::Write { offset: 4096, pieces }).result, Ok(()));
        let done = one(&mut ring, read(4096, (count + 1) * PAGE));
        let buf = done.buf.expect("buffer");
        for (number, page) in buf.bytes()[..count * PAGE].chunks(PAGE).enumerate() {
            assert!(page.iter().all(|&byte| byte == number as u8), "page {number}");
        }
        assert!(buf.bytes()[count * PAGE..(count + 1) * PAGE].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn reads_past_the_end_are_zero_filled() {
    for direct in [false, true] {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("d");
        let device = open(&path, 64 << 10, direct);
        let mut ring = Ring::new().expect("ring");
        ring.add_device(device).expect("room");
        assert_eq!(one(&mut ring, IoKind::Write { offset: 0, pieces: vec![piece(7, 64 << 10)] }).result, Ok(()));
        // Another program truncates the file, in the middle of a page.
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(10_000).expect("cut");
        for (offset, length) in [(0, 16 << 10), (8192, 4096), (8192, 8192), (40 << 10, 4096), (1 << 30, 4096)] {
            let done = one(&mut ring, read(offset, length));
            assert_eq!(done.result, Ok(()), "{length} at {offset}");
            for (index, byte) in done.buf.expect("buffer").bytes()[..length].iter().enumerate() {
                let want = if offset + (index as u64) < 10_000 { 7 } else { 0 };
                assert_eq!(*byte, want, "direct {direct}, byte {index} of {length} at {offset}");
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_answered() {
    let dir = tempfile::tempdir().expect("directory");
    let mut ring = Ring::new().expect("ring");
    ring.add_device(open(&dir.path().join("d"), 64 << 10, false)).expect("room");
    let invalid = Err(DeviceError::Failed(22));
    let kinds = vec![
        IoKind::Write { offset: 60 << 10, pieces: vec![piece(1, 8192)] },
        IoKind::Write { offset: u64::MAX - 4095, pieces: vec![piece(1, 8192)] },
        IoKind::Write { offset: 0, pieces: vec![] },
        IoKind::Discard { offset: 0, length: 1 << 40 },
        IoKind::Read { offset: 0, length: 8192, buf: Buf::zeroed(4096) },
        IoKind::Read { offset: u64::MAX - 100, length: 4096, buf: Buf::zeroed(4096) },
    ];
    for (index, done) in run(&mut ring, kinds).into_iter().enumerate() {
        assert_eq!(done.result, invalid, "operation {index}");
        assert_eq!(done.buf.is_some(), index >= 4, "a read gives its buffer back");
    }
    ring.submit(Io { id: IoId(9), device: DeviceSlot(3), kind: IoKind::Flush, urgent: false });
    assert!(matches!(ring.pop(), Some(Event::Io(IoDone { id: IoId(9), result: Err(DeviceError::Gone), .. }))));
    let meta = std::fs::metadata(dir.path().join("d")).expect("metadata");
    assert_eq!(meta.len(), 64 << 10, "nothing grew");
}

#[test]
fn host_errors_reach_the_caller_and_a_failed_flush_poisons() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("d");
    drop(open(&path, 64 << 10, false));
    for instant in [false, true] {
        let mut ring = Ring::new().expect("ring");
        // Writing through a read-only descriptor returns EBADF from the kernel.
        let read_only = OpenOptions { create_size: None, direct: false, read_only: true };
        ring.add_device(HostDevice::open(&path, read_only).expect("open")).expect("room");
        ring.devices.set_instant(FIRST, instant);
        let done = one(&mut ring, IoKind::Write { offset: 0, pieces: vec![piece(1, 4096)] });
        assert_eq!(done.result, Err(DeviceError::Failed(9)));
        assert_eq!(one(&mut ring, read(0, 4096)).result, Ok(()));

        ring.devices.poison(FIRST, DeviceError::Failed(5));
        assert_eq!(one(&mut ring, IoKind::Flush).result, Err(DeviceError::Failed(5)));
        let done = one(&mut ring, IoKind::Write { offset: 0, pieces: vec![piece(1, 4096)] });
        assert_eq!(done.result, Err(DeviceError::Failed(5)));
        assert_eq!(one(&mut ring, read(0, 4096)).result, Ok(()), "reads go on");
    }
}

#[test]
fn a_full_host_is_told_apart() {
    let dir = tempfile::tempdir().expect("directory");
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot mount a small tmpfs");
        return;
    }
    let mut ring = Ring::new().expect("ring");
    ring.add_device(open(&dir.path().join("d"), 4 << 20, false)).expect("room");
    for instant in [false, true] {
        ring.devices.set_instant(FIRST, instant);
        let fill = |offset| IoKind::Write { offset, pieces: vec![piece(1, 512 << 10), piece(2, 512 << 10)] };
        let results: Vec<_> = [0, 1 << 20, 2 << 20].map(|offset| one(&mut ring, fill(offset)).result).into();
        assert_eq!(results.last(), Some(&Err(DeviceError::Full)), "{results:?}");
    }
    drop(ring);
    // A process that another test is just starting has the file open for a moment.
    let unmounted = || std::process::Command::new("umount").arg(dir.path()).status().is_ok_and(|status| status.success());
    let start = Instant::now();
    while !unmounted() {
        assert!(start.elapsed() < Duration::from_secs(120), "the ring did not let the file go");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn more_operations_than_the_queue_holds_and_a_drop_in_their_midst() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("d");
    let mut ring = Ring::new().expect("ring");
    ring.add_device(open(&path, 32 << 20, false)).expect("room");
    ring.devices.set_instant(FIRST, false); // so that operations are in flight on any filesystem
    let writes = (0..3000u64).map(|number| IoKind::Write { offset: number * 4096, pieces: vec![piece(number as u8, PAGE)] });
    assert!(run(&mut ring, writes.collect()).iter().all(|done| done.result.is_ok()));
    let done = run(&mut ring, (0..3000u64).map(|number| read(number * 4096, PAGE)).collect());
    for (number, done) in done.iter().enumerate() {
        assert_eq!(done.buf.as_ref().expect("buffer").bytes()[17], number as u8);
    }
    for number in 0..2000u64 {
        ring.submit(Io { id: IoId(number), device: FIRST, kind: read(number * 4096, PAGE), urgent: false });
        if number == 700 {
            ring.turn(Wait::No).expect("turn");
        }
    }
    assert!(ring.in_flight() > 1000);
    assert!(ring.remove_device(FIRST).is_none(), "busy");
    drop(ring);
    // Lock and file are free as soon as the ring is dropped.
    drop(open(&path, 32 << 20, true));
}

#[test]
fn devices_come_and_go() {
    let dir = tempfile::tempdir().expect("directory");
    let mut ring = Ring::new().expect("ring");
    for name in ["a", "b"] {
        ring.add_device(open(&dir.path().join(name), 64 << 10, false)).expect("room");
    }
    assert_eq!(one(&mut ring, IoKind::Write { offset: 0, pieces: vec![piece(3, 4096)] }).result, Ok(()));
    let device = ring.remove_device(FIRST).expect("idle");
    assert_eq!(device.path(), dir.path().join("a"));
    drop(device);
    assert_eq!(one(&mut ring, IoKind::Flush).result, Err(DeviceError::Gone));
    assert!(ring.device(DeviceSlot(1)).is_some() && ring.device(FIRST).is_none());
    let again = open(&dir.path().join("a"), 64 << 10, false);
    assert_eq!(ring.add_device(again).expect("room"), DeviceSlot(2));
}

/// Returns unsent operations by id, and the results of those that were carried out.
fn ends(ring: &mut Ring, count: usize) -> (Vec<Io>, Vec<IoDone>) {
    let (mut unsent, mut done) = (Vec::new(), Vec::new());
    while unsent.len() + done.len() < count {
        ring.turn(Wait::AtMost(Duration::from_secs(10))).expect("turn");
        while let Some(event) = ring.pop() {
            match event {
                Event::Io(io) => done.push(io),
                Event::Unsent(io) => unsent.push(io),
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    unsent.sort_by_key(|io| io.id);
    (unsent, done)
}

#[test]
fn after_the_lease_devices_are_read_alone() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("d");
    let clock = Monotonic::default();
    let far = clock.deadline(u64::MAX);
    for instant in [false, true] {
        let mut ring = Ring::new().expect("ring");
        ring.add_device(open(&path, 8 << 20, false)).expect("room");
        ring.devices.set_instant(FIRST, instant);
        ring.set_lease(Some(far));
        assert_eq!(one(&mut ring, IoKind::Write { offset: 0, pieces: vec![piece(1, 4096)] }).result, Ok(()));
        // the lease ends while more operations wait for the system call than one call takes; with a
        // file in memory, one is carried out at once
        let soon = clock.deadline(clock.nanos() + 1_000_000);
        ring.set_lease(Some(if instant { clock.deadline(0) } else { far }));
        for number in 0..1000 {
            let kind = match number % 4 {
                0 => IoKind::Write { offset: 0, pieces: vec![piece(2, 4096)] },
                1 => IoKind::Discard { offset: 0, length: 4096 },
                2 => IoKind::Flush,
                _ => read(0, 4096),
            };
            ring.submit(Io { id: IoId(number), device: FIRST, kind, urgent: number == 500 });
        }
        ring.set_lease(Some(soon));
        while !soon.is_over() {
            std::hint::spin_loop();
        }
        let (unsent, done) = ends(&mut ring, 1000);
        assert_eq!(unsent.len(), 750, "instant: {instant}");
        assert!(done.iter().all(|done| done.result == Ok(()) && done.buf.as_ref().is_some_and(|buf| buf.bytes()[..4096] == [1; 4096])));
        assert_eq!(std::fs::read(&path).expect("read")[..4096], [1; 4096]);
        // unsent operations are complete, and are carried out when the lease is renewed
        ring.set_lease(Some(far));
        let IoKind::Write { offset: 0, pieces } = &unsent[0].kind else { panic!("{:?}", unsent[0]) };
        assert_eq!((unsent[0].id, pieces[0].bytes()), (IoId(0), &[2; 4096][..]));
        unsent.into_iter().filter(|io| !matches!(io.kind, IoKind::Discard { .. })).for_each(|io| ring.submit(io));
        let (unsent, done) = ends(&mut ring, 500);
        assert!(unsent.is_empty() && done.iter().all(|done| done.result == Ok(())));
        assert_eq!(std::fs::read(&path).expect("read")[..4096], [2; 4096]);
        assert!(ring.remove_device(FIRST).is_some(), "nothing counts as under way");
    }
}
