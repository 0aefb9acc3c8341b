//! The function that a fuzzer of streams runs; tests call it too, so each test run replays the corpus.

use std::collections::BTreeMap;

use millpond_api::failure::Outcome;
use millpond_api::identity::SnapshotIdentity;

use crate::copy::CopyProgress;
use crate::stream::{Checks, Frame, FrameReader, FrameWriter, Received, Receiver, Reception, StreamHead, put_checksums_right};

mod memory;

#[cfg(test)]
mod tests;

use memory::{Contents, Memory};

/// First byte of an input: checksums are put right, so that damage reaches the parser.
const RESEAL: u8 = 1;
/// First byte of an input: the target has the snapshot on which the stream builds.
const HAS_BASE: u8 = 2;
/// First byte of an input: progress is made durable after each block.
const TURNS: u8 = 4;

/// Most bytes of data in a frame.
const PIECE: usize = 1 << 20;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Result of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its head was refused.
    NoHead,
    /// A frame was refused.
    Refused,
    /// It was read to its end, and the receive refused it.
    ReadOnly,
    /// It was received.
    Received,
}

/// Reads a stream of hostile bytes, writes what was read again, and receives it into a target in
/// memory.
///
/// # Panics
/// When a frame is out of bounds or order, what was read is not what is written again, or a received
/// snapshot differs from the frames.
pub fn fuzz_stream(input: &[u8]) -> Verdict {
    let Some((how, stream)) = input.split_first() else { return Verdict::NoHead };
    let mut stream = stream.to_vec();
    if how & RESEAL != 0 {
        put_checksums_right(&mut stream);
    }
    let Ok((mut reader, head)) = FrameReader::new(&stream[..]) else { return Verdict::NoHead };
    let mut frames = Vec::new();
    let whole = loop {
        match reader.frame() {
            Ok(Frame::End) => break true,
            Ok(frame) => frames.push(frame),
            Err(_) => break false,
        }
    };
    check_order(&head, &frames);
    write_again(&head, &frames, whole);
    let base = head.base.as_ref().filter(|_| how & HAS_BASE != 0);
    let mut target = base.map_or_else(Memory::default, Memory::with);
    let turn = (how & TURNS != 0).then_some(BLOCK);
    let received = receive(&mut target, &stream, turn);
    check_received(&target, &truth(&head, &frames));
    assert!(whole || received.is_err(), "a stream without an end was received");
    let Ok(first) = received else { return if whole { Verdict::ReadOnly } else { Verdict::Refused } };
    let again = receive(&mut target, &stream, turn).expect("a stream that was received");
    assert!(again.snapshots.is_empty() && again.there == first.snapshots.len() + first.there, "it was received twice");
    Verdict::Received
}

fn receive(target: &mut Memory, stream: &[u8], turn_bytes: Option<u64>) -> Outcome<Received> {
    let (mut frames, head) = FrameReader::new(stream).expect("it was read before");
    let how = Reception { resume: None, force: false, checks: Checks::ALL, turn_bytes };
    Receiver::new(target, head, how).run(&mut frames, &CopyProgress::default())
}

/// Checks the frames that the reader let pass.
fn check_order(head: &StreamHead, frames: &[Frame]) {
    let mut inside: Option<(usize, u64)> = None;
    let mut next = None;
    for frame in frames {
        let range = match frame {
            Frame::Data(offset, bytes) => {
                assert!(bytes.len() <= PIECE, "too much data");
                Some((*offset, bytes.len() as u64))
            }
            Frame::Zero(offset, length) => Some((*offset, *length)),
            _ => None,
        };
        match (frame, &mut inside) {
            (Frame::Snapshot(index, position), None) => {
                assert!(next.is_none_or(|next| next == *index && *position == 0), "a snapshot out of order");
                assert!(*position <= head.snapshots[*index].size);
                inside = Some((*index, *position));
            }
            (Frame::Complete(index), Some((of, _))) => {
                assert_eq!(index, of);
                next = Some(index + 1);
                inside = None;
            }
            (_, Some((of, after))) => {
                let (offset, length) = range.expect("a range");
                assert!(length > 0 && offset >= *after && offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK));
                *after = offset.checked_add(length).expect("no overflow");
                assert!(*after <= head.snapshots[*of].size, "beyond the end");
            }
            (frame, None) => panic!("{frame:?} between two snapshots"),
        }
    }
}

/// Writes the frames, and reads them again.
fn write_again(head: &StreamHead, frames: &[Frame], whole: bool) {
    let mut out = FrameWriter::new(Vec::new(), head).expect("memory");
    for frame in frames {
        let written = match frame {
            Frame::Snapshot(index, position) => out.snapshot(*index, *position),
            Frame::Data(offset, bytes) => out.data(*offset, bytes),
            Frame::Zero(offset, length) => out.zero(*offset, *length),
            Frame::Complete(index) => out.complete(*index),
            Frame::Head(_) | Frame::End => panic!("{frame:?} in the middle"),
        };
        written.expect("memory");
    }
    let bytes = out.end().expect("memory");
    let (mut reader, head_again) = FrameReader::new(&bytes[..]).expect("it was read before");
    assert_eq!(&head_again, head);
    for frame in frames {
        assert_eq!(&reader.frame().expect("it was read before"), frame);
    }
    if whole {
        assert_eq!(reader.frame().expect("an end"), Frame::End);
    }
}

/// Returns the contents of the complete snapshots of a stream on an empty base; none where it
/// begins in the middle of one.
fn truth(head: &StreamHead, frames: &[Frame]) -> BTreeMap<SnapshotIdentity, Option<Contents>> {
    let mut contents = Some(Contents::default());
    let mut all = BTreeMap::new();
    for frame in frames {
        match (frame, &mut contents) {
            (Frame::Snapshot(index, position), known) => {
                // one in the middle of the stream builds on those that are left out
                *known = known.take().filter(|_| *position == 0 && (*index == 0 || !all.is_empty()));
                let size = head.snapshots[*index].size;
                known.iter_mut().for_each(|contents| contents.cut(size));
            }
            (Frame::Data(offset, bytes), Some(contents)) => contents.write(*offset, bytes),
            (Frame::Zero(offset, length), Some(contents)) => contents.clear(*offset, *length),
            (Frame::Complete(index), contents) => {
                all.insert(head.snapshots[*index].identity.clone(), contents.clone());
            }
            _ => {}
        }
    }
    all
}

fn check_received(target: &Memory, truth: &BTreeMap<SnapshotIdentity, Option<Contents>>) {
    for (identity, contents) in target.received() {
        let sent = truth.get(identity).expect("a snapshot of the stream that was complete in it");
        assert!(sent.as_ref().is_none_or(|sent| sent == contents), "{identity} is not what was sent");
    }
}
