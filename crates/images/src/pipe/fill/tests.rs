//! Pieces of a stream, and the size of the volume for them.
use super::*;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

const MIB: usize = 1 << 20;

/// A result, its pieces, and the sizes of the volume that were asked for.
type Read = (Result<u64, FillError>, Vec<Piece>, Vec<u64>);

/// Reads `bytes`, of which `head` were read before, into a volume of `size` bytes.
fn pieces(bytes: &[u8], head: usize, size: u64) -> Read {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let (mut pieces, mut sizes) = (Vec::new(), Vec::new());
    let read = thread::scope(|scope| {
        scope.spawn(move || writer.write_all(&bytes[head..]).expect("written"));
        let feed = Feed { head: bytes[..head].to_vec(), rest: Input::new(File::from(OwnedFd::from(reader))) };
        let mut grow = |size: u64| {
            sizes.push(size);
            Ok(())
        };
        let mut send = |piece: Piece| {
            pieces.push(piece);
            true
        };
        read(feed, size, &mut grow, &CopyProgress::default(), &mut send)
    });
    (read, pieces, sizes)
}

#[test]
fn odd_lengths_are_padded_with_zeroes_to_whole_blocks() {
    for length in [1, 511, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 3 * MIB + 5000] {
        for head in [length.min(MIB), length.min(100), 0] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8 + 1).collect();
            let whole = length.next_multiple_of(4096);
            let (read, pieces, sizes) = pieces(&bytes, head, whole as u64);
            assert_eq!(read.expect("read"), length as u64);
            assert!(sizes.is_empty(), "{length} bytes need no larger volume: {sizes:?}");
            let mut found = Vec::new();
            for piece in pieces {
                assert_eq!(piece.offset, found.len() as u64, "{length} bytes, {head} of them at first");
                assert!(piece.bytes.len() <= MIB);
                found.extend(piece.bytes);
            }
            assert!(found.len() == whole && found[..length] == bytes, "{length} bytes, {head} of them at first");
            assert!(found[length..].iter().all(|byte| *byte == 0), "{length} bytes, {head} of them at first");
        }
    }
}

#[test]
fn a_volume_that_is_too_small_is_doubled_before_a_piece_is_sent() {
    let (read, _, sizes) = pieces(&vec![1; 9 * MIB + 1], 0, MIB as u64);
    assert_eq!(read.expect("read"), 9 * MIB as u64 + 1);
    assert_eq!(sizes, [2, 4, 8, 16].map(|size| size * MIB as u64));
    let (_, _, sizes) = pieces(&[1; 5000], 0, 4096);
    assert_eq!(sizes, [8192]);
}

#[test]
fn a_volume_that_cannot_grow_ends_it() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    writer.write_all(&[1; 5000]).expect("written");
    drop(writer);
    let feed = Feed { head: Vec::new(), rest: Input::new(File::from(OwnedFd::from(reader))) };
    let mut sent = 0;
    let mut send = |_| {
        sent += 1;
        true
    };
    let ended = read(feed, 4096, &mut |_| Err(Failure::failed("no room")), &CopyProgress::default(), &mut send);
    assert!(matches!(&ended, Err(FillError::Grow(failure)) if failure.to_string() == "no room"), "{ended:?}");
    assert_eq!(sent, 0);
}
