use super::{Ask, Kind, Part, Status};
use crate::testing::driver::{DATA, HIGH, memory};
use crate::vhost_user::chain::{Chain, Segment};
use millpond_block::{ByteRange, Op};
use vm_memory::{Bytes, GuestAddress};

fn segment(at: u64, length: u32) -> Segment {
    Segment { at: GuestAddress(at), length }
}

/// Decodes a request of a header, `out` as data for the device, and `room` bytes for its answer.
/// All are cut into segments of `cut` bytes.
fn ask(kind: u32, sector: u64, out: &[u8], room: u32, cut: usize) -> Option<Ask> {
    let memory = memory();
    let mut bytes = [kind.to_le_bytes(), [0; 4]].concat();
    bytes.extend_from_slice(&sector.to_le_bytes());
    bytes.extend_from_slice(out);
    memory.write_slice(&bytes, GuestAddress(DATA)).expect("memory");
    let pieces = |at: u64, length: usize| {
        let starts = (0..length).step_by(cut);
        starts.map(|start| segment(at + start as u64, cut.min(length - start) as u32)).collect()
    };
    let mut chain = Chain { readable: pieces(DATA, bytes.len()), writable: pieces(HIGH, room as usize) };
    Ask::read(&memory, &mut chain)
}

/// Case of a refused request: name, type, sector, data for the device, bytes for the answer, and
/// the expected status.
type Refused = (&'static str, u32, u64, Vec<u8>, u32, Status);

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [sector.to_le_bytes().as_slice(), &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn requests_are_the_same_however_they_are_cut() {
    for cut in [1, 5, 16, 17, 512, 10_000] {
        let read = ask(0, 7, &[], 1025, cut).expect("a place for the status");
        let one = |op, offset, length| Ok(Kind::Disk([Part { op, range: ByteRange { offset, length } }].into_iter().collect()));
        assert_eq!((read.kind, read.length, read.status_at), (one(Op::Read, 3584, 1024), 1024, GuestAddress(HIGH + 1024)), "{cut}");
        assert_eq!(read.data.iter().map(|s| s.length).sum::<u32>(), 1024, "{cut}");
        let write = ask(1, 8, &[9; 512], 1, cut).expect("a place for the status");
        assert_eq!((write.kind, write.length, write.status_at), (one(Op::Write, 4096, 512), 512, GuestAddress(HIGH)), "{cut}");
        assert_eq!(write.data.first().map(|s| s.at), Some(GuestAddress(DATA + 16)), "{cut}");
        let two = [range(1, 2, 1), range(8, 16, 0)].concat();
        let zero = ask(13, 0, &two, 1, cut).expect("a place for the status");
        let part = |may_unmap, offset, length| Part { op: Op::WriteZeroes { may_unmap }, range: ByteRange { offset, length } };
        let parts = [part(true, 512, 1024), part(false, 4096, 8192)];
        assert_eq!(zero.kind, Ok(Kind::Disk(parts.into_iter().collect())), "{cut}");
    }
}

#[test]
fn what_cannot_be_done_is_refused() {
    let cases: [Refused; 9] = [
        ("a read of nothing", 0, 0, vec![], 1, Status::IoError),
        ("a write of nothing", 1, 0, vec![], 1, Status::IoError),
        ("a sector beyond all bytes", 0, u64::MAX / 512 + 1, vec![], 513, Status::IoError),
        ("a discard of nothing", 11, 0, vec![], 1, Status::IoError),
        ("half a range", 11, 0, vec![0; 24], 1, Status::IoError),
        ("too many ranges", 11, 0, range(0, 1, 0).repeat(33), 1, Status::IoError),
        ("a discard with a flag", 11, 0, range(0, 1, 1), 1, Status::Unsupported),
        ("zeroing with an unknown flag", 13, 0, range(0, 1, 2), 1, Status::Unsupported),
        ("secure erase", 14, 0, range(0, 1, 0), 1, Status::Unsupported),
    ];
    for (what, kind, sector, out, room, status) in cases {
        assert_eq!(ask(kind, sector, &out, room, 4096).expect("a place for the status").kind, Err(status), "{what}");
    }
    assert!(ask(0, 0, &[], 0, 16).is_none(), "without a place for the status there is no request");
    let memory = memory();
    let mut chain = Chain { readable: [segment(DATA, 15)].into_iter().collect(), writable: [segment(HIGH, 1)].into_iter().collect() };
    assert_eq!(Ask::read(&memory, &mut chain).expect("a status").kind, Err(Status::IoError), "a short header");
    let mut chain =
        Chain { readable: [segment(DATA, 16)].into_iter().collect(), writable: (0..80).map(|_| segment(HIGH, 1 << 20)).collect() };
    assert_eq!(Ask::read(&memory, &mut chain).expect("a status").kind, Err(Status::IoError), "more than a disk takes");
}
