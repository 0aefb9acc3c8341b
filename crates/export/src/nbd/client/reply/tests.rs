//! Headers of every kind, whole and in part.

use super::*;

fn head(magic: u32, kind: u16, length: u64) -> Vec<u8> {
    let mut bytes = [&magic.to_be_bytes()[..], &CHUNK_DONE.to_be_bytes(), &kind.to_be_bytes(), &7u64.to_be_bytes()].concat();
    if magic == EXTENDED_REPLY_MAGIC {
        bytes.extend([0u64.to_be_bytes(), length.to_be_bytes()].concat());
    } else {
        bytes.extend((length as u32).to_be_bytes());
    }
    bytes
}

/// A complete header is parsed and all of its bytes are consumed; a part of it is incomplete.
#[test]
fn every_beginning_is_awaited_and_understood() {
    for magic in [STRUCTURED_REPLY_MAGIC, EXTENDED_REPLY_MAGIC] {
        let hole = [4096u64.to_be_bytes().to_vec(), 512u32.to_be_bytes().to_vec()].concat();
        let error = [&22u32.to_be_bytes()[..], &2u16.to_be_bytes(), b"no"].concat();
        let cases = [
            ([head(magic, chunk::NONE, 0), vec![]].concat(), 0, Content::None),
            ([head(magic, chunk::OFFSET_DATA, 8 + 4096), 512u64.to_be_bytes().to_vec()].concat(), 0, Content::Data(512, 4096)),
            ([head(magic, chunk::OFFSET_HOLE, 12), hole].concat(), 0, Content::Hole(4096, 512)),
            ([head(magic, chunk::ERROR, 8), error].concat(), 22, Content::None),
        ];
        for (bytes, error, content) in cases {
            let expected = Reply { bytes: bytes.len(), cookie: 7, error, done: true, content };
            assert_eq!(parse(&bytes), Ok(Some(expected)));
            (0..bytes.len()).for_each(|end| assert_eq!(parse(&bytes[..end]), Ok(None), "{end}"));
        }
        let wrong = [(0, 1), (1, 8), (2, 11), (5, 8), (chunk::ERROR, 5), (chunk::ERROR, 1 << 20)];
        for (kind, length) in wrong {
            assert_eq!(parse(&head(magic, kind, length)), Err(Violation::Chunk { kind, length }));
        }
    }
    let extents = [head(STRUCTURED_REPLY_MAGIC, chunk::BLOCK_STATUS, 20), 3u32.to_be_bytes().to_vec()].concat();
    let expected = Reply { bytes: 24, cookie: 7, error: 0, done: true, content: Content::Extents(3, 16) };
    assert_eq!(parse(&extents), Ok(Some(expected)));
    let simple = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &5u32.to_be_bytes(), &9u64.to_be_bytes()].concat();
    let expected = Reply { bytes: SIMPLE_REPLY, cookie: 9, error: 5, done: true, content: Content::None };
    assert_eq!(parse(&simple), Ok(Some(expected)));
    assert_eq!(parse(&[0; 16]), Err(Violation::Reply));
}
