//! Sequences, their windows, and the memory for blocks that are read ahead of them.

use millpond_block::Buf;
use millpond_format::VolumeId;

use super::sequence::STEP;
use super::*;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const SIZE: u64 = 1024 * MIB;
const ONE: Target = Target::Head(VolumeId(1));
const TWO: Target = Target::Head(VolumeId(2));

/// Read-ahead with a window of 2 MiB and room for 8 MiB.
fn ahead() -> ReadAhead {
    let mut ahead = ReadAhead::default();
    assert_eq!(ahead.arrange(2 * MIB, 64 * MIB), 8 * MIB);
    ahead
}

/// Reads a range as a guest does, and reads ahead what is wanted. Returns these ranges.
fn read(ahead: &mut ReadAhead, target: Target, offset: u64, length: u64) -> Vec<(u64, u64)> {
    for block in offset / BLOCK..(offset + length) / BLOCK {
        ahead.was_used(block);
    }
    ahead.note(target, ByteRange { offset, length }, Time(0));
    let mut ranges = Vec::new();
    while ahead.wanting().is_some() {
        let Some(range) = ahead.next_range(SIZE) else { continue };
        let nth = ahead.begin(range).expect("room");
        for block in range.offset / BLOCK..(range.offset + range.length) / BLOCK {
            ahead.expects(nth, block);
            ahead.hold(nth, block, BufSlice::new(Buf::zeroed(4096), 0..4096));
        }
        assert!(ahead.batch_ended(nth, Time(0)).is_empty());
        ranges.push((range.offset, range.length));
    }
    ranges
}

#[test]
fn the_third_read_in_order_begins_and_the_window_grows_to_its_limit() {
    let mut ahead = ahead();
    assert_eq!(read(&mut ahead, ONE, 0, 64 * KIB), []);
    assert_eq!(read(&mut ahead, ONE, 64 * KIB, 64 * KIB), []);
    assert_eq!(read(&mut ahead, ONE, 128 * KIB, 64 * KIB), [(192 * KIB, 256 * KIB)]);
    let mut farthest = 448 * KIB;
    for at in (192 * KIB..32 * MIB).step_by(64 << 10) {
        for (offset, length) in read(&mut ahead, ONE, at, 64 * KIB) {
            assert_eq!(offset, farthest, "a gap");
            assert!(length < STEP * 2, "{length}");
            farthest = offset + length;
        }
        assert!(farthest > at + 64 * KIB && farthest <= at + 64 * KIB + 2 * MIB);
        assert!(ahead.memory() <= 8 * MIB);
    }
    assert!(farthest > 32 * MIB + MIB, "the window does not grow: {farthest}");
    let (bytes, used) = ahead.counters();
    assert_eq!((bytes, used), (farthest - 192 * KIB, 32 * MIB - 192 * KIB));
}

#[test]
fn reads_at_random_are_not_read_ahead_and_end_no_sequence() {
    let mut ahead = ahead();
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // blocks of their own, so that no two are adjacent
        64 * MIB + (state >> 40) * 2 * BLOCK
    };
    for _ in 0..1000 {
        assert_eq!(read(&mut ahead, ONE, random(), BLOCK), []);
    }
    let mut begun = 0;
    for at in (0..4 * MIB).step_by(64 << 10) {
        begun += read(&mut ahead, ONE, at, 64 * KIB).len();
        for _ in 0..4 {
            assert_eq!(read(&mut ahead, ONE, random(), BLOCK), []);
        }
    }
    assert!(begun > 4, "{begun}");
}

#[test]
fn sequences_of_a_target_and_of_others_go_on_beside_each_other() {
    let mut ahead = ahead();
    let mut begun = [0; 6];
    for at in (0..4 * MIB).step_by(64 << 10) {
        for (nth, begun) in (0u64..).zip(&mut begun) {
            let target = if nth < 4 { ONE } else { TWO };
            *begun += read(&mut ahead, target, nth * 64 * MIB + at, 64 * KIB).iter().map(|(_, length)| length).sum::<u64>();
        }
    }
    assert!(begun.iter().all(|bytes| *bytes >= 4 * MIB - 192 * KIB), "{begun:?}");
    assert!(ahead.memory() <= 8 * MIB);
}

#[test]
fn a_sequence_that_leaves_bytes_out_is_read_less_far_ahead() {
    let mut ahead = ahead();
    (0..64).for_each(|nth| _ = read(&mut ahead, ONE, nth * 64 * KIB, 64 * KIB));
    let window = |ahead: &ReadAhead| ahead.targets[&ONE].list[0].window;
    assert_eq!(window(&ahead), 2 * MIB);
    read(&mut ahead, ONE, 65 * 64 * KIB, 64 * KIB);
    assert_eq!(window(&ahead), MIB);
    for nth in 0..20 {
        read(&mut ahead, ONE, (66 + nth) * 64 * KIB + (nth + 1) * BLOCK, 64 * KIB);
    }
    assert!(window(&ahead) < 64 * KIB, "{}", window(&ahead));
}

#[test]
fn a_guest_waits_for_a_block_in_flight_and_reads_itself_what_is_missing() {
    let mut ahead = ahead();
    (0..3).for_each(|nth| ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0)));
    let range = ahead.next_range(SIZE).expect("a range");
    let nth = ahead.begin(range).expect("room");
    (48..52).for_each(|block| ahead.expects(nth, block));
    ahead.reads_begin(nth, 3, 16 * KIB);
    assert!(matches!(ahead.look_up(48), Some(Ahead::Reading(batch)) if batch == nth));
    ahead.wait(nth, 77);
    ahead.hold(nth, 48, BufSlice::new(Buf::zeroed(4096), 0..4096));
    assert!(matches!(ahead.look_up(48), Some(Ahead::Read(_))));
    assert_eq!(ahead.reads(), 3);
    ahead.read_ended(nth);
    assert_eq!(ahead.reads(), 2, "those that are in flight");
    assert_eq!(ahead.batch_ended(nth, Time(5)), [77]);
    assert!(ahead.look_up(49).is_none() && ahead.look_up(48).is_some());
    assert_eq!(ahead.reads(), 0);
    ahead.was_used(48);
    assert!(ahead.look_up(48).is_none() && !ahead.has_blocks());
    assert_eq!(ahead.memory(), 0);
}

#[test]
fn what_is_not_used_is_dropped_after_a_while_and_when_there_is_less_room() {
    let mut ahead = ahead();
    (0..32).for_each(|nth| _ = read(&mut ahead, ONE, nth * 64 * KIB, 64 * KIB));
    assert!(ahead.memory() > MIB);
    ahead.arrange(2 * MIB, 4 * MIB);
    assert!(ahead.memory() <= 512 * KIB && ahead.has_blocks());
    ahead.sweep(Time(IDLE_MILLIS - 1));
    assert!(ahead.has_blocks() && !ahead.is_idle());
    ahead.sweep(Time(2 * IDLE_MILLIS));
    assert!(!ahead.has_blocks() && ahead.is_idle() && ahead.memory() == 0);
    ahead.arrange(0, 64 * MIB);
    (0..32).for_each(|nth| assert_eq!(read(&mut ahead, ONE, nth * 64 * KIB, 64 * KIB), []));
}

#[test]
fn nothing_beyond_the_end_is_read_ahead() {
    let mut ahead = ahead();
    for offset in [0, 4, 8, 12].map(|kib| SIZE - 16 * KIB + kib * KIB) {
        for (offset, length) in read(&mut ahead, ONE, offset, 4 * KIB) {
            assert!(offset + length <= SIZE);
        }
    }
    assert_eq!(ahead.counters(), (4 * KIB, 4 * KIB));
}

#[test]
fn reading_ahead_stops_where_guests_do_not_use_it() {
    let mut ahead = ahead();
    // short runs at places that are far apart
    let run_at = |ahead: &mut ReadAhead, place: u64, reads: u64| {
        let begun = (0..reads).map(|nth| read(ahead, ONE, place * MIB + nth * 16 * KIB, 16 * KIB).len());
        begun.sum::<usize>()
    };
    let begun: usize = (0..400).map(|nth| run_at(&mut ahead, nth * 7 % 900, 3)).sum();
    let (bytes, used) = ahead.counters();
    assert!(begun > 10 && used == 0);
    assert!(bytes < 8 * MIB, "{bytes} bytes in vain: no more than shows that they are");
    // a long sequence is read ahead all the same, and later short ones are again
    assert!(run_at(&mut ahead, 950, 2000) > 50);
    let (bytes, used) = ahead.counters();
    assert!(used > 28 * MIB, "{used} of {bytes}");
    assert!(run_at(&mut ahead, 910, 3) > 0);
}

#[test]
fn blocks_of_a_sequence_that_lost_its_place_are_dropped() {
    let mut ahead = ahead();
    (0..16).for_each(|nth| _ = read(&mut ahead, ONE, nth * 64 * KIB, 64 * KIB));
    assert!(ahead.has_blocks());
    // more reads elsewhere than it is kept for, and more places than there are
    (0..200).for_each(|nth| _ = read(&mut ahead, ONE, 64 * MIB + nth * MIB, 64 * KIB));
    assert!(!ahead.has_blocks() && ahead.memory() == 0);
    // one that is being read then is dropped when it was read
    (0..3).for_each(|nth| ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0)));
    let range = ahead.next_range(SIZE).expect("a range");
    let nth = ahead.begin(range).expect("room");
    ahead.expects(nth, 48);
    ahead.reads_begin(nth, 1, 256 * KIB);
    (0..200).for_each(|nth| ahead.note(ONE, ByteRange { offset: 64 * MIB + nth * MIB, length: 64 * KIB }, Time(0)));
    ahead.hold(nth, 48, BufSlice::new(Buf::zeroed(4096), 0..4096));
    assert!(ahead.has_blocks());
    ahead.batch_ended(nth, Time(1));
    assert!(!ahead.has_blocks() && ahead.memory() == 0 && !ahead.is_busy());
}

#[test]
fn a_batch_that_is_cut_counts_with_its_buffers_and_the_sequence_goes_on_there() {
    let mut ahead = ahead();
    (0..3).for_each(|nth| ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0)));
    let range = ahead.next_range(SIZE).expect("a range");
    assert_eq!((range.offset, range.length), (192 * KIB, 256 * KIB));
    let nth = ahead.begin(range).expect("room");
    ahead.cut(nth, 320 * KIB);
    assert_eq!(ahead.memory(), 128 * KIB);
    ahead.reads_begin(nth, BATCH_READS, 300 * KIB);
    assert_eq!(ahead.memory(), 300 * KIB);
    let next = ahead.next_range(SIZE).expect("the rest");
    assert_eq!((next.offset, next.length), (320 * KIB, 128 * KIB));
    assert!(!ahead.is_busy());
    let other = ahead.begin(next).expect("room");
    ahead.reads_begin(other, BATCH_READS, 128 * KIB);
    assert!(ahead.is_busy(), "as many device reads as there may be");
    for nth in [nth, other] {
        ahead.batch_ended(nth, Time(1));
    }
    assert!(!ahead.is_busy() && ahead.memory() == 0 && ahead.reads() == 0);
}

#[test]
fn a_batch_that_was_read_counts_with_the_buffers_of_its_blocks() {
    let mut ahead = ahead();
    (0..3).for_each(|nth| ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0)));
    let range = ahead.next_range(SIZE).expect("a range");
    let nth = ahead.begin(range).expect("room");
    (48..52).for_each(|block| ahead.expects(nth, block));
    ahead.reads_begin(nth, 2, 320 * KIB);
    assert_eq!(ahead.memory(), 320 * KIB);
    // three blocks share a buffer that is larger than they are, one has its own, and one was not read
    let shared = BufSlice::new(Buf::zeroed(32 << 10), 0..32 << 10);
    (48..51).for_each(|block| ahead.hold(nth, block, shared.slice(0..4096)));
    ahead.hold(nth, 51, BufSlice::new(Buf::zeroed(4096), 0..4096));
    ahead.batch_ended(nth, Time(0));
    assert_eq!((ahead.memory(), ahead.reading), (36 * KIB, 0));
    (48..52).for_each(|block| ahead.was_used(block));
    assert_eq!(ahead.memory(), 0);
}

#[test]
fn batches_without_device_reads_do_not_make_it_busy_and_sequences_that_ended_want_nothing() {
    let mut ahead = ahead();
    for nth in 0..3 {
        ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0));
    }
    for _ in 0..40 {
        let nth = ahead.begin(ByteRange { offset: 0, length: 256 * KIB }).expect("room");
        ahead.reads_begin(nth, 0, 0);
        assert!(ahead.batch_ended(nth, Time(0)).is_empty());
        // one whose map nodes cannot be read
        let nth = ahead.begin(ByteRange { offset: 0, length: 256 * KIB }).expect("room");
        assert!(ahead.batch_ended(nth, Time(0)).is_empty());
    }
    assert!(!ahead.is_busy() && ahead.reading == 0 && ahead.memory() == 0);
    assert_eq!(ahead.wanting(), Some(ONE));
    ahead.sweep(Time(60_000));
    assert!(ahead.wanting().is_none() && ahead.is_idle());
}

#[test]
fn a_batch_that_ends_after_the_room_became_smaller_is_dropped() {
    let mut ahead = ahead();
    for nth in 0..3 {
        ahead.note(ONE, ByteRange { offset: nth * 64 * KIB, length: 64 * KIB }, Time(0));
    }
    let nth = ahead.begin(ByteRange { offset: 192 * KIB, length: 256 * KIB }).expect("room");
    ahead.reads_begin(nth, 1, 256 * KIB);
    for block in 48..112 {
        ahead.expects(nth, block);
    }
    assert_eq!(ahead.arrange(0, 64 * MIB), 0);
    assert_eq!(ahead.memory(), 256 * KIB, "in flight");
    (48..112).for_each(|block| ahead.hold(nth, block, BufSlice::new(Buf::zeroed(4096), 0..4096)));
    ahead.batch_ended(nth, Time(0));
    assert_eq!((ahead.memory(), ahead.has_blocks()), (0, false));
}
