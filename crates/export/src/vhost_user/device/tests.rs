use std::sync::Arc;

use millpond_block::{DiskError, Op, SectorProfile};
use millpond_testing::pattern;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use super::{Limits, SERIAL};
use crate::testing::driver::{DATA, Driver, HIGH, LOW, USED, memory};
use crate::testing::{MemoryDisk, Order};
use crate::vhost_user::{DirtyLog, QueueError};

const DISK: usize = 1 << 20;
const EVENT_IDX: u64 = 1 << 29;
const FLUSH: u64 = 1 << 9;
/// Types of requests, and status values.
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSHING: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

fn driver(features: u64) -> Driver {
    let disk = MemoryDisk::new(DISK, SectorProfile::S512e).with_pieces(4096);
    Driver::new(disk, 64, features, Limits::default())
}

/// Case of an impossible action of the guest: name, and the function that does it.
type Impossible = (&'static str, fn(&mut Driver));

#[test]
fn what_is_written_is_read_directly_and_by_tables() {
    for indirect in [false, true] {
        let mut driver = driver(FLUSH);
        driver.indirect = indirect;
        // Small and large writes, in one and several segments, in both regions.
        let cases: [&[(u64, u32)]; 4] = [
            &[(DATA, 512)],
            &[(DATA, 4096)],
            &[(DATA + 1, 511), (HIGH, 3000), (DATA + 0x1000, 585)],
            &[(DATA, 20_000), (HIGH + 77, 40_000), (DATA + 0x1_0000, 5536)],
        ];
        for (index, segments) in cases.iter().enumerate() {
            let length: u32 = segments.iter().map(|(_, length)| length).sum();
            let bytes = pattern(0, length as usize, index as u8);
            let mut rest = bytes.as_slice();
            for (at, length) in *segments {
                let (part, after) = rest.split_at(*length as usize);
                driver.poke(*at, part);
                rest = after;
            }
            driver.request(0, OUT, 16, segments, false);
            assert_eq!((driver.run(), driver.status(0)), (vec![(0, 1)], OK), "{segments:?}");
            for (at, length) in *segments {
                driver.poke(*at, &vec![0xee; *length as usize]);
            }
            driver.request(0, IN, 16, segments, true);
            assert_eq!((driver.run(), driver.status(0)), (vec![(0, length + 1)], OK), "{segments:?}");
            let found: Vec<u8> = segments.iter().flat_map(|(at, length)| driver.peek(*at, *length as usize)).collect();
            assert!(found == bytes, "{segments:?}");
        }
        let owned: Vec<bool> = driver.disk.log.iter().filter(|(request, _)| request.op == Op::Write).map(|(_, owned)| *owned).collect();
        assert_eq!(owned, [false, false, false, true], "large writes are handed over");
    }
}

#[test]
fn zeroing_discarding_flushing_and_the_serial_number() {
    let mut driver = driver(FLUSH);
    driver.poke(DATA, &pattern(0, 16384, 1));
    driver.request(0, OUT, 0, &[(DATA, 16384)], false);
    driver.run();
    let range =
        |sector: u64, sectors: u32, flags: u32| [sector.to_le_bytes().as_slice(), &sectors.to_le_bytes(), &flags.to_le_bytes()].concat();
    driver.poke(HIGH, &[range(0, 8, 0), range(16, 8, 1)].concat());
    driver.request(0, WRITE_ZEROES, 0, &[(HIGH, 32)], false);
    driver.request(8, DISCARD, 0, &[(HIGH + 16, 16)], false);
    driver.poke(HIGH + 100, &range(24, 8, 0));
    driver.request(16, DISCARD, 0, &[(HIGH + 100, 16)], false);
    driver.request(24, FLUSHING, 0, &[], false);
    driver.request(32, GET_ID, 0, &[(DATA, 20)], true);
    assert_eq!(driver.run().len(), 5);
    assert_eq!([0, 8, 16, 24, 32].map(|head| driver.status(head)), [OK, UNSUPPORTED, OK, OK, OK], "a discard has no flags");
    let zero: Vec<bool> = driver.disk.bytes()[..16384].chunks(4096).map(|block| block.iter().all(|byte| *byte == 0)).collect();
    assert_eq!(zero, [true, false, true, true]);
    let mut serial = [0; SERIAL];
    serial[..6].copy_from_slice(b"serial");
    assert_eq!(driver.peek(DATA, SERIAL), serial);
}

#[test]
fn refusals_reach_the_guest_and_touch_nothing() {
    let mut driver = driver(FLUSH);
    driver.request(0, IN, DISK as u64 / 512, &[(DATA, 512)], true);
    driver.request(8, IN, 0, &[(DATA, 100)], true);
    driver.request(16, 77, 0, &[(DATA, 512)], false);
    // One of two ranges is beyond the end: neither is discarded.
    let range = |sector: u64| [sector.to_le_bytes().as_slice(), &8u32.to_le_bytes(), &[0; 4]].concat();
    driver.poke(DATA, &[range(0), range(DISK as u64 / 512)].concat());
    driver.request(24, DISCARD, 0, &[(DATA, 32)], false);
    driver.run();
    assert_eq!([0, 8, 16, 24].map(|head| driver.status(head)), [IO_ERROR, IO_ERROR, UNSUPPORTED, IO_ERROR]);
    assert!(driver.disk.log.is_empty());
    // An error of the disk.
    driver.disk.fail(Some(DiskError::NoSpace));
    driver.request(0, OUT, 0, &[(DATA, 512)], false);
    assert_eq!(driver.run(), [(0, 1)]);
    assert_eq!((driver.status(0), driver.device.counters().errors), (IO_ERROR, 5));
    // No space for a status: the chain is returned with a length of 0.
    driver.descriptor(0, LOW, 16, 0, 0);
    driver.offer(0);
    assert_eq!((driver.run(), driver.device.counters().malformed), (vec![(0, 0)], 1));
}

#[test]
fn a_read_only_disk_takes_nothing() {
    let disk = MemoryDisk::new(DISK, SectorProfile::S4kn).with_read_only(true);
    let mut driver = Driver::new(disk, 64, FLUSH, Limits::default());
    driver.request(0, OUT, 0, &[(DATA, 4096)], false);
    driver.request(8, IN, 0, &[(DATA, 4096)], true);
    driver.request(16, IN, 1, &[(DATA, 4096)], true);
    driver.run();
    assert_eq!([0, 8, 16].map(|head| driver.status(head)), [IO_ERROR, OK, IO_ERROR], "half a sector of 4 KiB is none");
}

/// A write is durable when answered if the guest cannot flush, has disabled the cache, or may have
/// read that there is none.
#[test]
fn who_cannot_flush_need_not() {
    for (features, cache, promised, durable) in
        [(FLUSH, true, false, false), (FLUSH, false, false, true), (0, true, false, true), (FLUSH, true, true, true)]
    {
        let mut driver = driver(features);
        driver.device.set_write_cache(cache);
        driver.device.set_promised(promised);
        driver.request(0, OUT, 0, &[(DATA, 512)], false);
        driver.request(8, IN, 0, &[(DATA, 512)], true);
        driver.run();
        let fua: Vec<bool> = driver.disk.log.iter().map(|(request, _)| request.fua).collect();
        assert_eq!(fua, [durable, false], "{features:#x} {cache} {promised}");
    }
    // A guest that enables the write cache has read that there is one.
    let mut driver = driver(FLUSH);
    driver.device.set_promised(true);
    driver.device.set_write_cache(true);
    driver.request(0, OUT, 0, &[(DATA, 512)], false);
    driver.run();
    assert!(!driver.disk.log[0].0.fua);
}

#[test]
fn limits_hold_and_everything_is_answered_all_the_same() {
    let limits = Limits { requests: 4, bytes: 8192, turn_requests: 3, turn_bytes: 1 << 20 };
    let disk = MemoryDisk::new(DISK, SectorProfile::S512e).with_order(Order::Reversed);
    let mut driver = Driver::new(disk, 64, FLUSH, limits);
    (0..16).for_each(|index| driver.request(index * 3, IN, 0, &[(DATA, 512)], true));
    assert_eq!((driver.take(), driver.device.in_flight()), (3, 3), "a turn's");
    assert_eq!((driver.take(), driver.device.in_flight()), (1, 4), "what may be in flight");
    assert!(!driver.device.has_more() && !driver.device.has_room(), "until there is room nothing is to be had");
    assert!(driver.complete_one() && driver.device.has_more());
    let mut heads: Vec<u32> = driver.run().into_iter().map(|(head, _)| head).collect();
    heads.sort_unstable();
    assert_eq!(heads, (0..16).map(|index| index * 3).collect::<Vec<_>>());
    // The limit of bytes: a larger request is submitted alone.
    driver.request(0, IN, 0, &[(DATA, 65536)], true);
    driver.request(8, IN, 0, &[(DATA, 512)], true);
    assert_eq!((driver.take(), driver.device.in_flight()), (1, 1));
    assert_eq!(driver.run().len(), 2);
}

#[test]
fn the_guest_is_told_once_and_only_when_it_wants() {
    let mut plain = driver(0);
    (0..4).for_each(|index| plain.request(index * 3, IN, 0, &[(DATA, 512)], true));
    plain.run();
    assert_eq!(plain.notifications, 1, "once for all");
    plain.set_suppression(1, 0);
    plain.request(0, IN, 0, &[(DATA, 512)], true);
    plain.run();
    assert_eq!(plain.notifications, 1, "it does not want to know");
    plain.device.hush();
    assert_eq!(plain.kick_wanted().0, 1);
    assert!(!plain.device.listen());
    assert_eq!(plain.kick_wanted().0, 0);

    let mut indexed = driver(EVENT_IDX);
    indexed.set_suppression(0, 5);
    for round in 0..8 {
        indexed.request(0, IN, 0, &[(DATA, 512)], true);
        indexed.run();
        assert_eq!(indexed.notifications, usize::from(round >= 5), "answer {round}");
    }
    assert!(!indexed.device.listen());
    assert_eq!(indexed.kick_wanted().1, 8, "the next one");
    indexed.request(0, IN, 0, &[(DATA, 512)], true);
    assert!(indexed.device.listen(), "it came before the guest was asked to kick");
}

#[test]
fn impossible_indexes_break_the_queue_alone() {
    let twice = |driver: &mut Driver| {
        driver.request(0, IN, 0, &[(DATA, 512)], true);
        driver.offer(0);
    };
    let cases: [Impossible; 3] = [
        ("more than the queue holds", |driver| driver.set_available(65)),
        ("a head that is none", |driver| driver.offer(64)),
        ("twice the same", twice),
    ];
    for (what, make) in cases {
        let mut driver = driver(FLUSH);
        make(&mut driver);
        driver.run();
        assert_eq!(driver.broken, Some(QueueError::Index), "{what}");
        driver.set_available(1);
        assert_eq!((driver.take(), driver.device.has_more()), (0, false), "{what}: it stands still");
        driver.device.stop(0);
        assert!(matches!(driver.device.stopped(0), Ok(Some(_))), "{what}");
        let used = driver.used();
        driver.ring.seen = used;
        driver.set_available(used);
        driver.start(used, None).expect("it can be started again");
        driver.request(0, IN, 0, &[(DATA, 512)], true);
        assert_eq!((driver.run().len(), driver.status(0)), (1, OK), "{what}");
    }
}

#[test]
fn a_queue_that_is_stopped_answers_what_it_has_taken() {
    let mut driver = driver(FLUSH);
    driver.request(0, IN, 0, &[(DATA, 512)], true);
    driver.take();
    driver.request(8, IN, 0, &[(DATA, 512)], true);
    driver.device.stop(0);
    assert_eq!(driver.device.stopped(0), Ok(None));
    let (error, _) = driver.device.set_memory(memory()).expect_err("the queue needs the memory");
    assert_eq!(error, QueueError::Running);
    assert!(driver.complete_one());
    assert_eq!(driver.take(), 0, "it takes no more");
    assert_eq!(driver.device.stopped(0), Ok(Some(1)));
    assert_eq!(driver.device.stopped(0), Err(QueueError::Number), "it is gone");
    driver.start(1, None).expect("where it was");
    assert_eq!(driver.run(), [(0, 513), (8, 513)]);
}

#[test]
fn queues_that_cannot_be_are_refused() {
    let disk = || MemoryDisk::new(DISK, SectorProfile::S512e);
    for size in [0, 3, 48] {
        let mut driver = Driver::stopped(memory(), disk(), size, 0, Limits::default());
        assert_eq!(driver.start(0, None), Err(QueueError::Place), "{size}");
    }
    // The record of 32,768 descriptors is longer than the memory for it.
    let mut driver = Driver::stopped(memory(), disk(), 32768, 0, Limits::default());
    assert_eq!(driver.start(0, Some(Arc::new(MmapRegion::new(4096).expect("a page")))), Err(QueueError::Record));
    let mut driver = Driver::stopped(super::Memory::new(), disk(), 64, 0, Limits::default());
    assert_eq!(driver.start(0, None), Err(QueueError::Place), "no memory");
}

/// The daemon dies with requests in flight, of which the disk has completed some and the guest has
/// seen some answers. The next daemon repeats the requests without an answer, in order, and no
/// others.
#[test]
fn a_successor_goes_on_where_the_daemon_died() {
    let area = Arc::new(MmapRegion::new(1 << 16).expect("memory"));
    let disk = MemoryDisk::new(DISK, SectorProfile::S512e).with_order(Order::Reversed);
    let mut first = Driver::stopped(memory(), disk, 64, FLUSH, Limits::default());
    first.start(0, Some(area.clone())).expect("start");
    for index in 0..6u16 {
        first.poke(DATA + 512 * u64::from(index), &[index as u8 + 1; 512]);
        first.request(index * 3, OUT, u64::from(index), &[(DATA + 512 * u64::from(index), 512)], false);
    }
    first.take();
    assert!(first.complete_one() && first.complete_one());
    assert_eq!(first.answers(), [(15, 1), (12, 1)]);
    // Offered and not taken.
    first.request(18, OUT, 6, &[(DATA, 512)], false);
    let ring = first.ring.clone();
    drop(first);
    let disk = MemoryDisk::new(DISK, SectorProfile::S512e);
    let mut second = Driver::stopped(ring.memory().clone(), disk, 64, FLUSH, Limits::default());
    second.ring = ring;
    // The front end does not know the queue's position: it reports the number of answers.
    second.start(2, Some(area.clone())).expect("start");
    assert!(second.device.has_more(), "without a kick");
    assert_eq!(second.run(), [(0, 1), (3, 1), (6, 1), (9, 1), (18, 1)]);
    let sectors: Vec<u64> = second.disk.log.iter().map(|(request, _)| request.range.offset / 512).collect();
    assert_eq!(sectors, [0, 1, 2, 3, 6]);
    // A third daemon finds no requests.
    let ring = second.ring.clone();
    let disk = MemoryDisk::new(DISK, SectorProfile::S512e);
    let mut third = Driver::stopped(ring.memory().clone(), disk, 64, FLUSH, Limits::default());
    third.ring = ring;
    third.start(0, Some(area)).expect("start");
    assert_eq!((third.device.has_more(), third.run()), (false, vec![]));
}

/// After a restart, a front end that asks for a queue's position must not get an entry whose
/// request is not answered.
#[test]
fn what_was_left_is_done_before_a_queue_comes_to_rest() {
    let area = Arc::new(MmapRegion::new(1 << 16).expect("memory"));
    let disk = || MemoryDisk::new(DISK, SectorProfile::S512e);
    let mut first = Driver::stopped(memory(), disk(), 64, FLUSH, Limits::default());
    first.start(0, Some(area.clone())).expect("start");
    first.request(0, IN, 0, &[(DATA, 512)], true);
    first.request(3, IN, 0, &[(DATA, 512)], true);
    first.take();
    let mut second = Driver::stopped(first.ring.memory().clone(), disk(), 64, FLUSH, Limits::default());
    second.ring = first.ring.clone();
    second.start(0, Some(area)).expect("start");
    second.device.stop(0);
    assert_eq!(second.device.stopped(0), Ok(None));
    assert_eq!(second.run().len(), 2);
    assert_eq!(second.device.stopped(0), Ok(Some(2)));
}

#[test]
fn what_was_not_carried_out_is_repeated_if_it_is_on_record() {
    for on_record in [true, false] {
        let area = on_record.then(|| Arc::new(MmapRegion::new(1 << 16).expect("memory")));
        let disk = || MemoryDisk::new(DISK, SectorProfile::S512e);
        let mut first = Driver::stopped(memory(), disk(), 64, FLUSH, Limits::default());
        first.start(0, area.clone()).expect("start");
        assert_eq!(first.device.has_record(), on_record);
        first.disk.fail(Some(DiskError::Shutdown));
        first.request(0, IN, 0, &[(DATA, 512)], true);
        assert_eq!((first.run(), first.status(0)), (vec![(0, 1)], IO_ERROR), "the front end is there");
        first.device.set_alone();
        first.request(4, IN, 0, &[(DATA, 512)], true);
        first.request(8, IN, 1, &[(DATA, 512)], true);
        first.take();
        first.device.stop(0);
        let answers = first.run();
        assert_eq!(answers.len(), if on_record { 0 } else { 2 }, "{answers:?}");
        assert_eq!((first.device.in_flight(), first.device.bytes(), first.device.collect()), (0, 0, true));
        let mut second = Driver::stopped(first.ring.memory().clone(), disk(), 64, FLUSH, Limits::default());
        second.ring = first.ring.clone();
        second.start(first.used(), area).expect("start");
        let repeated = if on_record { vec![(4, 513), (8, 513)] } else { vec![] };
        assert_eq!(second.run(), repeated);
    }
}

/// Returns the pages marked in a log of one page, which is enough for a guest of 128 MiB, and
/// clears the log.
fn marked(log: &MmapRegion<()>) -> Vec<u64> {
    let mut bytes = vec![0; 4096];
    log.as_volatile_slice().read_slice(&mut bytes, 0).expect("in the log");
    log.as_volatile_slice().write_slice(&[0; 4096], 0).expect("in the log");
    (0..8 * 4096).filter(|page| bytes[*page as usize / 8] & 1 << (page % 8) != 0).collect()
}

#[test]
fn what_is_written_to_the_guest_is_logged_while_it_moves() {
    const LOG_ALL: u64 = 1 << 26;
    let page = |at: u64| at / 4096;
    let mut driver = driver(FLUSH | EVENT_IDX);
    let log = Arc::new(MmapRegion::new(4096).expect("memory"));
    assert!(driver.device.set_log(DirtyLog::new(Arc::clone(&log))).is_none());
    driver.request(0, IN, 0, &[(DATA, 4096)], true);
    driver.run();
    assert!(marked(&log).is_empty(), "nobody has asked for it");
    driver.device.set_features(FLUSH | EVENT_IDX | LOG_ALL);
    // A read writes to its data, its status and the used ring.
    driver.request(0, IN, 0, &[(DATA + 4095, 2), (DATA + 0x4000, 4094)], true);
    driver.run();
    let mut expected = vec![page(driver.status_at(0)), page(USED), page(DATA), page(DATA) + 1, page(DATA) + 4];
    expected.sort_unstable();
    assert_eq!(marked(&log), expected);
    // Writes, refused requests and unknown ones write to the status and the used ring.
    let mut expected = vec![page(driver.status_at(0)), page(USED)];
    expected.sort_unstable();
    for (kind, sector) in [(OUT, 0), (OUT, DISK as u64 / 512), (77, 0)] {
        driver.request(0, kind, sector, &[(DATA, 4096)], false);
        driver.run();
        assert_eq!(marked(&log), expected, "request {kind} at {sector}");
    }
    driver.request(0, GET_ID, 0, &[(DATA + 0x8000, 20)], true);
    driver.run();
    assert!(marked(&log).contains(&(page(DATA) + 8)), "the serial number is written");
    // Enabling notifications writes to the used ring, too.
    driver.device.listen();
    assert_eq!(marked(&log), [page(USED)]);
    driver.device.hush();
    driver.device.set_features(FLUSH | EVENT_IDX);
    marked(&log);
    driver.request(0, IN, 0, &[(DATA, 4096)], true);
    driver.run();
    assert!(marked(&log).is_empty(), "it has moved");
}

#[test]
fn reads_that_come_together_are_announced_together() {
    let mut driver = driver(FLUSH);
    driver.indirect = true;
    driver.poke(DATA, &pattern(0, 512, 3));
    driver.request(0, OUT, 9, &[(DATA, 512)], false);
    for head in 1..41u16 {
        driver.request(head, IN, u64::from(head), &[(DATA + 512 * u64::from(head), 512)], true);
    }
    // A read beyond the end is announced like others, and refused.
    driver.request(41, IN, 1 << 40, &[(DATA, 512)], true);
    assert_eq!(driver.run().len(), 42);
    let sectors: Vec<Vec<u64>> = driver.disk.expected.iter().map(|reads| reads.iter().map(|read| read.offset / 512).collect()).collect();
    assert_eq!(sectors, [(1..32).collect::<Vec<u64>>(), (32..41).chain([1 << 40]).collect()]);
    assert_eq!((driver.status(40), driver.status(41)), (OK, IO_ERROR));
    assert_eq!(driver.peek(DATA + 512 * 9, 512), pattern(0, 512, 3), "a write before them was done before them");
}

#[test]
fn a_request_waits_for_memory_and_those_behind_it_do() {
    let mut driver = driver(FLUSH);
    driver.disk.room = Some(4096);
    let bytes = pattern(0, 16_384, 5);
    driver.poke(DATA, &bytes);
    driver.request(0, OUT, 0, &[(DATA, 16_384)], false);
    driver.request(4, IN, 0, &[(HIGH, 512)], true);
    assert_eq!(driver.run(), []);
    assert_eq!((driver.device.in_flight(), driver.device.bytes(), driver.device.has_room()), (0, 0, false));
    assert!(!driver.device.has_more(), "looking again is no use before there is memory");
    // a queue with a held request does not stop
    driver.device.stop(0);
    assert_eq!(driver.device.stopped(0), Ok(None));
    driver.disk.room = Some(16_384);
    driver.take();
    assert_eq!(driver.device.bytes(), 16_384);
    assert_eq!((driver.run(), driver.status(0)), (vec![(0, 1)], OK));
    assert_eq!(driver.disk.bytes().get(..16_384), Some(bytes.as_slice()));
    assert_eq!(driver.device.bytes(), 0);
}

#[test]
fn a_request_that_waits_for_memory_is_refused_when_its_guest_goes() {
    let mut driver = driver(FLUSH);
    driver.disk.room = Some(0);
    driver.poke(DATA, &pattern(0, 4096, 6));
    driver.request(0, OUT, 0, &[(DATA, 4096)], false);
    assert_eq!(driver.run(), []);
    driver.device.refuse_held();
    assert_eq!((driver.answers(), driver.status(0)), (vec![(0, 1)], IO_ERROR));
    assert!(driver.disk.bytes().iter().all(|byte| *byte == 0));
}
