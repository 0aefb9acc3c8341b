//! Cut streams, limits, ends and shutdown.

use super::*;
use crate::testing::hello;

/// Returns the header of a write of `length` bytes at `offset`. The test feeds the payload.
fn claim(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    request(command::WRITE, 0, cookie, offset, length)
}

#[test]
fn a_stream_cut_anywhere_gets_the_same_replies() {
    let large = pattern(0, 70_144, 5);
    let stream = [
        write(0, 1, 0, &pattern(0, 1024, 1)),
        request(command::READ, 0, 2, 0, 1024),
        write(0, 3, END, &pattern(0, 2048, 2)),
        write(0, 4, 4096, &large),
        request(command::READ, 0, 5, 4096, 70_144),
        write(2, 6, 0, &pattern(0, 40_000, 2)),
        request(99, 0, 7, 0, 0),
        request(command::FLUSH, 0, 8, 0, 0),
        request(command::READ, 0, 9, 512, 512),
    ]
    .concat();
    let reads = [(2, 1024), (5, 70_144), (9, 512)];
    let run = |chunk: usize, first: usize| {
        let mut loopback = connected();
        loopback.chunk = chunk;
        let (head, tail) = stream.split_at(first);
        assert_eq!(loopback.feed(head), head.len());
        assert_eq!(loopback.feed(tail), tail.len());
        let mut replies = simple(&mut loopback, &reads).expect("replies");
        replies.sort();
        (replies, loopback.disk.bytes().to_vec())
    };
    let whole = run(usize::MAX, 0);
    let errors: Vec<u32> = whole.0.iter().map(|reply| reply.error).collect();
    assert_eq!(errors, [0, 0, ENOSPC, 0, 0, EINVAL, EINVAL, 0, 0]);
    assert_eq!(whole.0.get(4).map(|reply| &reply.data), Some(&large));
    assert!(run(1, 0) == whole, "one byte at a time");
    // The cuts are around every header and inside payloads.
    for first in (0..stream.len()).filter(|at| at % 997 == 0 || *at < 1200 || (3100..3300).contains(at)) {
        assert!(run(usize::MAX, first) == whole, "cut at {first}");
    }
}

#[test]
fn an_oversized_write_is_drained_without_memory_for_it() {
    // 4 GiB less a sector: the largest length that a client with aligned requests can claim.
    let length = u32::MAX - 511;
    let mut loopback = Loopback::connected(MemoryDisk::new(8192, SectorProfile::S512e));
    loopback.feed(&claim(1, 0, length));
    let junk = vec![0x25; 8 << 20];
    let mut left = u64::from(length);
    while left > 0 {
        let n = left.min(junk.len() as u64) as usize;
        assert!(loopback.take_output().is_empty(), "answered with {left} bytes to come");
        assert_eq!(loopback.feed(junk.get(..n).expect("within")), n);
        left -= n as u64;
    }
    let replies = simple(&mut loopback, &[]).expect("replies");
    assert_eq!(replies, [Reply { cookie: 1, error: ENOSPC, data: vec![], status: vec![] }]);
    assert!(in_step(&mut loopback));
}

#[test]
fn a_write_longer_than_any_request_is_refused_though_it_fits_the_disk() {
    let size = 66 << 20;
    let mut loopback = Loopback::connected(MemoryDisk::new(size, SectorProfile::S512e));
    let data = vec![1; (64 << 20) + 512];
    assert_eq!(error_of(&mut loopback, &write(0, 1, 0, &data)), EINVAL);
    assert_eq!(error_of(&mut loopback, &request(command::READ, 0, 1, 0, (64 << 20) + 512)), EINVAL);
    let data = &data[512..];
    assert_eq!(error_of(&mut loopback, &write(0, 1, 512, data)), 0, "twice what is announced is served");
    assert_eq!(ask(&mut loopback, &request(command::READ, 0, 1, 512, 64 << 20)).data, data);
}

#[test]
fn garbage_ends_the_session_with_a_reason() {
    let mut loopback = connected();
    loopback.feed(&request(command::FLUSH, 0, 1, 0, 0));
    loopback.feed(b"garbage");
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::RequestMagic(u32::from_be_bytes(*b"garb"))));
    assert_eq!(loopback.session.phase(), Phase::Closed);
    assert!(loopback.session.recv(&mut loopback.pool).is_none());
    assert_eq!(simple(&mut loopback, &[]).map(|r| r.len()), Ok(1));
    let text = CloseReason::RequestMagic(0x1234).to_string();
    assert!(text.contains("0x00001234"), "{text}");
}

#[test]
fn goodbye_waits_for_what_is_in_flight() {
    let mut loopback = connected();
    loopback.hold = true;
    let stream = [request(command::READ, 0, 1, 0, 512), request(command::DISC, 0, 2, 0, 0), request(command::READ, 0, 3, 0, 512)].concat();
    loopback.feed(&stream);
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::Disconnect));
    assert_eq!(loopback.session.phase(), Phase::Closing);
    assert_eq!(loopback.session.in_flight(), 1, "nothing is served after a goodbye");
    loopback.deaf = true;
    loopback.release();
    assert_eq!(loopback.session.phase(), Phase::Closing, "the reply is not sent yet");
    loopback.deaf = false;
    loopback.feed(&[]);
    assert_eq!(loopback.session.phase(), Phase::Closed);
    let replies = simple(&mut loopback, &[(1, 512)]).expect("replies");
    assert_eq!(replies.iter().map(|r| r.cookie).collect::<Vec<_>>(), [1]);
}

#[test]
fn the_end_of_the_stream_is_told_from_a_cut_message() {
    let small = write(0, 1, 0, &[1; 512]);
    let large = write(0, 1, 0, &[1; 65536]);
    let refused = write(0, 1, END, &[1; 512]);
    for (bytes, expected) in [
        (&small[..], CloseReason::EndOfStream),
        (&small[..10], CloseReason::Truncated),
        (&small[..100], CloseReason::Truncated),
        (&large[..28], CloseReason::Truncated),
        (&large[..30_000], CloseReason::Truncated),
        (&large[..], CloseReason::EndOfStream),
        (&refused[..100], CloseReason::Truncated),
    ] {
        let mut loopback = connected();
        loopback.feed(bytes);
        loopback.end();
        assert_eq!(loopback.session.close_reason(), Some(expected), "{} bytes", bytes.len());
        assert_eq!(loopback.session.phase(), Phase::Closed, "a write cut short is not waited for");
    }
}

#[test]
fn a_client_that_closes_its_side_gets_its_replies() {
    let mut loopback = connected();
    loopback.hold = true;
    loopback.feed(&request(command::READ, 0, 1, 0, 512));
    loopback.end();
    let replies = simple(&mut loopback, &[(1, 512)]).expect("replies");
    assert_eq!(replies, [Reply { cookie: 1, error: 0, data: vec![0; 512], status: vec![] }]);
}

#[test]
fn requests_in_flight_are_bounded() {
    let limits = Limits { requests: 4, ..Limits::default() };
    let mut loopback = Loopback::with_limits(disk(), limits);
    loopback.feed(&crate::testing::hello_and_go());
    loopback.take_output();
    loopback.hold = true;
    let stream: Vec<u8> = (0..100).flat_map(|cookie| request(command::READ, 0, cookie, 0, 512)).collect();
    let mut recv = loopback.session.recv(&mut loopback.pool).expect("room");
    recv.space()[..stream.len()].copy_from_slice(&stream);
    loopback.session.received(recv, stream.len());
    loopback.session.requests(&mut loopback.disk);
    assert_eq!(loopback.session.in_flight(), 4);
    assert!(loopback.session.recv(&mut loopback.pool).is_none(), "asks for no more input");
    let completion = loopback.disk.pop_completion().expect("submitted");
    loopback.session.complete(completion);
    loopback.session.requests(&mut loopback.disk);
    assert_eq!(loopback.session.in_flight(), 4, "room is used at once");
    loopback.hold = false;
    loopback.feed(&[]);
    let reads: Vec<(u64, u64)> = (0..100).map(|cookie| (cookie, 512)).collect();
    assert_eq!(simple(&mut loopback, &reads).map(|r| r.len()), Ok(100));
    assert!(loopback.session.recv(&mut loopback.pool).is_some());
}

#[test]
fn bytes_in_flight_are_bounded_but_one_request_always_passes() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let mut loopback = Loopback::with_limits(disk(), limits);
    loopback.feed(&crate::testing::hello_and_go());
    loopback.take_output();
    loopback.hold = true;
    let stream: Vec<u8> = (0..3).flat_map(|cookie| request(command::READ, 0, cookie, 0, 51_200)).collect();
    let mut recv = loopback.session.recv(&mut loopback.pool).expect("room");
    recv.space()[..stream.len()].copy_from_slice(&stream);
    loopback.session.received(recv, stream.len());
    loopback.session.requests(&mut loopback.disk);
    assert_eq!(loopback.session.in_flight(), 1);
    loopback.hold = false;
    loopback.feed(&[]);
    loopback.hold = true;
    loopback.feed(&request(command::READ, 0, 4, 0, 51_200));
    loopback.feed(&request(command::READ, 0, 5, 0, 40_960));
    assert_eq!(loopback.session.in_flight(), 2, "what is answered is in flight no more");
    loopback.hold = false;
    loopback.release();
    loopback.take_output();
    assert_eq!(ask(&mut loopback, &request(command::READ, 0, 7, 0, 512_000)).data.len(), 512_000);
    assert_eq!(error_of(&mut loopback, &write(0, 7, 0, &vec![3; 512_000])), 0);
}

#[test]
fn a_client_that_does_not_read_is_not_served_on_and_on() {
    let mut loopback = connected();
    loopback.deaf = true;
    let limit = Limits::default().unsent;
    let stream: Vec<u8> = (0..10_000).flat_map(|cookie| request(command::READ, 0, cookie, 0, 65536)).collect();
    let fed = loopback.feed(&stream);
    assert!(fed < stream.len() || loopback.session.recv(&mut loopback.pool).is_none());
    let most = limit + (Limits::default().bytes as usize) + (1 << 20);
    assert!((limit..most).contains(&loopback.session.unsent()), "{}", loopback.session.unsent());
    // Error replies are bounded as well.
    let mut loopback = connected();
    loopback.deaf = true;
    let flood = request(99, 0, 1, 0, 0).repeat(100_000);
    let mut fed = 0;
    while loopback.feed(&flood) == flood.len() {
        fed += flood.len();
        assert!(fed < 100 << 20, "never stopped");
    }
    assert!(loopback.session.unsent() <= limit + 16);
}

#[test]
fn a_server_going_down_finishes_what_it_has() {
    let mut loopback = connected();
    loopback.hold = true;
    loopback.feed(&request(command::READ, 0, 1, 0, 512));
    loopback.session.shutdown();
    assert!(!loopback.session.is_idle());
    loopback.feed(&[write(0, 2, 0, &[1; 512]), request(command::FLUSH, 0, 3, 0, 0)].concat());
    loopback.release();
    let mut replies = simple(&mut loopback, &[(1, 512)]).expect("replies");
    replies.sort();
    assert_eq!(replies.iter().map(|r| r.error).collect::<Vec<_>>(), [0, ESHUTDOWN, ESHUTDOWN]);
    assert!(loopback.session.is_idle());
    assert_eq!(loopback.session.phase(), Phase::Transmission, "the loop decides when to close");
    loopback.feed(&request(command::DISC, 0, 4, 0, 0));
    assert_eq!(loopback.session.phase(), Phase::Closed);
}

#[test]
fn a_server_that_restarts_answers_what_it_has_and_refuses_nothing() {
    let mut loopback = connected();
    loopback.hold = true;
    let half_a_write = &write(0, 4, 0, &vec![2; 256 << 10])[..100_000];
    loopback.feed(&[&request(command::READ, 0, 1, 0, 512), &write(0, 2, 4096, &[1; 512]), half_a_write].concat());
    loopback.session.hang_up();
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::HungUp));
    assert_eq!(loopback.session.phase(), Phase::Closing);
    assert_eq!(loopback.feed(&request(command::FLUSH, 0, 3, 0, 0)), 0, "nothing more is read");
    loopback.release();
    let mut replies = simple(&mut loopback, &[(1, 512)]).expect("replies");
    replies.sort();
    assert_eq!(replies.iter().map(|r| (r.cookie, r.error)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert_eq!(loopback.session.phase(), Phase::Closed);
    assert_eq!(loopback.disk.bytes()[0], 0, "half a write is no write");
    // In the handshake there are no requests to complete.
    let mut loopback = Loopback::new(MemoryDisk::new(4096, SectorProfile::S512e));
    loopback.feed(&hello());
    loopback.session.hang_up();
    loopback.release();
    assert_eq!(loopback.session.phase(), Phase::Closed);
}

#[test]
fn a_broken_connection_waits_for_the_disk_alone() {
    let mut loopback = connected();
    loopback.hold = true;
    loopback.deaf = true;
    let stream: Vec<u8> = (0..4).flat_map(|cookie| request(command::READ, 0, cookie, 0, 512)).collect();
    loopback.feed(&stream);
    let completion = loopback.disk.pop_completion().expect("submitted");
    loopback.session.complete(completion);
    let batch = loopback.session.send().expect("a reply");
    let recv = loopback.session.recv(&mut loopback.pool).expect("room");
    loopback.session.abort(&mut loopback.pool);
    assert_eq!(loopback.session.close_reason(), Some(CloseReason::Aborted));
    assert_eq!(loopback.session.phase(), Phase::Closing);
    let lent = loopback.session.unsent();
    loopback.release();
    assert_eq!(loopback.session.phase(), Phase::Closed);
    assert_eq!(loopback.session.unsent(), lent, "nothing is kept for a client that is gone");
    loopback.session.sent(batch, 5, &mut loopback.pool);
    loopback.session.received(recv, 100);
    assert!(loopback.session.send().is_none());
    assert!(loopback.session.recv(&mut loopback.pool).is_none());
    assert_eq!(loopback.session.phase(), Phase::Closed);
}

#[test]
fn a_broken_connection_forgets_a_write_half_received() {
    let mut loopback = connected();
    loopback.feed(&claim(1, 0, 65536));
    let recv = loopback.session.recv(&mut loopback.pool).expect("room for the payload");
    assert!(recv.is_payload());
    assert_eq!(loopback.session.in_flight(), 1);
    loopback.session.abort(&mut loopback.pool);
    assert_eq!(loopback.session.phase(), Phase::Closed);
    loopback.session.received(recv, 65536);
    loopback.session.requests(&mut loopback.disk);
    assert!(loopback.disk.log.is_empty());
}

#[test]
fn a_cancelled_receive_changes_nothing() {
    let mut loopback = connected();
    for bytes in [&write(0, 1, 0, &[1; 65536])[..40_000], &request(command::READ, 0, 1, 0, 512)[..10]] {
        loopback = connected();
        loopback.feed(bytes);
        for _ in 0..3 {
            let recv = loopback.session.recv(&mut loopback.pool).expect("room");
            assert!(loopback.session.recv(&mut loopback.pool).is_none(), "one at a time");
            loopback.session.recv_cancelled(recv);
        }
        assert_eq!(loopback.session.phase(), Phase::Transmission);
    }
    let rest = request(command::READ, 0, 1, 0, 512);
    loopback.feed(rest.get(10..).expect("the rest"));
    assert_eq!(loopback.take_output().len(), 16 + 512);
}

#[test]
fn the_lent_space_stays_where_it_is() {
    let mut loopback = connected();
    let mut recv = loopback.session.recv(&mut loopback.pool).expect("room");
    let before = recv.space().as_ptr();
    let mut moved = Box::new(recv);
    assert_eq!(moved.space().as_ptr(), before);
    loopback.session.recv_cancelled(*moved);
    loopback.hold = true;
    loopback.feed(&request(command::READ, 0, 1, 0, 512));
    let completion = loopback.disk.pop_completion().expect("submitted");
    loopback.session.complete(completion);
    let batch = loopback.session.send().expect("a reply");
    let before: Vec<*const u8> = batch.slices().map(<[u8]>::as_ptr).collect();
    let moved = Box::new(batch);
    assert_eq!(moved.slices().map(<[u8]>::as_ptr).collect::<Vec<_>>(), before);
    loopback.session.sent(*moved, 0, &mut loopback.pool);
}
