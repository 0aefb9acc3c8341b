//! Pieces, compared with the records that they were made from.

use super::*;
use millpond_testing::Random;

/// Records of every density, in order.
fn records(random: &mut Random, count: u64) -> Vec<DeadRecord<'static>> {
    let (mut epoch, mut chunk) = (random.below(3), random.below(1 << 30));
    let record = |_| {
        if random.below(100) == 0 {
            (epoch, chunk) = (epoch + 1 + random.below(200), random.below(1 << 39));
        }
        let far = if random.below(4) == 0 { 100_000 } else { 3 };
        chunk += 1 + random.below(far);
        let first = random.below(100) as u16;
        let density = 1 + random.below(64);
        let mut slots: Vec<u64> = (0..=random.below(20)).map(|_| (0..density).fold(0, |word, _| word | 1 << random.below(64))).collect();
        if random.below(5) == 0 {
            slots.fill(u64::MAX);
        }
        DeadRecord { epoch: Epoch(epoch), chunk: ChunkId(chunk), units: random.below(70_000) as u32, first, slots: slots.into() }
    };
    (0..count).map(record).collect()
}

#[test]
fn a_piece_is_its_records() {
    let mut random = Random::new(7);
    for round in 0..200 {
        let records = records(&mut random, 1 + round * 7);
        let bytes = DeadRecord::encode_piece(&records);
        assert_eq!(DeadRecord::decode_piece(&bytes).as_ref(), Ok(&records), "round {round}");
        let groups = DeadGroup::all(&bytes).unwrap();
        assert_eq!(DeadRecord::encode_groups(&records), (bytes.clone(), groups.clone()));
        let mut from = 0;
        for group in groups {
            let mine = &records[from..from + group.count as usize];
            assert_eq!((group.first as usize, group.epoch), (from, mine[0].epoch));
            assert_eq!(group.units, mine.iter().map(|record| u64::from(record.units)).sum::<u64>());
            assert_eq!(group.records(&bytes).unwrap(), mine);
            from += mine.len();
        }
        assert_eq!(from, records.len());
        let bound: usize = 8 + records.iter().map(|_| MAX_DEAD_RECORD).sum::<usize>();
        assert!(bytes.len() <= bound);
    }
}

/// A list of an older version is a valid piece; its records are sorted by epoch.
#[test]
fn an_old_list_is_a_piece() {
    let record = |epoch, chunk| DeadRecord { epoch: Epoch(epoch), chunk: ChunkId(chunk), units: 8, first: 0, slots: vec![1].into() };
    let mut e = Encoder::default();
    [record(3, 1), record(1, 2), record(3, 4), record(1, 9)].iter().for_each(|record| record.encode(&mut e));
    assert!(!DeadDirectory::is_one(e.bytes()));
    let expected = [record(1, 2), record(1, 9), record(3, 1), record(3, 4)];
    assert_eq!(DeadRecord::decode_piece(e.bytes()).unwrap(), expected);
    // marks are larger than any epoch of a list
    assert!(u64::from_le_bytes(DIRECTORY_MARK) >= 1 << 62 && u64::from_le_bytes(PIECE_MARK) >= 1 << 62);
}

#[test]
fn what_is_not_the_shortest_is_refused() {
    let piece = |tail: &[u8]| DeadRecord::decode_piece(&[&PIECE_MARK[..], tail].concat());
    // epoch 1, one record, chunk 5, 8 units, one run of one slot
    assert!(piece(&[1, 1, 5, 8, 2, 3, 0]).is_ok());
    assert!(piece(&[]).is_err(), "nothing");
    assert!(piece(&[1, 0]).is_err(), "a group of nothing");
    assert!(piece(&[1, 1, 5, 8, 0]).is_err(), "no slot");
    assert!(piece(&[0x81, 0, 1, 5, 8, 2, 3, 0]).is_err(), "a long number");
    assert!(piece(&[1, 1, 5, 8, 4, 3, 0, 0, 0]).is_err(), "runs that touch");
    assert!(piece(&[1, 1, 5, 8, 3, 0, 8, 0, 0, 0, 0, 0, 0, 0]).is_err(), "a bitmap of one slot");
    assert!(piece(&[1, 1, 5, 8, 2, 3, 0, 0, 1, 6, 8, 2, 3, 0]).is_err(), "an epoch in two groups");
    assert!(piece(&[1, 2, 5, 8, 2, 3, 0, 0, 8, 2, 3, 0]).is_err(), "a chunk twice");
}
