//! The transmission phase, against a disk in memory.

mod flow;
mod twin;

use millpond_block::{DiskError, Op, SectorProfile};

use super::*;
use crate::nbd::LARGE_WRITE;
use crate::nbd::wire::{self, Style, command, command_flag};
use crate::testing::{Loopback, MemoryDisk, Order, Reads, Reply, extended_request, parse_replies, request, write};
use millpond_testing::pattern;

const SIZE: usize = 1 << 20;
const END: u64 = SIZE as u64;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

fn disk() -> MemoryDisk {
    MemoryDisk::new(SIZE, SectorProfile::S512e)
}

fn connected() -> Loopback {
    Loopback::connected(disk())
}

/// Returns the simple replies so far. `reads` contains the length of each read by cookie.
fn simple(loopback: &mut Loopback, reads: &[(u64, u64)]) -> Result<Vec<Reply>, String> {
    let reads: Reads = reads.iter().map(|(cookie, length)| (*cookie, 0..*length)).collect();
    parse_replies(&loopback.take_output(), &reads, Style::Simple)
}

/// Feeds one message and returns the reply to it.
fn ask(loopback: &mut Loopback, message: &[u8]) -> Reply {
    assert_eq!(loopback.feed(message), message.len());
    let header = wire::RequestHeader::read(message, Style::Simple).expect("a header");
    let read = (header.command == command::READ).then(|| (header.cookie, header.offset..header.offset.saturating_add(header.length)));
    let reads: Reads = read.into_iter().collect();
    let mut replies = parse_replies(&loopback.take_output(), &reads, Style::Simple).expect("replies");
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies.pop().expect("one")
}

fn error_of(loopback: &mut Loopback, message: &[u8]) -> u32 {
    ask(loopback, message).error
}

/// Returns true if the stream is in step: a request is understood and answered.
fn in_step(loopback: &mut Loopback) -> bool {
    let reply = ask(loopback, &request(command::READ, 0, 0xfeed, 0, 512));
    reply.cookie == 0xfeed && reply.error == 0 && reply.data.len() == 512
}

fn submitted(loopback: &Loopback) -> Vec<(Op, u64, u64, bool)> {
    loopback.disk.log.iter().map(|(r, _)| (r.op, r.range.offset, r.range.length, r.fua)).collect()
}

#[test]
fn what_was_written_is_read() {
    let mut loopback = connected();
    let data = pattern(0, 4096, 1);
    assert_eq!(ask(&mut loopback, &write(0, 1, 8192, &data)), Reply { cookie: 1, error: 0, data: vec![], status: vec![] });
    assert_eq!(ask(&mut loopback, &request(command::READ, 0, 2, 8192, 4096)), Reply { cookie: 2, error: 0, data, status: vec![] });
    assert_eq!(ask(&mut loopback, &request(command::READ, 0, 3, 0, 512)).data, [0; 512]);
}

#[test]
fn every_command_reaches_the_disk_with_its_flags() {
    let mut loopback = connected();
    let messages = [
        request(command::READ, 0, 1, 512, 1024),
        write(0, 2, 512, &[1; 512]),
        write(command_flag::FUA, 3, 1024, &[1; 512]),
        request(command::FLUSH, 0, 4, 0, 0),
        request(command::TRIM, 0, 5, 4096, 8192),
        request(command::TRIM, command_flag::FUA, 6, 4096, 8192),
        request(command::CACHE, 0, 7, 0, 4096),
        request(command::WRITE_ZEROES, 0, 8, 0, 512),
        request(command::WRITE_ZEROES, command_flag::NO_HOLE, 9, 0, 512),
        request(command::WRITE_ZEROES, command_flag::NO_HOLE | command_flag::FUA, 10, 0, 512),
    ];
    for message in messages {
        assert_eq!(error_of(&mut loopback, &message), 0);
    }
    let zeroes = |may_unmap| Op::WriteZeroes { may_unmap };
    let expected = [
        (Op::Read, 512, 1024, false),
        (Op::Write, 512, 512, false),
        (Op::Write, 1024, 512, true),
        (Op::Flush, 0, 0, false),
        (Op::Discard, 4096, 8192, false),
        (Op::Discard, 4096, 8192, true),
        (Op::Cache, 0, 4096, false),
        (zeroes(true), 0, 512, false),
        (zeroes(false), 0, 512, false),
        (zeroes(false), 0, 512, true),
    ];
    assert_eq!(submitted(&loopback), expected);
    let counters = Counters { reads: 1, read_bytes: 1024, writes: 2, write_bytes: 1024, flushes: 1, trims: 5, errors: 0 };
    assert_eq!(loopback.session.counters(), counters);
}

#[test]
fn fua_means_nothing_where_nothing_is_written() {
    let mut loopback = connected();
    for message in [
        request(command::READ, command_flag::FUA, 1, 0, 512),
        request(command::FLUSH, command_flag::FUA, 1, 0, 0),
        request(command::CACHE, command_flag::FUA, 1, 0, 512),
    ] {
        assert_eq!(error_of(&mut loopback, &message), 0);
    }
    assert!(loopback.disk.log.iter().all(|(request, _)| !request.fua));
}

#[test]
fn unknown_flags_and_commands_are_invalid() {
    let mut loopback = connected();
    let commands = [command::READ, command::FLUSH, command::TRIM, command::CACHE, command::WRITE_ZEROES];
    for command in commands {
        for bit in 1..16 {
            if command == command::WRITE_ZEROES && [1, 4].contains(&bit) {
                continue;
            }
            let length = if command == command::FLUSH { 0 } else { 512 };
            assert_eq!(error_of(&mut loopback, &request(command, 1 << bit, 1, 0, length)), EINVAL);
        }
    }
    for bit in 1..16 {
        assert_eq!(error_of(&mut loopback, &write(1 << bit, 1, 0, &[7; 512])), EINVAL);
    }
    for command in [7, 8, 9, 255, u16::MAX] {
        assert_eq!(error_of(&mut loopback, &request(command, 0, 1, 0, 512)), EINVAL);
    }
    assert!(loopback.disk.log.is_empty());
    assert!(in_step(&mut loopback));
}

#[test]
fn flush_takes_no_range() {
    let mut loopback = connected();
    assert_eq!(error_of(&mut loopback, &request(command::FLUSH, 0, 1, 512, 0)), EINVAL);
    assert_eq!(error_of(&mut loopback, &request(command::FLUSH, 0, 1, 0, 512)), EINVAL);
}

#[test]
fn beyond_the_end() {
    let mut loopback = connected();
    for (offset, length) in [(END, 512), (END - 512, 1024), (u64::MAX - 511, 512), (1 << 63, 512), (0, 2 << 20)] {
        for (command, expected) in
            [(command::READ, EINVAL), (command::TRIM, EINVAL), (command::CACHE, EINVAL), (command::WRITE_ZEROES, ENOSPC)]
        {
            assert_eq!(error_of(&mut loopback, &request(command, 0, 1, offset, length)), expected, "{command}");
        }
        assert_eq!(error_of(&mut loopback, &write(0, 1, offset, &vec![1; length as usize])), ENOSPC);
    }
    assert!(loopback.disk.log.is_empty());
    assert!(in_step(&mut loopback));
}

#[test]
fn less_than_the_minimum_block_is_invalid() {
    for (sector, wrong) in [(SectorProfile::S512n, 256u32), (SectorProfile::S512e, 511), (SectorProfile::S4kn, 512)] {
        let mut loopback = Loopback::connected(MemoryDisk::new(SIZE, sector));
        let unit = sector.logical();
        for (offset, length) in [(wrong, unit), (0, wrong), (unit, unit + wrong)] {
            for command in [command::READ, command::TRIM, command::CACHE, command::WRITE_ZEROES] {
                assert_eq!(error_of(&mut loopback, &request(command, 0, 1, offset.into(), length)), EINVAL);
            }
            assert_eq!(error_of(&mut loopback, &write(0, 1, offset.into(), &vec![1; length as usize])), EINVAL);
        }
        assert_eq!(error_of(&mut loopback, &request(command::READ, 0, 1, unit.into(), unit)), 0);
    }
}

#[test]
fn a_length_of_nothing_succeeds_and_does_nothing() {
    let mut loopback = connected();
    for command in [command::READ, command::WRITE, command::TRIM, command::CACHE, command::WRITE_ZEROES] {
        assert_eq!(ask(&mut loopback, &request(command, 0, 5, 512, 0)), Reply { cookie: 5, error: 0, data: vec![], status: vec![] });
        assert_eq!(error_of(&mut loopback, &request(command, 0, 5, END, 0)), 0);
        assert_ne!(error_of(&mut loopback, &request(command, 0, 5, END + 512, 0)), 0);
        assert_eq!(error_of(&mut loopback, &request(command, 0, 5, 1, 0)), EINVAL);
    }
    assert!(loopback.disk.log.is_empty());
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut loopback = Loopback::connected(disk().with_read_only(true));
    for length in [512, 100_000, 300_000] {
        assert_eq!(error_of(&mut loopback, &write(0, 1, 0, &vec![1; length])), EPERM);
    }
    assert_eq!(error_of(&mut loopback, &request(command::TRIM, 0, 1, 0, 512)), EPERM);
    assert_eq!(error_of(&mut loopback, &request(command::WRITE_ZEROES, 0, 1, 0, 512)), EPERM);
    assert_eq!(error_of(&mut loopback, &request(command::FLUSH, 0, 1, 0, 0)), 0);
    assert_eq!(error_of(&mut loopback, &request(command::CACHE, 0, 1, 0, 512)), 0);
    assert_eq!(error_of(&mut loopback, &write(0, 1, 0, &[])), EPERM);
    assert!(in_step(&mut loopback));
}

#[test]
fn errors_of_the_disk_are_reported() {
    let mut loopback = connected();
    for (error, number) in [
        (DiskError::Io, EIO),
        (DiskError::NoSpace, ENOSPC),
        (DiskError::Invalid, EINVAL),
        (DiskError::OutOfBounds, EINVAL),
        (DiskError::ReadOnly, EPERM),
        (DiskError::NotSupported, ENOTSUP),
        (DiskError::Shutdown, ESHUTDOWN),
    ] {
        loopback.disk.fail(Some(error));
        let reply = ask(&mut loopback, &request(command::READ, 0, 1, 0, 512));
        assert_eq!(reply, Reply { cookie: 1, error: number, data: vec![], status: vec![] }, "an error comes without data");
        let number = if error == DiskError::OutOfBounds { ENOSPC } else { number };
        assert_eq!(error_of(&mut loopback, &write(0, 1, 0, &[1; 512])), number);
        assert_eq!(error_of(&mut loopback, &write(0, 1, 0, &[1; 65536])), number);
    }
    assert_eq!(loopback.session.counters().errors, 21);
    loopback.disk.fail(None);
    assert!(in_step(&mut loopback));
}

#[test]
fn a_read_of_the_wrong_length_becomes_an_error() {
    let mut loopback = connected();
    loopback.hold = true;
    loopback.feed(&request(command::READ, 0, 1, 0, 1024));
    let completion = loopback.disk.pop_completion().expect("submitted");
    let short = completion.result.expect("data").iter().map(|piece| piece.slice(0..512)).collect();
    assert!(loopback.session.complete(Completion { tag: completion.tag, result: Ok(short) }));
    assert!(!loopback.session.complete(Completion { tag: completion.tag, result: Err(DiskError::Io) }), "once");
    loopback.feed(&[]);
    let replies = simple(&mut loopback, &[]).expect("replies");
    assert_eq!(replies, [Reply { cookie: 1, error: EIO, data: vec![], status: vec![] }]);
}

#[test]
fn data_in_many_pieces_arrives_in_order() {
    for piece in [512, 4096, 5000] {
        let mut loopback = Loopback::connected(disk().with_pieces(piece));
        let data = pattern(0, 100 * 512, 3);
        ask(&mut loopback, &write(0, 1, 0, &data));
        for send_chunk in [1, 17, 4096, usize::MAX] {
            loopback.send_chunk = send_chunk;
            assert_eq!(ask(&mut loopback, &request(command::READ, 0, 2, 0, 100 * 512)).data, data);
        }
    }
}

#[test]
fn large_writes_are_received_into_their_own_buffer() {
    for length in [LARGE_WRITE as usize - 512, LARGE_WRITE as usize, 100_352, 600_064] {
        let mut loopback = connected();
        loopback.chunk = 5000;
        let data = pattern(0, length, 9);
        assert_eq!(error_of(&mut loopback, &write(0, 1, 512, &data)), 0);
        assert!(loopback.disk.bytes().get(512..512 + length) == Some(&data[..]), "content of {length} bytes");
        let owned: Vec<bool> = loopback.disk.log.iter().map(|(_, owned)| *owned).collect();
        assert_eq!(owned, [length >= LARGE_WRITE as usize]);
        assert!(in_step(&mut loopback));
    }
}

#[test]
fn after_a_large_write_little_of_the_next_one_is_copied() {
    let mut loopback = connected();
    let data = pattern(0, 65536, 9);
    let stream: Vec<u8> = (0..8).flat_map(|i| write(0, i, i * 65536, &data)).collect();
    assert_eq!(loopback.feed(&stream), stream.len());
    let owned = loopback.disk.log.iter().filter(|(_, owned)| *owned).count();
    assert!(owned >= 5, "{owned} of 8 handed over: only those in the first receive are copied");
    assert!((0..8).all(|i| loopback.disk.bytes().get(i * 65536..(i + 1) * 65536) == Some(&data[..])));
}

#[test]
fn one_cookie_may_be_used_again_and_even_twice_at_a_time() {
    let mut loopback = Loopback::connected(disk().with_order(Order::Reversed));
    loopback.hold = true;
    let message = request(command::READ, 0, 42, 0, 512);
    loopback.feed(&message.repeat(5));
    assert_eq!(loopback.session.in_flight(), 5);
    loopback.release();
    let replies = simple(&mut loopback, &[(42, 512)]).expect("replies");
    assert_eq!(replies, vec![Reply { cookie: 42, error: 0, data: vec![0; 512], status: vec![] }; 5]);
}

#[test]
fn replies_come_as_the_disk_answers() {
    let mut loopback = Loopback::connected(disk().with_order(Order::Reversed));
    loopback.hold = true;
    let stream: Vec<u8> = (0..10).flat_map(|cookie| request(command::CACHE, 0, cookie, 0, 512)).collect();
    loopback.feed(&stream);
    assert!(loopback.take_output().is_empty());
    loopback.release();
    let cookies: Vec<u64> = simple(&mut loopback, &[]).expect("replies").iter().map(|r| r.cookie).collect();
    assert_eq!(cookies, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn tags_lead_back_to_the_session() {
    let mut loopback = connected();
    loopback.hold = true;
    loopback.feed(&request(command::FLUSH, 0, 1, 0, 0));
    let completion = loopback.disk.pop_completion().expect("submitted");
    assert_eq!(Session::id_of(completion.tag), 9);
    let foreign = Completion { tag: Tag(completion.tag.0 ^ 1 << 32), result: Err(DiskError::Io) };
    assert!(!loopback.session.complete(foreign), "not its own");
    assert_eq!(loopback.session.in_flight(), 1);
    assert!(loopback.session.complete(completion));
    assert_eq!(loopback.session.in_flight(), 0);
}

#[test]
fn structured_reads_leave_zeroes_out() {
    let mut loopback = Loopback::new(disk().with_pieces(4096));
    loopback.feed(&crate::testing::hello_structured_and_go());
    loopback.take_output();
    loopback.feed(&write(0, 1, 8192, &[7; 4096]));
    assert_eq!(loopback.take_output(), wire::simple_reply(None, 1), "nothing to tell but success");
    loopback.feed(&request(command::READ, 0, 2, 0, 64 << 10));
    let output = loopback.take_output();
    assert_eq!(output.len(), 2 * (20 + 12) + 20 + 8 + 4096);
    let expected = [&[0; 8192][..], &[7; 4096], &[0; 53_248]].concat();
    let reads = Reads::from([(2, 0..64 << 10), (3, 0..4096), (4, END..END + 512)]);
    let replies = parse_replies(&output, &reads, Style::Structured).expect("replies");
    assert_eq!(replies, [Reply { cookie: 2, error: 0, data: expected, status: vec![] }]);
    loopback.feed(&request(command::READ, command_flag::DF, 3, 8192 - 512, 4096));
    assert_eq!(loopback.take_output().len(), 20 + 8 + 4096);
    loopback.feed(&request(command::READ, 0, 4, END, 512));
    let replies = parse_replies(&loopback.take_output(), &reads, Style::Structured).expect("replies");
    assert_eq!(replies, [Reply { cookie: 4, error: EINVAL, data: vec![], status: vec![] }]);
}

#[test]
fn more_than_one_chunk_can_hold_is_refused_to_who_wants_one() {
    let most = wire::ANNOUNCED_MAX_PAYLOAD;
    let mut loopback = Loopback::new(MemoryDisk::new(most as usize + 4096, SectorProfile::S512e));
    loopback.feed(&crate::testing::hello_structured_and_go());
    loopback.take_output();
    for (length, error) in [(most, 0), (most + 512, 75)] {
        loopback.feed(&request(command::READ, command_flag::DF, 1, 0, length));
        let replies = parse_replies(&loopback.take_output(), &Reads::from([(1, 0..length.into())]), Style::Structured).expect("replies");
        assert_eq!(replies[0].error, error);
    }
}

#[test]
fn block_status_tells_each_context_and_what_went_wrong() {
    let mut loopback = Loopback::with_style(disk(), Limits { requests: 1, ..Limits::default() }, Style::Structured);
    loopback.feed(&write(0, 1, 4096, &[7; 512]));
    loopback.take_output();
    let status = |loopback: &mut Loopback, flags, offset, length| {
        loopback.feed(&request(command::BLOCK_STATUS, flags, 2, offset, length));
        let mut replies = parse_replies(&loopback.take_output(), &Reads::new(), Style::Structured).expect("replies");
        assert_eq!(replies.len(), 1);
        replies.pop().map(|reply| (reply.error, reply.status)).expect("one")
    };
    let rest = END - 8192;
    let whole = vec![(1, vec![(4096, 3), (4096, 0), (rest, 3)]), (2, vec![(4096, 0), (4096, 1), (rest, 0)])];
    assert_eq!(status(&mut loopback, 0, 0, SIZE as u32), (0, whole));
    let one = vec![(1, vec![(3584, 0)]), (2, vec![(3584, 1)])];
    assert_eq!(status(&mut loopback, command_flag::REQ_ONE, 4608, 8192), (0, one));
    for (flags, offset, length) in [(0, END, 512), (0, 0, 0), (0, 1, 512), (command_flag::DF, 0, 512)] {
        assert_eq!(status(&mut loopback, flags, offset, length), (EINVAL, vec![]), "{offset} {length}");
    }
    loopback.disk.fail(Some(DiskError::Invalid));
    assert_eq!(status(&mut loopback, 0, 0, 4096), (EINVAL, vec![]), "the state is gone");
    loopback.disk.fail(Some(DiskError::Io));
    assert_eq!(status(&mut loopback, 0, 0, 4096), (EIO, vec![]));
    assert!(loopback.session.is_idle());
}

#[test]
fn block_status_needs_a_context_that_was_selected_for_this_export() {
    let structured = crate::testing::option(wire::option::STRUCTURED_REPLY, &[]);
    let select = |name| crate::testing::meta_context(wire::option::SET_META_CONTEXT, name, &["base:allocation"]);
    for (selected, error) in
        [(select("disk"), 0), (vec![], EINVAL), (select("other"), EINVAL), ([select("disk"), select("?")].concat(), EINVAL)]
    {
        let mut loopback = Loopback::new(disk());
        let other = crate::ExportInfo { id: ExportId(2), name: "other".to_owned(), ..loopback.exports[0].clone() };
        loopback.exports[0].default = true;
        loopback.exports.push(other);
        loopback.feed(&[crate::testing::hello(), structured.clone(), selected, crate::testing::go("")].concat());
        loopback.take_output();
        loopback.feed(&request(command::BLOCK_STATUS, 0, 2, 0, 4096));
        let replies = parse_replies(&loopback.take_output(), &Reads::new(), Style::Structured).expect("replies");
        assert_eq!(replies[0].error, error);
    }
    let mut loopback = connected();
    assert_eq!(error_of(&mut loopback, &request(command::BLOCK_STATUS, 0, 1, 0, 4096)), EINVAL);
    assert!(in_step(&mut loopback));
}

#[test]
fn extended_headers_carry_64_bit_lengths_and_name_contexts() {
    const LARGE: u64 = 6 << 30;
    let ask = |loopback: &mut Loopback, message: &[u8], reads: &Reads| {
        assert_eq!(loopback.feed(message), message.len());
        let mut replies = parse_replies(&loopback.take_output(), reads, Style::Extended).expect("replies");
        assert_eq!(replies.len(), 1);
        replies.pop().expect("one")
    };
    let none = Reads::new();
    let mut loopback = Loopback::with_style(disk(), Limits::default(), Style::Extended);
    let write = |flags| [extended_request(command::WRITE, flags, 1, 4096, 4096), pattern(0, 4096, 3)].concat();
    assert_eq!(ask(&mut loopback, &write(command_flag::PAYLOAD_LEN), &none).error, 0);
    assert_eq!(ask(&mut loopback, &write(0), &none).error, 0, "QEMU leaves the flag out and sends the payload");
    let read = ask(&mut loopback, &extended_request(command::READ, 0, 2, 0, 12288), &Reads::from([(2, 0..12288)]));
    assert!(read.data == [vec![0; 4096], pattern(0, 4096, 3), vec![0; 4096]].concat());
    let drained = [extended_request(command::TRIM, command_flag::PAYLOAD_LEN, 3, 0, 5), vec![9; 5]].concat();
    assert_eq!(ask(&mut loopback, &drained, &none).error, EINVAL);
    for (command, error) in
        [(command::TRIM, EINVAL), (command::WRITE_ZEROES, ENOSPC), (command::CACHE, EINVAL), (command::BLOCK_STATUS, EINVAL)]
    {
        assert_eq!(ask(&mut loopback, &extended_request(command, 0, 4, 0, LARGE), &none).error, error, "not cut to 32 bits");
    }
    let named = |length: u64, ids: &[u32]| {
        let payload = [&length.to_be_bytes()[..], &ids.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<u8>>()].concat();
        [extended_request(command::BLOCK_STATUS, command_flag::PAYLOAD_LEN, 5, 4096, payload.len() as u64), payload].concat()
    };
    let dirty = (2, vec![(4096, 1), (4096, 0)]);
    assert_eq!(ask(&mut loopback, &named(8192, &[2]), &none).status, std::slice::from_ref(&dirty));
    assert_eq!(ask(&mut loopback, &named(8192, &[2, 1]), &none).status, [(1, vec![(4096, 0), (4096, 3)]), dirty]);
    for ids in [&[][..], &[3], &[1, 1], &[1, 2, 1], &[1; 50]] {
        assert_eq!(ask(&mut loopback, &named(8192, ids), &none).error, EINVAL, "{ids:?}");
    }
    assert_eq!(ask(&mut loopback, &named(END, &[1]), &none).error, EINVAL, "beyond the end");
    loopback.feed(&extended_request(command::WRITE, command_flag::PAYLOAD_LEN, 6, 0, (64 << 20) + 1));
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::PayloadTooLong((64 << 20) + 1)));
    let mut loopback = Loopback::with_style(disk(), Limits::default(), Style::Extended);
    loopback.feed(&request(command::READ, 0, 1, 0, 512));
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::RequestMagic(wire::REQUEST_MAGIC)), "no way back");
}

#[test]
fn fast_zeroes_are_those_that_the_map_makes() {
    let mut loopback = connected();
    let cases = [(0, 4096, 0), (512, 8192, 0), (4096, 1 << 19, 0), (512, 512, ENOTSUP), (4096, 3584, ENOTSUP), (2048, 4096, ENOTSUP)];
    for (offset, length, error) in cases {
        let message = request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 1, offset, length);
        assert_eq!(error_of(&mut loopback, &message), error, "{offset} {length}");
        assert_eq!(error_of(&mut loopback, &request(command::WRITE_ZEROES, 0, 1, offset, length)), 0);
    }
    assert_eq!(error_of(&mut loopback, &request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 1, END, 4096)), ENOSPC);
    assert!(in_step(&mut loopback));
}
