//! Marks of encrypted blocks in items.

use super::*;

const MARKS: [Mark; 3] = [Mark::Clear, Mark::Encrypted, Mark::Foreign];

/// Decodes an item and returns the bytes that are left.
fn read(bytes: &[u8]) -> Result<(Item, usize), FormatError> {
    let mut d = Decoder::new(bytes);
    Ok((Item::decode(&mut d)?, d.remaining()))
}

fn encoded(item: &Item) -> Vec<u8> {
    let mut e = Encoder::default();
    item.encode(&mut e);
    e.into_bytes()
}

fn blocks(stored: Vec<StoredBlock>) -> Item {
    Item::Blocks { volume: VolumeId(7), block: BlockNo(8), stored }
}

fn block(units: u8, coding: Coding, mark: Mark) -> StoredBlock {
    StoredBlock { crc: 9, units, coding, mark }
}

#[test]
fn a_run_has_the_shortest_form_that_holds_its_marks() {
    let raw = |mark| StoredBlock::raw(9, mark);
    let packed = block(3, Coding::Lz4, Mark::Encrypted);
    for (form, stored) in [
        (0, vec![raw(Mark::Clear); 3]),
        (2, vec![raw(Mark::Encrypted); 3]),
        (1, vec![raw(Mark::Clear), raw(Mark::Encrypted)]),
        (1, vec![raw(Mark::Encrypted), packed]),
        (1, vec![block(9, Coding::Raw, Mark::Foreign)]),
    ] {
        let item = blocks(stored.clone());
        let bytes = encoded(&item);
        assert_eq!((bytes[1], bytes.len()), (form, run_bytes(stored.len(), form == 1)), "{stored:?}");
        assert_eq!(read(&bytes), Ok((item, 0)));
    }
    let mut bytes = encoded(&blocks(vec![raw(Mark::Encrypted)]));
    bytes[1] = 3;
    bytes.push(8 | 1 << 6);
    assert_eq!(read(&bytes), Err(FormatError::Field("packed")), "two ways to say encrypted");
}

/// Each value of the byte with units, coding and mark.
#[test]
fn the_byte_of_a_packed_block_holds_what_the_mark_allows() {
    let mut sound = 0;
    for byte in 0..=u8::MAX {
        let mut bytes = encoded(&blocks(vec![block(1, Coding::Lz4, Mark::Clear)]));
        *bytes.last_mut().unwrap() = byte;
        let found = read(&bytes);
        let (units, coding, mark) = (byte & 15, byte >> 4 & 3, usize::from(byte >> 6));
        let most = [[15, 15, 15], [8, 7, 7], [9, 8, 8]].get(mark).and_then(|most| most.get(usize::from(coding)).copied());
        let least = [[1, 1, 1], [8, 1, 1], [9, 1, 1]].get(mark).and_then(|least| least.get(usize::from(coding)).copied());
        match (least, most) {
            (Some(least), Some(most)) if (least..=most).contains(&units) => {
                let coding = [Coding::Raw, Coding::Lz4, Coding::Zstd][usize::from(coding)];
                assert_eq!(found, Ok((blocks(vec![block(units, coding, MARKS[mark])]), 0)), "{byte:x}");
                sound += 1;
            }
            (None, _) if coding == 3 => assert_eq!(found, Err(FormatError::Field("coding")), "{byte:x}"),
            (None, _) => assert_eq!(found, Err(FormatError::Field("mark")), "{byte:x}"),
            _ => assert_eq!(found, Err(FormatError::Field("units")), "{byte:x}"),
        }
    }
    assert_eq!(sound, 45 + 15 + 17);
}

#[test]
fn bit_15_of_the_slot_of_a_small_run_says_encrypted() {
    let run = |encrypted| SmallRun {
        lsn: Lsn(1),
        volume: VolumeId(2),
        block: BlockNo(3),
        segment: SegmentId(4),
        chunk: ChunkId(5),
        slot: 1023,
        encrypted,
        crcs: vec![6],
    };
    let small = |encrypted| Item::Small { batches: 1, runs: vec![run(encrypted)] };
    let (clear, marked) = (encoded(&small(false)), encoded(&small(true)));
    let differ: Vec<(u8, u8)> = clear.iter().zip(&marked).filter(|(a, b)| a != b).map(|(a, b)| (*a, *b)).collect();
    assert_eq!((clear.len(), differ), (marked.len(), vec![(0x03, 0x83)]));
    assert_eq!(read(&marked), Ok((small(true), 0)));
    assert_eq!(read(&clear), Ok((small(false), 0)));
    // the bound of slots holds with and without the bit
    let beyond = |encrypted| read(&encoded(&Item::Small { batches: 1, runs: vec![SmallRun { slot: 1024, ..run(encrypted) }] }));
    assert_eq!((beyond(false), beyond(true)), (Err(FormatError::Field("slot")), Err(FormatError::Field("slot"))));
}

#[test]
fn blocks_whose_addresses_stay_keep_their_marks() {
    let source = Addr::new(ChunkId(5), 6, 8, Coding::Raw);
    let sources = vec![(source.marked(Mark::Encrypted), 9), (source, 10)];
    let item = Item::Forward { volume: VolumeId(7), block: BlockNo(8), sources };
    assert_eq!(read(&encoded(&item)), Ok((item.clone(), 0)));
    let stored = vec![StoredBlock::raw(9, Mark::Encrypted), StoredBlock::raw(10, Mark::Clear)];
    assert_eq!(item.into_blocks(), Some((VolumeId(7), BlockNo(8), stored)));
}

#[test]
fn items_of_encrypted_pools_are_recognized() {
    let identity =
        |mark| BlockIdentity { volume: VolumeId(1), block: BlockNo(2), lsn: Lsn(3), crc: 4, units: 8, coding: Coding::Raw, mark };
    let moved = |mark| Move {
        chunk: ChunkId(1),
        epoch: Epoch(1),
        birth: 1,
        grain: 8,
        at: 0,
        present: vec![3],
        identities: vec![identity(Mark::Clear), identity(mark)],
    };
    let source = Addr::new(ChunkId(5), 6, 8, Coding::Raw);
    let forward = |mark| Item::Forward { volume: VolumeId(7), block: BlockNo(8), sources: vec![(source, 1), (source.marked(mark), 2)] };
    for (mark, needs) in [(Mark::Clear, false), (Mark::Encrypted, true)] {
        let items = [blocks(vec![StoredBlock::raw(1, Mark::Clear), StoredBlock::raw(2, mark)]), Item::Move(moved(mark)), forward(mark)];
        assert!(items.iter().all(|item| item.needs_encryption() == needs), "{mark:?}");
    }
    assert!(!Item::Clear { volume: VolumeId(1), block: BlockNo(1), count: 1 }.needs_encryption());
}

#[test]
fn an_encrypted_volume_has_a_key() {
    let volume = crate::VolumeRecord {
        id: VolumeId(1),
        name: "secret".into(),
        size: 1 << 20,
        sector: 1,
        cache: 3,
        compression: 0,
        read_only: false,
        lineage: crate::LineageId(1),
        created: 5,
    };
    let create = |key| Item::Record(Record::CreateEncrypted { volume: volume.clone(), key: crate::KeyId(key) });
    let bytes = encoded(&create(7));
    assert_eq!((bytes[1], read(&bytes)), (25, Ok((create(7), 0))));
    assert!(create(7).needs_encryption() && !Item::Record(Record::CreateVolume { volume: volume.clone() }).needs_encryption());
    assert_eq!(read(&encoded(&create(0))), Err(FormatError::Field("key")), "free places of the key table have this number");
}
