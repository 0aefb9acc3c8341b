//! Stored forms, and what is refused of them.

use super::*;
use crate::{chunk, page, record};

#[test]
fn chunks_come_back_whether_they_compress_or_not() {
    let mut rng = Random::new(1);
    let noise: Vec<u8> = (0..CHUNK).map(|_| rng.below(256) as u8).collect();
    for content in [noise.clone(), vec![7; CHUNK as usize], b"short".to_vec()] {
        let id = ChunkId::of(&content);
        let stored = chunk::encode(&content);
        assert!(stored.len() <= content.len() + 8);
        assert_eq!(chunk::decode(Purpose::Backups, id, &stored).expect("a chunk"), content);
        for at in (0..stored.len()).step_by(stored.len() / 7 + 1) {
            let mut wrong = stored.clone();
            wrong[at] ^= 0x10;
            assert!(
                chunk::decode(Purpose::Backups, id, &wrong).is_err()
                    || chunk::decode(Purpose::Backups, id, &wrong).expect("the same") == content
            );
            assert!(chunk::decode(Purpose::Backups, id, &stored[..at]).is_err());
        }
        assert!(chunk::decode(Purpose::Backups, ChunkId::of(b"other"), &stored).is_err());
    }
    assert!(chunk::encode(&[7; 1 << 20]).len() < 1000);
}

#[test]
fn a_chunk_that_decompresses_to_more_is_refused() {
    for (of, large) in [(Purpose::Backups, 2 << 20), (Purpose::Publications, 1 << 20)] {
        let large = vec![1; large];
        assert!(chunk::decode(of, ChunkId::of(&large), &chunk::encode(&large)).is_err());
    }
}

#[test]
fn ids_have_one_text() {
    let id = ChunkId::of(b"x");
    assert_eq!(id.to_string().parse(), Ok(id));
    // FIPS 180-2, of the letter
    assert_eq!(id.to_string(), "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    for wrong in ["", "2d", &id.to_string().to_uppercase(), &format!("+{}", &id.to_string()[1..])] {
        assert!(wrong.parse::<ChunkId>().is_err(), "{wrong}");
    }
    assert!(ChunkId::of(&[0; 100]).is_zero() && !ChunkId::of(&[1]).is_zero());
}

#[test]
fn lists_have_their_length() {
    let ids = vec![ChunkId::of(b"a"), ChunkId::ZERO];
    let list = page::encode(&ids);
    assert_eq!(page::decode(Purpose::Backups, &list, 2, "x").expect("a list"), ids);
    assert!(page::decode(Purpose::Backups, &list, 3, "x").is_err());
    for of in [Purpose::Backups, Purpose::Publications] {
        assert_eq!((of.pages_of(1), of.pages_of(of.page_span()), of.pages_of(of.page_span() + 1)), (1, 1, 2));
        // both kinds of lists are chunks
        assert!(page::SLOTS * 32 <= of.chunk_len());
        assert_eq!(of.pages_of(of.largest_volume()) * 32, of.chunk_len());
    }
}

#[test]
fn records_that_were_changed_are_refused() {
    let whole = record(3, 4096, None);
    let path = "backups/tank/vm1/s3.json";
    let text = record::encode(&whole);
    let read = |text: &[u8]| record::decode::<Record>(Purpose::Backups, text, path).and_then(|record| record.check(Purpose::Backups, path));
    assert_eq!(read(&text).expect("a record"), whole);
    for at in 0..text.len() - 1 {
        let mut wrong = text.clone();
        wrong[at] ^= 1;
        assert!(read(&wrong).is_err(), "byte {at}");
        assert!(read(&text[..at]).is_err(), "cut at {at}");
    }
    assert!(read(&record::encode(&Record { size: 0, ..whole.clone() })).is_err());
    assert!(read(&record::encode(&Record { name: "tank/vm2@s3".into(), ..whole.clone() })).is_err());
    assert!(matches!(read(&record::encode(&Record { format: 2, ..whole.clone() })), Err(BackupError::Newer(_))));
    // a publication has an id, and a backup none; records of backups have no word for it
    assert!(read(&record::encode(&published(3, 4096, None))).is_err());
    assert!(published(3, 4096, None).check(Purpose::Publications, path).is_ok() && whole.check(Purpose::Publications, path).is_err());
    assert!(!String::from_utf8_lossy(&text).contains("publication"));
}
