//! Compares the queue of batches in flight with a list that is searched from end to end.

use std::collections::BTreeSet;

use millpond_block::Buf;
use millpond_format::Encoder;

use super::*;
use crate::log::BatchKind;
use millpond_testing::Random;

const SEGMENTS: u32 = 3;

/// A batch in flight as the twin knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plain {
    lsn: Lsn,
    segment: SegmentId,
    unit: u32,
    /// Bytes of each piece of its payload.
    pieces: Vec<Vec<u8>>,
    waiters: Vec<u32>,
}

impl Plain {
    fn of(batch: &InFlight) -> Plain {
        let pieces = batch.pieces.iter().map(|piece| piece.bytes().to_vec()).collect();
        Plain { lsn: batch.lsn, segment: batch.segment, unit: batch.unit, pieces, waiters: batch.waiters.clone() }
    }

    /// Units that one piece holds from `unit` of the segment on.
    fn find(&self, unit: u32, units: u32) -> Option<Vec<u8>> {
        let mut start = self.unit as usize * 512;
        let (from, to) = (unit as usize * 512, (unit + units) as usize * 512);
        for piece in &self.pieces {
            if start <= from && to <= start + piece.len() && from < start + piece.len() {
                return Some(piece[from - start..to - start].to_vec());
            }
            start += piece.len();
        }
        None
    }
}

struct Twin {
    log: Log,
    plain: Vec<Plain>,
    /// Batches in flight that are written.
    written: BTreeSet<Lsn>,
    completed: Lsn,
    next: Lsn,
    random: Random,
}

impl Twin {
    fn push(&mut self) {
        let (segment, unit) = (SegmentId(self.random.small(SEGMENTS)), self.random.small(6) * 8);
        let mut piece = |most: u64| {
            let pages = 1 + self.random.below(most) as usize;
            let mut buf = Buf::zeroed(pages * 4096);
            let seed = self.random.below(251) as usize;
            buf.bytes_mut().chunks_mut(512).enumerate().for_each(|(at, unit)| unit.fill((seed + at) as u8));
            BufSlice::new(buf, 0..pages * 4096)
        };
        let pieces: Vec<BufSlice> = [3, 1, 2].into_iter().map(&mut piece).collect();
        let waiters = (0..self.random.small(3)).map(|n| self.next.0 as u32 * 10 + n).collect();
        let batch = InFlight { lsn: self.next, segment, unit, pieces, waiters, written: false, deferred: Vec::new() };
        self.plain.push(Plain::of(&batch));
        self.log.push(batch);
        self.next.0 += 1;
    }

    /// Reports a batch as written, perhaps one that is not in flight.
    fn written(&mut self) {
        let most = if self.random.once_in(2) { 2 } else { self.plain.len() as u64 + 3 };
        let lsn = Lsn(self.completed.0 + self.random.below(most));
        if self.plain.iter().any(|batch| batch.lsn == lsn) {
            self.written.insert(lsn);
        }
        let first = self.plain.iter().position(|batch| !self.written.contains(&batch.lsn)).unwrap_or(self.plain.len());
        let complete: Vec<Plain> = self.plain.drain(..first).collect();
        complete.last().into_iter().for_each(|batch| self.completed = batch.lsn);
        let found: Vec<Plain> = self.log.written(lsn).iter().map(Plain::of).collect();
        assert_eq!(found, complete, "{lsn} was written");
    }

    /// Takes all waiters, and puts some of them back.
    fn waiters(&mut self) {
        let mut taken = self.log.take_waiters();
        let plain = self.plain.iter_mut().flat_map(|batch| {
            let lsn = batch.lsn;
            std::mem::take(&mut batch.waiters).into_iter().map(move |id| (lsn, id))
        });
        assert_eq!(taken, plain.collect::<Vec<_>>());
        taken.retain(|_| !self.random.once_in(3));
        for (lsn, id) in &taken {
            let batch = self.plain.iter_mut().find(|batch| batch.lsn == *lsn);
            batch.expect("it is in flight").waiters.push(*id);
        }
        self.log.give_waiters(taken);
    }

    fn compare(&mut self) {
        assert_eq!((self.log.next, self.log.completed), (self.next, self.completed));
        assert_eq!(self.log.in_flight_batches(), self.plain.len());
        for segment in (0..=SEGMENTS).map(SegmentId) {
            assert_eq!(self.log.is_in_flight(segment), self.plain.iter().any(|batch| batch.segment == segment));
            let (unit, units) = (self.random.small(100), 1 + self.random.small(9));
            // of batches that overlap the newest counts
            let mut here = self.plain.iter().rev().filter(|batch| batch.segment == segment);
            let plain = here.find_map(|batch| Some((batch.find(unit, units)?, batch.lsn)));
            let found = self.log.find_bytes(segment, unit, units).map(|(piece, lsn)| (piece.bytes().to_vec(), lsn));
            assert_eq!(found, plain, "{units} units from {unit} of {segment}");
        }
    }
}

/// Batches are complete in order, and are found while they are in flight.
#[test]
fn batches_in_flight_are_a_list() {
    let (last, random) = (Lsn(41), Random::new(1));
    let next = Lsn(last.0 + 1);
    let mut twin = Twin { log: Log::new(last), plain: Vec::new(), written: BTreeSet::new(), completed: last, next, random };
    for step in 0..3000 {
        // short and long queues in turn
        let pushes = if step / 300 % 2 == 0 { 4 } else { 2 };
        match twin.random.below(8) {
            0..7 if twin.random.below(6) < pushes => twin.push(),
            0..7 => twin.written(),
            _ => twin.waiters(),
        }
        twin.compare();
    }
    (0..5).for_each(|_| twin.push());
    let plain = std::mem::take(&mut twin.plain);
    assert_eq!(twin.log.abandon().iter().map(Plain::of).collect::<Vec<_>>(), plain);
    twin.compare();
}

/// The pages of the open batch are taken, although nothing is written there yet.
#[test]
fn pages_of_the_open_batch_are_not_left() {
    let cursor = Cursor { segment: SegmentId(1), page: 4, pages: 16 };
    let mut stream = StreamState { cursor: Some(cursor), ..StreamState::default() };
    assert_eq!(stream.left(), 12);
    let mut batch = OpenBatch::new(BatchKind::Blocks, 4, 2, 0, Encoder::default());
    batch.copy(&[1; 3 * 4096], Buf::zeroed);
    stream.batch = Some(batch);
    assert_eq!(stream.left(), 12 - 2 - 3);
}
