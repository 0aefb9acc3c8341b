//! Chunks of reads.

use millpond_block::{Buf, BufPool};

use super::*;

const ASKED: RequestKey = RequestKey { cookie: 7, offset: 0x1000 };

fn piece(length: usize, zeroes: bool) -> BufSlice {
    let buf = Buf::zeroed(length);
    if zeroes { BufSlice::zeroes(buf, 0..length) } else { BufSlice::new(buf, 0..length) }
}

/// Returns for each chunk of a read's reply: kind, whether it is the last, offset, and length.
fn chunks(pieces: &[(usize, bool)], whole: bool) -> Vec<(u16, bool, u64, usize)> {
    let mut output = Output::default();
    let data = pieces.iter().map(|(length, zeroes)| piece(*length, *zeroes)).collect();
    Style::Structured.data(&mut output, ASKED, data, whole);
    let batch = output.lend().expect("a reply");
    let bytes: Vec<u8> = batch.slices().flatten().copied().collect();
    batch.recycle(&mut BufPool::default());
    let mut chunks = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        assert_eq!(rest[..4], [0x66, 0x8e, 0x33, 0xef]);
        let number = |range: std::ops::Range<usize>| rest[range].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        assert_eq!(number(8..16), 7);
        let (last, kind, length) = (number(4..6) == 1, number(6..8) as u16, number(16..20) as usize);
        let covered = match kind {
            chunk::OFFSET_DATA => length - 8,
            chunk::OFFSET_HOLE => number(28..32) as usize,
            _ => 0,
        };
        chunks.push((kind, last, if length > 0 { number(20..28) } else { 0 }, covered));
        rest = &rest[20 + length..];
    }
    chunks
}

#[test]
fn a_plain_block_is_one_chunk() {
    assert_eq!(chunks(&[(4096, false)], false), [(chunk::OFFSET_DATA, true, 0x1000, 4096)]);
    assert_eq!(chunks(&[(4096, false)], true), [(chunk::OFFSET_DATA, true, 0x1000, 4096)]);
}

#[test]
fn neighbours_share_a_chunk_and_zeroes_become_holes() {
    let pieces = [(512, false), (4096, false), (4096, true), (8192, true), (4096, false), (4096, true)];
    let expected = [
        (chunk::OFFSET_DATA, false, 0x1000, 4608),
        (chunk::OFFSET_HOLE, false, 0x2200, 12288),
        (chunk::OFFSET_DATA, false, 0x5200, 4096),
        (chunk::OFFSET_HOLE, true, 0x6200, 4096),
    ];
    assert_eq!(chunks(&pieces, false), expected);
    assert_eq!(chunks(&pieces, true), [(chunk::OFFSET_DATA, true, 0x1000, 25088)]);
}

#[test]
fn only_zeroes_are_one_hole_even_for_who_wants_one_chunk() {
    for whole in [false, true] {
        assert_eq!(chunks(&[(4096, true), (4096, true)], whole), [(chunk::OFFSET_HOLE, true, 0x1000, 8192)]);
    }
}

#[test]
fn nothing_is_an_empty_last_chunk() {
    assert_eq!(chunks(&[], false), [(chunk::NONE, true, 0, 0)]);
    assert_eq!(chunks(&[(0, false)], true), [(chunk::NONE, true, 0, 0)]);
}

#[test]
fn no_chunk_is_longer_than_announced() {
    let most = MAX_CHUNK as u64;
    let expected = [(chunk::OFFSET_DATA, false, 0x1000, MAX_CHUNK), (chunk::OFFSET_DATA, true, 0x1000 + most, 4096)];
    assert_eq!(chunks(&[(MAX_CHUNK + 4096, false)], false), expected);
    assert_eq!(chunks(&[(MAX_CHUNK - 4096, false), (8192, false)], false), expected);
    let holes = [(chunk::OFFSET_HOLE, false, 0x1000, MAX_CHUNK), (chunk::OFFSET_HOLE, true, 0x1000 + most, 4096)];
    assert_eq!(chunks(&[(4096, true), (MAX_CHUNK, true)], false), holes);
}

#[test]
fn errors_carry_words_where_they_can() {
    let said = |style: Style| {
        let mut output = Output::default();
        style.error(&mut output, ASKED, Errno::Inval, "why");
        let batch = output.lend().expect("a reply");
        batch.slices().flatten().copied().collect::<Vec<u8>>()
    };
    assert_eq!(said(Style::Simple), wire::simple_reply(Some(Errno::Inval), 7));
    let header = wire::structured_reply(CHUNK_DONE, chunk::ERROR, 7, 9);
    assert_eq!(said(Style::Structured), [&header[..], &[0, 0, 0, 22, 0, 3], b"why"].concat());
    let header = wire::extended_reply(CHUNK_DONE, chunk::ERROR, 7, 0x1000, 9);
    assert_eq!(said(Style::Extended), [&header[..], &[0, 0, 0, 22, 0, 3], b"why"].concat());
}
