//! Members without a device.

use millpond_block::{IoDone, MemberId};
use millpond_format::{Class, Column, DeviceId, Group as Extents, Layout, Member, MemberState, Shape};

use super::*;

/// A table of two members, of which the second one has no device although it should.
fn table(layout: Layout) -> IoTable<&'static str> {
    let member = |at: u64| Member {
        device: DeviceId(100 + at),
        extents: 4,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let columns = [0, 1].map(MemberId).map(|member| Column { member, first: 0, extents: 4 }).to_vec();
    let shape = Shape {
        generation: 1,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        next: SegmentId(4),
        members: [0, 1].map(member).to_vec(),
        groups: vec![Extents { class: Class::Data, layout, first: SegmentId(0), columns }],
    };
    IoTable::new(vec![Some(DeviceSlot(7)), None], Health::of(&shape))
}

fn write_to_both(io: &mut IoTable<&'static str>, bufs: &mut BufPool) {
    let piece = BufSlice::new(bufs.take(4096), 0..4096);
    io.write_raw("write", vec![(MemberId(1), 0, piece.clone()), (MemberId(0), 0, piece)]);
}

/// Completes the operations that were started, all of which are for the first member's device.
fn complete(io: &mut IoTable<&'static str>, bufs: &mut BufPool) -> Option<Ended<&'static str>> {
    let sent = io.pop(false).expect("an operation of the first member");
    assert_eq!(sent.device, DeviceSlot(7));
    assert!(io.pop(false).is_none(), "an operation of the second member");
    io.done(IoDone { id: sent.id, result: Ok(()), buf: None }, bufs)
}

#[test]
fn a_read_of_a_member_without_a_device_fails_and_is_not_sent() {
    let (mut io, mut bufs) = (table(Layout::Linear), BufPool::default());
    io.read_raw("read", MemberId(1), ByteRange { offset: 0, length: 4096 }, &mut bufs);
    assert!(io.pop(false).is_none());
    let ended = io.pop_idle(&mut bufs).expect("the end of the read");
    assert_eq!((ended.context, ended.result, ended.buf.is_none()), ("read", Err(DeviceError::Gone), true));
}

#[test]
fn a_write_without_a_needed_device_fails() {
    let (mut io, mut bufs) = (table(Layout::Linear), BufPool::default());
    write_to_both(&mut io, &mut bufs);
    let ended = complete(&mut io, &mut bufs).expect("the end of the write");
    assert_eq!((ended.context, ended.result), ("write", Err(DeviceError::Gone)));
    assert_eq!((io.pop_failing(), &*io.errors), (None, &[0, 1][..]));
    assert_eq!(io.failures, [0, 1], "the error is a failed operation");
}

#[test]
fn a_member_without_a_device_is_given_up_where_the_other_has_everything() {
    let (mut io, mut bufs) = (table(Layout::Mirror { copies: 2 }), BufPool::default());
    write_to_both(&mut io, &mut bufs);
    let ended = complete(&mut io, &mut bufs).expect("the end of the write");
    assert_eq!((ended.context, ended.result), ("write", Ok(())));
    let why = DeviceTrouble::Failed(DeviceError::Gone);
    assert_eq!(io.pop_failing(), Some(Failing { member: MemberId(1), replica: Replica::Current, why }));
}

#[test]
fn a_flush_without_a_needed_device_ends_and_fails() {
    let (mut io, mut bufs) = (table(Layout::Linear), BufPool::default());
    assert!(io.flush("flush"));
    let ended = complete(&mut io, &mut bufs).expect("the end of the flush");
    assert_eq!((ended.context, ended.result), ("flush", Err(DeviceError::Gone)));
}
