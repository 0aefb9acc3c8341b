//! Reading ahead of guests that read in order: what is read, that it is never old, and that its
//! errors are invisible.

use millpond_block::{CacheMode, Io, IoKind, Op};
use millpond_engine::{CatalogCommand, Codec, Command, Compression, GroupSpec, Layout, PoolState, ReadCacheSize, Target, Tuning, VolumeId};

use crate::cache::{STEP, pattern};
use crate::harness::Harness;

const SIZE: u64 = 4 << 20;
/// Offset of the first block of the volume's second leaf.
const SECOND_LEAF: u64 = 512 * 4096;

fn tuning(read_ahead: u64) -> Tuning {
    Tuning {
        map_memory: 8 << 20,
        checkpoint_log_bytes: 2 << 20,
        read_cache: ReadCacheSize::shared(32 << 20),
        read_ahead,
        ..Tuning::default()
    }
}

/// A pool of large segments with a volume that was written in order.
fn written(layout: Layout, sizes_mib: &[usize], read_ahead: u64, compression: Compression) -> (Harness, VolumeId) {
    let mut harness = Harness::with_extents(sizes_mib, vec![GroupSpec::data(layout)], tuning(read_ahead), Some(1 << 20));
    let volume = harness.volume("disk0", SIZE, compression);
    write_all(&mut harness, volume, 1);
    (harness, volume)
}

fn write_all(harness: &mut Harness, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &pattern(at, round)).unwrap();
    }
}

/// Writes each block, in an order in which no two neighbours are written one after the other.
fn write_apart(harness: &mut Harness, volume: VolumeId, round: u8) {
    let blocks = SIZE / 4096;
    for nth in 0..blocks {
        let at = nth * 387 % blocks * 4096;
        let bytes = &pattern(at / STEP * STEP, round)[(at % STEP) as usize..][..4096];
        harness.request(Target::Head(volume), Op::Write, at, 4096, bytes).unwrap();
    }
}

fn read(harness: &mut Harness, target: Target, at: u64, round: u8) {
    assert!(harness.request(target, Op::Read, at, STEP, &[]).unwrap() == pattern(at, round), "at {at}");
}

fn read_all(harness: &mut Harness, target: Target, round: u8) {
    (0..SIZE).step_by(STEP as usize).for_each(|at| read(harness, target, at, round));
}

/// Bytes that were read ahead, and of these the bytes that guests used.
fn counters(harness: &Harness) -> (u64, u64) {
    let metrics = harness.engine.metrics();
    (metrics.read_ahead_bytes, metrics.read_ahead_used_bytes)
}

/// Bytes of the buffers of device reads.
fn bytes_of(reads: &[Io]) -> u64 {
    reads.iter().map(|io| if let IoKind::Read { buf, .. } = &io.kind { buf.size() as u64 } else { 0 }).sum()
}

/// Reads three times in order, and returns the device reads that are started ahead then.
fn start_ahead(harness: &mut Harness, target: Target) -> Vec<Io> {
    (0..2).for_each(|nth| read(harness, target, nth * STEP, 1));
    harness.submit(target, Op::Read, 2 * STEP, STEP);
    let mut guests: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
    harness.turn();
    let mut ahead: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
    guests.drain(..).for_each(|io| harness.perform(io));
    harness.turn();
    // nothing was read ahead before if those kept the device busy
    ahead.extend(std::iter::from_fn(|| harness.engine.pop_io()));
    let done = harness.engine.pop_completion().unwrap();
    assert_eq!(done.result.unwrap().iter().map(|piece| piece.len() as u64).sum::<u64>(), STEP);
    assert!(!ahead.is_empty() && ahead.iter().all(|io| matches!(io.kind, IoKind::Read { .. })), "{ahead:?}");
    ahead
}

#[test]
fn reads_in_order_find_their_blocks_in_memory() {
    for compression in [Compression::Off, Compression::Lz4] {
        let (mut harness, volume) = written(Layout::Linear, &[70], 0, compression);
        read_all(&mut harness, Target::Head(volume), 1);
        let (plain, none) = (harness.reads[0], counters(&harness));
        let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, compression);
        let snapshot = harness.snapshot(volume, "s");
        for target in [Target::Head(volume), Target::Snapshot(snapshot)] {
            let (reads, before) = (harness.reads[0], counters(&harness));
            read_all(&mut harness, target, 1);
            let (ahead, used) = counters(&harness);
            // all but the three reads that showed that they are in order
            assert_eq!((ahead - before.0, used - before.1), (SIZE - 3 * STEP, SIZE - 3 * STEP), "{compression:?} {target:?}");
            if compression == Compression::Off && before == (0, 0) {
                // fewer and larger device reads
                assert!((harness.reads[0] - reads) * 2 < plain, "{} of {plain}", harness.reads[0] - reads);
            }
        }
        assert_eq!(none, (0, 0), "nothing is read ahead by default");
    }
}

/// Buffers have sizes of powers of two, and a block keeps the whole buffer that it was read into.
#[test]
fn memory_counts_the_sizes_of_buffers() {
    const READ: u64 = 20 << 10;
    for (compression, buffers, after) in [(Compression::Off, 128 << 10, 128 << 10), (Compression::Lz4, 32 << 10, 4 * READ)] {
        let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, compression);
        let target = Target::Head(volume);
        for nth in 0..3 {
            harness.submit(target, Op::Read, nth * READ, READ);
            let guests: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
            guests.into_iter().for_each(|io| harness.perform(io));
        }
        harness.turn();
        let ahead: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
        assert_eq!(bytes_of(&ahead), buffers, "{compression:?}: {ahead:?}");
        // less than the range only while it is being read
        assert_eq!(harness.engine.metrics().read_ahead_memory_bytes, buffers.max(4 * READ), "{compression:?}");
        ahead.into_iter().for_each(|io| harness.perform(io));
        harness.settle();
        assert_eq!(harness.engine.metrics().read_ahead_memory_bytes, after, "{compression:?}");
    }
}

/// Device reads of each batch are few, and guests read none themselves.
#[test]
fn blocks_that_lie_apart_are_read_ahead_in_small_batches() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    write_apart(&mut harness, volume, 2);
    let target = Target::Head(volume);
    (0..2).for_each(|nth| read(&mut harness, target, nth * STEP, 2));
    harness.submit(target, Op::Read, 2 * STEP, STEP);
    harness.turn();
    let mut most = 0;
    for _ in 0..100 {
        let ios: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
        most = most.max(ios.len());
        ios.into_iter().for_each(|io| harness.perform(io));
        harness.turn();
    }
    harness.engine.pop_completion().unwrap().result.unwrap();
    assert!(most > 16 && most < 100, "{most} device reads at once");
    for nth in 3..SIZE / STEP {
        read(&mut harness, target, nth * STEP, 2);
    }
    assert_eq!(counters(&harness), (SIZE - 3 * STEP, SIZE - 3 * STEP));
}

/// Decompressing blocks ahead is left to the caller; a guest's block is decompressed in its turn.
#[test]
fn blocks_ahead_take_nothing_of_what_a_turn_decompresses_for_guests() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Lz4);
    write_apart(&mut harness, volume, 1);
    harness.command(Command::Close).unwrap();
    harness.tuning.codec_at_once = 16;
    harness.reopen();
    let target = Target::Head(volume);
    let ahead = start_ahead(&mut harness, target);
    assert!(ahead.len() > 16, "{} device reads", ahead.len());
    assert!(harness.engine.pop_codec_work().is_none());
    harness.turn();
    ahead.into_iter().for_each(|io| harness.perform(io));
    let far = 20 * STEP;
    harness.submit(target, Op::Read, far, 4096);
    let io = harness.engine.pop_io().expect("a device read");
    harness.perform(io);
    let answer = |harness: &mut Harness| {
        let done = harness.engine.pop_completion()?;
        Some(done.result.unwrap().iter().flat_map(|piece| piece.bytes().to_vec()).collect::<Vec<u8>>())
    };
    assert!(answer(&mut harness).expect("no work for the caller") == pattern(far, 1)[..4096]);
    harness.submit(target, Op::Read, 3 * STEP, STEP);
    harness.turn();
    assert!(answer(&mut harness).is_none(), "its blocks were read ahead, and wait for the caller");
    let mut codec = Codec::default();
    while let Some(mut work) = harness.engine.pop_codec_work() {
        work.run(&mut codec);
        harness.engine.codec_done(work);
    }
    harness.turn();
    assert!(answer(&mut harness).expect("the caller did its work") == pattern(3 * STEP, 1));
}

#[test]
fn reads_of_parts_of_blocks_are_in_order_too() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let before = harness.reads[0];
    for at in (0..STEP).step_by(512) {
        let wanted = &pattern(0, 1)[at as usize..at as usize + 512];
        assert_eq!(harness.request(Target::Head(volume), Op::Read, at, 512, &[]).unwrap(), wanted, "at {at}");
    }
    assert!(harness.reads[0] - before < STEP / 4096, "{}", harness.reads[0] - before);
}

#[test]
fn random_reads_and_volumes_without_a_read_cache_are_not_read_ahead() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let steps = SIZE / STEP;
    // each step is followed by one far from it
    (0..steps).for_each(|nth| read(&mut harness, Target::Head(volume), nth * 29 % steps * STEP, 1));
    assert_eq!(counters(&harness), (0, 0));
    for mode in CacheMode::ALL {
        // what the read cache has is not read ahead
        harness.engine.set_read_cache(ReadCacheSize::shared(0));
        harness.engine.set_read_cache(ReadCacheSize::shared(32 << 20));
        let before = counters(&harness);
        harness.command(CatalogCommand::SetProperties { volume, cache: Some(mode), compression: None, read_only: None }).unwrap();
        read_all(&mut harness, Target::Head(volume), 1);
        assert_eq!(counters(&harness) != before, mode.caches_reads(), "{mode}");
    }
    let mut options = harness.engine.volumes()[0].options;
    options.read_cache = Some(0);
    let mode = CacheMode::Writeback;
    harness.command(CatalogCommand::SetProperties { volume, cache: Some(mode), compression: None, read_only: None }).unwrap();
    harness.command(CatalogCommand::SetOptions { volume, options }).unwrap();
    let before = counters(&harness);
    read_all(&mut harness, Target::Head(volume), 1);
    assert_eq!(counters(&harness), before);
    harness.engine.set_read_cache(ReadCacheSize::shared(0));
    let metrics = harness.engine.metrics();
    assert_eq!((metrics.read_cache_bytes, metrics.read_ahead_memory_bytes), (0, 0));
}

/// Devices are busy without it, and a copy to memory more costs time.
#[test]
fn guests_that_ask_for_a_whole_window_at_a_time_are_not_read_ahead() {
    let length = 4 * STEP;
    for (requests, is_read_ahead) in [(3, true), (4, false)] {
        let (mut harness, volume) = written(Layout::Linear, &[70], 4 * length, Compression::Off);
        (0..requests).for_each(|nth| {
            harness.submit(Target::Head(volume), Op::Read, nth * length, length);
        });
        harness.turn();
        let mut bytes = 0;
        while let Some(io) = harness.engine.pop_io() {
            let IoKind::Read { length, .. } = &io.kind else { panic!("{io:?}") };
            bytes += *length as u64;
        }
        // map nodes and headers between blocks are read, too
        assert_eq!(bytes > requests * length + 2 * STEP, is_read_ahead, "{bytes} bytes for {requests} requests");
        assert!(bytes >= requests * length);
    }
}

#[test]
fn memory_of_blocks_read_ahead_is_not_that_of_the_read_cache() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let ahead = start_ahead(&mut harness, Target::Head(volume));
    let memory = |harness: &Harness| (harness.engine.metrics().read_cache_bytes, harness.engine.metrics().read_ahead_memory_bytes);
    let buffers = bytes_of(&ahead);
    assert!(buffers >= 4 * STEP, "{buffers} bytes");
    assert_eq!(memory(&harness), (0, buffers), "blocks that are being read");
    ahead.into_iter().for_each(|io| harness.perform(io));
    harness.settle();
    assert_eq!(memory(&harness), (0, buffers), "blocks that were read");
    (3..7).for_each(|nth| read(&mut harness, Target::Head(volume), nth * STEP, 1));
    assert_eq!(memory(&harness).0, 0, "blocks that were read once");
}

/// INV-READ-AHEAD-2: it does not read them a second time.
#[test]
fn a_guest_waits_for_blocks_that_are_being_read_ahead() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let target = Target::Head(volume);
    let ahead = start_ahead(&mut harness, target);
    harness.submit(target, Op::Read, 3 * STEP, STEP);
    let second = harness.engine.pop_io();
    assert!(second.is_none(), "a second read of the same blocks: {second:?}");
    assert!(harness.engine.pop_completion().is_none());
    ahead.into_iter().for_each(|io| harness.perform(io));
    harness.settle();
    let data = harness.engine.pop_completion().unwrap().result.unwrap();
    assert!(data.iter().flat_map(|piece| piece.bytes().to_vec()).collect::<Vec<u8>>() == pattern(3 * STEP, 1));
    assert!(data.len() <= 4, "neighbours in one buffer are {} pieces", data.len());
}

#[test]
fn a_guest_waits_for_its_blocks_and_not_for_the_rest_of_the_batch() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    write_apart(&mut harness, volume, 1);
    let target = Target::Head(volume);
    (0..2).for_each(|nth| read(&mut harness, target, nth * STEP, 1));
    harness.submit(target, Op::Read, 2 * STEP, STEP);
    harness.turn();
    let guests: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
    guests.into_iter().for_each(|io| harness.perform(io));
    harness.turn();
    harness.engine.pop_completion().expect("the third read");
    let mut ahead: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
    assert_eq!(ahead.len(), 64, "two batches");
    harness.submit(target, Op::Read, 3 * STEP, STEP);
    harness.turn();
    assert!(harness.engine.pop_completion().is_none(), "its blocks are being read");
    // the last device read of the first batch, 32 of them, is of a block behind those
    let hung = ahead.remove(31);
    ahead.into_iter().for_each(|io| harness.perform(io));
    harness.turn();
    let done = harness.engine.pop_completion().expect("it does not wait for the last device read");
    let bytes: Vec<u8> = done.result.unwrap().iter().flat_map(|piece| piece.bytes().to_vec()).collect();
    assert!(bytes == pattern(3 * STEP, 1));
    harness.perform(hung);
}

/// Operations in flight that are no device reads of read-ahead; a batch is half done.
#[test]
fn nothing_more_is_read_ahead_while_other_operations_keep_devices_busy() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 128 << 10, Compression::Off);
    write_apart(&mut harness, volume, 1);
    let other = harness.volume("other", SIZE, Compression::Off);
    write_apart(&mut harness, other, 1);
    let mut ahead = start_ahead(&mut harness, Target::Head(volume));
    assert_eq!(ahead.len(), 32, "one batch");
    let last = ahead.pop().unwrap();
    ahead.into_iter().for_each(|io| harness.perform(io));
    harness.turn();
    (0..16).for_each(|nth| harness.submit(Target::Head(other), Op::Read, nth * 7 * 4096, 4096));
    let others: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
    assert_eq!(others.len(), 16);
    harness.submit(Target::Head(volume), Op::Read, 3 * STEP, STEP);
    harness.turn();
    harness.engine.pop_completion().expect("its blocks were read ahead").result.unwrap();
    let more = harness.engine.pop_io();
    assert!(more.is_none(), "{more:?}");
    others.into_iter().for_each(|io| harness.perform(io));
    harness.turn();
    assert!(harness.engine.pop_io().is_some(), "the devices are not busy any more");
    harness.perform(last);
}

#[test]
fn holes_that_are_read_in_order_do_not_end_reading_ahead() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let empty = harness.volume("empty", 64 << 20, Compression::Off);
    for at in (0..64u64 << 20).step_by(STEP as usize) {
        harness.request(Target::Head(empty), Op::Read, at, STEP, &[]).unwrap();
    }
    let before = counters(&harness);
    read_all(&mut harness, Target::Head(volume), 1);
    assert_eq!(counters(&harness).0 - before.0, SIZE - 3 * STEP);
}

/// INV-READ-AHEAD-1: whatever is written while blocks are read ahead, and wherever it is put.
#[test]
fn blocks_overwritten_while_they_are_read_ahead_are_never_old() {
    for compression in [Compression::Off, Compression::Lz4] {
        let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, compression);
        let target = Target::Head(volume);
        let ahead = start_ahead(&mut harness, target);
        let place = |io: &Io| match io.kind {
            IoKind::Read { offset, length, .. } => offset as usize..offset as usize + length,
            _ => 0..0,
        };
        let before: Vec<Vec<u8>> = ahead.iter().map(|io| harness.media[0][place(io)].to_vec()).collect();
        // 96 MiB on a device of 70 MiB: places of older blocks are used again, but not these
        for round in 2..26 {
            write_all(&mut harness, volume, round);
        }
        let after: Vec<Vec<u8>> = ahead.iter().map(|io| harness.media[0][place(io)].to_vec()).collect();
        assert!(before == after, "a place was reused while it was being read");
        harness.submit(target, Op::Read, 3 * STEP, STEP);
        harness.settle();
        let data = harness.engine.pop_completion().unwrap().result.unwrap();
        assert!(data.iter().flat_map(|piece| piece.bytes().to_vec()).collect::<Vec<u8>>() == pattern(3 * STEP, 25));
        ahead.into_iter().for_each(|io| harness.perform(io));
        harness.settle();
        for round in 26..30 {
            read_all(&mut harness, target, round - 1);
            write_all(&mut harness, volume, round);
        }
        harness.audit();
    }
}

/// INV-READ-AHEAD-2: as if nothing had been read ahead.
#[test]
fn errors_are_left_to_guests_and_count_once() {
    let mut errors = Vec::new();
    for read_ahead in [0, 1 << 20] {
        let (mut harness, volume) = written(Layout::Linear, &[70], read_ahead, Compression::Off);
        let target = Target::Head(volume);
        let (tuned, ahead) = if read_ahead > 0 {
            let ahead = start_ahead(&mut harness, target);
            let IoKind::Read { offset, .. } = ahead[0].kind else { panic!("{:?}", ahead[0]) };
            (Some(offset), ahead)
        } else {
            (None, Vec::new())
        };
        // the same place in both pools: the first block that is read ahead
        let place = tuned.unwrap_or_else(|| first_place(target));
        harness.bad = Some((0, place));
        ahead.into_iter().for_each(|io| harness.perform(io));
        harness.settle();
        assert_eq!(harness.engine.pool().unwrap().devices[0].errors, 0, "no guest has read it");
        harness.request(target, Op::Read, 3 * STEP, STEP, &[]).unwrap_err();
        errors.push((harness.engine.pool().unwrap().devices[0].errors, harness.engine.pool().unwrap().devices[0].failed));
        harness.bad = None;
        read(&mut harness, target, 3 * STEP, 1);
    }
    assert!(errors[0].0 > 0 && errors[0] == errors[1], "{errors:?}");
}

/// INV-READ-AHEAD-2: map nodes that are read ahead count no errors either, whether a guest waits
/// for them or not.
#[test]
fn errors_of_map_nodes_are_left_to_guests_and_count_once() {
    let (mut place, mut errors) = (None, Vec::new());
    for (read_ahead, joins) in [(1 << 20, false), (1 << 20, true), (0, false)] {
        let (mut harness, volume) = written(Layout::Linear, &[70], read_ahead, Compression::Off);
        harness.command(Command::Close).unwrap();
        harness.reopen();
        let target = Target::Head(volume);
        read(&mut harness, target, 0, 1);
        if read_ahead > 0 {
            let node = read_until_a_node_is_read_ahead(&mut harness, target);
            let IoKind::Read { offset, .. } = node.kind else { panic!("{node:?}") };
            place = Some(offset);
            harness.bad = Some((0, offset));
            if joins {
                harness.submit(target, Op::Read, SECOND_LEAF, STEP);
                harness.turn();
                assert!(harness.engine.pop_io().is_none(), "the node is being read");
            }
            harness.perform(node);
            harness.settle();
            let counted = harness.engine.pool().unwrap().devices[0].errors;
            assert_eq!(counted > 0, joins, "{counted} errors");
        }
        harness.bad = Some((0, place.unwrap()));
        if joins {
            harness.engine.pop_completion().expect("an answer").result.unwrap_err();
        } else {
            harness.request(target, Op::Read, SECOND_LEAF, STEP, &[]).unwrap_err();
        }
        errors.push((harness.engine.pool().unwrap().devices[0].errors, harness.engine.pool().unwrap().devices[0].failed));
        harness.bad = None;
        read(&mut harness, target, SECOND_LEAF, 1);
    }
    assert!(errors[0].0 > 0 && errors.iter().all(|counted| *counted == errors[2]), "{errors:?}");
}

/// Reads on from the second step of a volume, of which one leaf is in memory, until the node of the
/// second leaf is read ahead. Returns that device read, which is not done; all others are.
fn read_until_a_node_is_read_ahead(harness: &mut Harness, target: Target) -> Io {
    let before = harness.engine.metrics().node_reads;
    for at in (STEP..SECOND_LEAF).step_by(STEP as usize) {
        harness.submit(target, Op::Read, at, STEP);
        let mut found = None;
        for _ in 0..20 {
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                let is_node = matches!(io.kind, IoKind::Read { length, .. } if length <= 3 * 4096);
                if is_node && harness.engine.metrics().node_reads > before {
                    assert!(found.replace(io).is_none(), "one node is missing");
                } else {
                    harness.perform(io);
                }
            }
        }
        harness.engine.pop_completion().expect("an answer").result.unwrap();
        if let Some(node) = found {
            return node;
        }
    }
    panic!("no node is read ahead");
}

/// Returns the place on the device of the first block that is read ahead, in a pool of the same
/// history.
fn first_place(target: Target) -> u64 {
    let (mut harness, _) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    let ahead = start_ahead(&mut harness, target);
    let IoKind::Read { offset, .. } = ahead[0].kind else { panic!("{:?}", ahead[0]) };
    offset
}

/// Its exports have ended before: only blocks that are read ahead may be in flight.
#[test]
fn a_read_ahead_that_hangs_does_not_hold_up_the_close_of_a_read_only_pool() {
    let (mut harness, volume) = written(Layout::Linear, &[70], 1 << 20, Compression::Off);
    harness.command(Command::Close).unwrap();
    harness.tuning.read_only = true;
    harness.reopen();
    let hung = start_ahead(&mut harness, Target::Head(volume));
    harness.start(Command::Close);
    harness.turn();
    assert!(harness.engine.pop_reply().is_none(), "a device may be slow");
    let begun = harness.now;
    let reply = loop {
        harness.now += 500;
        harness.turn();
        assert!(harness.engine.pop_io().is_none());
        if let Some((_, reply)) = harness.engine.pop_reply() {
            break reply;
        }
        assert!(harness.now < begun + harness.tuning.silence_millis, "the pool does not close");
    };
    reply.unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Closed);
    hung.into_iter().for_each(|io| harness.perform(io));
    harness.turn();
}

#[test]
fn a_damaged_copy_is_found_and_repaired_by_the_guest() {
    let (mut harness, volume) = written(Layout::Mirror { copies: 2 }, &[70, 70], 1 << 20, Compression::Off);
    let target = Target::Head(volume);
    let ahead = start_ahead(&mut harness, target);
    for io in ahead {
        let IoKind::Read { offset, .. } = io.kind else { panic!("{io:?}") };
        harness.media[io.device.index()][offset as usize] ^= 1;
        harness.perform(io);
    }
    harness.settle();
    let sum = |harness: &Harness| {
        let devices = harness.engine.pool().unwrap().devices;
        devices.iter().fold((0, 0), |sum, device| (sum.0 + device.errors, sum.1 + device.repaired))
    };
    assert_eq!(sum(&harness), (0, 0), "no guest has read it");
    read_all(&mut harness, target, 1);
    let (errors, repaired) = sum(&harness);
    assert!(errors > 0 && repaired > 0, "{errors} errors, {repaired} repaired");
    harness.audit();
}
