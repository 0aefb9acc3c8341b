use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::ring::PATIENCE as GIVEN_UP;
use crate::{ConnectionId, Event, Ring, Wait};

/// The longest wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(120);

fn next(ring: &mut Ring) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = ring.pop() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened");
        ring.turn(Wait::AtMost(Duration::from_secs(1))).expect("turn");
    }
}

fn pair(ring: &mut Ring) -> (UnixStream, ConnectionId) {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let id = ring.connect(ours.into());
    (theirs, id)
}

#[test]
fn waker_ends_a_wait_from_another_thread() {
    let mut ring = Ring::new().expect("ring");
    let waker = ring.waker();
    for _ in 0..100 {
        let waker = waker.clone();
        let thread = std::thread::spawn(move || {
            waker.wake();
            waker.wake();
        });
        ring.turn(Wait::Forever).expect("turn");
        assert!(matches!(ring.pop(), Some(Event::Woken)));
        thread.join().expect("thread");
        // The two wake-ups may arrive as one event or as two.
        ring.turn(Wait::No).expect("turn");
        while let Some(event) = ring.pop() {
            assert!(matches!(event, Event::Woken));
        }
    }
    while {
        ring.turn(Wait::AtMost(Duration::from_millis(50))).expect("turn");
        ring.pop().is_some()
    } {}
    let start = Instant::now();
    ring.turn(Wait::AtMost(Duration::from_millis(30))).expect("turn");
    assert!(ring.pop().is_none() && start.elapsed() >= Duration::from_millis(29));
    waker.wake();
    assert!(ring.spin(PATIENCE, || false).expect("spin"));
    assert!(matches!(ring.pop(), Some(Event::Woken)));
    assert!(!ring.spin(Duration::from_millis(5), || false).expect("spin"));
}

#[test]
fn unix_and_tcp_listeners_accept_and_let_go() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let mut ring = Ring::new().expect("ring");
    let unix = ring.listen(UnixListener::bind(&path).expect("bind").into());
    let tcp_listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = tcp_listener.local_addr().expect("address");
    let tcp = ring.listen(tcp_listener.into());
    for _ in 0..20 {
        let client = UnixStream::connect(&path).expect("connect");
        let Event::Accepted { listener, socket } = next(&mut ring) else { panic!("no connection") };
        assert_eq!(listener, unix);
        drop((client, socket));
        let mut client = TcpStream::connect(address).expect("connect");
        let Event::Accepted { listener, socket } = next(&mut ring) else { panic!("no connection") };
        assert_eq!(listener, tcp);
        client.write_all(b"hello").expect("write");
        let id = ring.connect(socket);
        assert!(matches!(next(&mut ring), Event::Readable { connection, ended: false } if connection == id));
        let mut bytes = [0; 10];
        assert_eq!(ring.receive(id, &mut bytes), Ok(5));
        assert_eq!(bytes[..5], *b"hello");
        assert_eq!(ring.receive(id, &mut bytes), Err(Errno::WOULDBLOCK));
        ring.close(id);
        assert!(matches!(next(&mut ring), Event::Closed(closed) if closed == id));
    }
    ring.close_listener(tcp);
    ring.close_listener(tcp);
    assert!(matches!(next(&mut ring), Event::Unlistened(id) if id == tcp));
    assert!(TcpStream::connect(address).is_err(), "the address is free");
    drop(TcpListener::bind(address).expect("bind again"));
    let again = ring.listen(UnixListener::bind(dir.path().join("t")).expect("bind").into());
    assert_ne!(again, tcp, "a number is never used again");
    drop(ring);
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn big_messages_arrive_whole_and_in_order() {
    let mut ring = Ring::new().expect("ring");
    let (mut peer, id) = pair(&mut ring);
    // More slices than one system call takes, far more bytes than a socket buffers.
    let message: Vec<u8> = (0..9_000_000u32).map(|number| (number % 251) as u8).collect();
    let sizes = [1, 3000, 16, 4096, 7, 70_000];
    let mut ends = vec![0];
    while *ends.last().expect("not empty") < message.len() {
        ends.push((ends[ends.len() - 1] + sizes[ends.len() % sizes.len()]).min(message.len()));
    }
    assert!(ends.len() > 600);
    let want = message.clone();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; want.len()];
        peer.read_exact(&mut got).expect("read");
        assert!(got == want);
        peer
    });
    let (mut sent, mut waits) = (0, 0);
    while sent < message.len() {
        let rest = ends.windows(2).filter(|ends| ends[1] > sent).map(|ends| &message[ends[0].max(sent)..ends[1]]);
        sent += ring.send(id, rest).expect("send");
        if sent < message.len() {
            ring.watch_writable(id);
            ring.watch_writable(id);
            assert!(matches!(next(&mut ring), Event::Writable(writable) if writable == id));
            waits += 1;
        }
    }
    assert!(waits > 0, "it never had to wait");
    let mut peer = reader.join().expect("reader");
    assert_eq!(ring.send(id, [].into_iter()), Ok(0));

    let writer = std::thread::spawn(move || {
        for chunk in [vec![1u8; 100], vec![2; 100_000], vec![3; 200_000]] {
            peer.write_all(&chunk).expect("write");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut got = Vec::new();
    let mut part = vec![0; 60_000];
    'whole: loop {
        let Event::Readable { ended, .. } = next(&mut ring) else { panic!("nothing to read") };
        loop {
            match ring.receive(id, &mut part) {
                Ok(0) => break 'whole,
                Ok(count) => got.extend_from_slice(&part[..count]),
                Err(errno) => {
                    assert_eq!((errno, ended), (Errno::WOULDBLOCK, false));
                    break;
                }
            }
        }
    }
    writer.join().expect("writer");
    assert_eq!(got.len(), 300_100);
    assert!(got[99] == 1 && got[100] == 2 && got[100_100] == 3 && got[300_099] == 3);
}

#[test]
fn a_closed_connection_is_silent_and_its_number_void() {
    let mut ring = Ring::new().expect("ring");
    for submitted in [false, true] {
        let (mut peer, id) = pair(&mut ring);
        let filler = vec![0; 8 << 20];
        assert!(ring.send(id, [&filler[..]].into_iter()).expect("send") < filler.len());
        ring.watch_writable(id);
        if submitted {
            ring.turn(Wait::No).expect("turn");
            assert!(ring.pop().is_none(), "nothing to read and no room");
        }
        peer.write_all(&[1]).expect("write");
        ring.close(id);
        ring.close(id);
        assert_eq!(ring.receive(id, &mut [0; 8]), Err(Errno::BADF));
        assert_eq!(ring.send(id, [&filler[..]].into_iter()), Err(Errno::BADF));
        ring.watch_writable(id);
        assert!(matches!(next(&mut ring), Event::Closed(closed) if closed == id));
        let (mut other_peer, other) = pair(&mut ring);
        assert_ne!(other, id, "a number is never used again");
        ring.close(id);
        other_peer.write_all(&[5]).expect("write");
        assert!(matches!(next(&mut ring), Event::Readable { connection, ended: false } if connection == other));
        assert_eq!(ring.receive(other, &mut [0; 8]), Ok(1));
        drop(other_peer);
        assert!(matches!(next(&mut ring), Event::Readable { connection, ended: true } if connection == other));
        assert_eq!(ring.receive(other, &mut [0; 8]), Ok(0));
        ring.close(other);
        loop {
            // The end of the stream may be reported more than once.
            match next(&mut ring) {
                Event::Readable { connection, ended: true } if connection == other => {}
                event => break assert!(matches!(event, Event::Closed(closed) if closed == other)),
            }
        }
        // Data of the peer was not read, so the peer may get a reset.
        let end = peer.read_to_end(&mut Vec::new()).map_or_else(|error| Some(error.kind()), |_| None);
        assert!(matches!(end, None | Some(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    }
    assert_eq!(ring.in_flight(), 1, "the waker alone");
}

#[test]
fn last_words_and_the_end_may_come_as_one_event() {
    let mut ring = Ring::new().expect("ring");
    let (mut peer, id) = pair(&mut ring);
    ring.turn(Wait::No).expect("turn");
    peer.write_all(&[1; 100]).expect("write");
    drop(peer);
    assert!(matches!(next(&mut ring), Event::Readable { ended: true, .. }));
    assert_eq!(ring.receive(id, &mut [0; 200]), Ok(100));
    assert_eq!(ring.receive(id, &mut [0; 200]), Ok(0));
}

#[test]
fn a_peer_that_is_gone_is_an_error_not_a_signal() {
    let mut ring = Ring::new().expect("ring");
    let (peer, id) = pair(&mut ring);
    drop(peer);
    assert_eq!(ring.send(id, [&b"late"[..]].into_iter()), Err(Errno::PIPE));
}

#[test]
fn a_ring_may_be_dropped_with_everything_under_way() {
    let dir = tempfile::tempdir().expect("directory");
    for turns in [0, 1] {
        let mut ring = Ring::new().expect("ring");
        let path = dir.path().join(format!("s{turns}"));
        ring.listen(UnixListener::bind(&path).expect("bind").into());
        let mut peers = Vec::new();
        let filler = vec![0; 1 << 20];
        for _ in 0..100 {
            let (peer, id) = pair(&mut ring);
            assert!(ring.send(id, [&filler[..]].into_iter()).expect("send") < filler.len());
            ring.watch_writable(id);
            peers.push(peer);
        }
        let client = UnixStream::connect(&path).expect("connect");
        for _ in 0..turns {
            ring.turn(Wait::No).expect("turn");
        }
        let start = Instant::now();
        drop(ring);
        assert!(start.elapsed() < GIVEN_UP, "nothing had to be given up");
        for peer in &mut peers {
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).expect("an end");
        }
        drop(client);
    }
}
