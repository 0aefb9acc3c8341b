//! Restarts, sockets that outlive the shard, limits, and TLS that does not start.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond_block::DeviceSlot;
use millpond_device::DeviceLimit;
use millpond_engine::{Command, JobCommand, PoolState};

use super::client::{Client, FLUSH, PATIENCE, WRITE, hung, in_memory, on_unix, wait};
use super::double::{Double, HEAD};
use super::serving::{becomes_free, in_flight, on_file, on_file_by};
use crate::shard::clock::Clock;
use crate::shard::start::spawn_by;
use crate::shard::{ClientLimits, ExportId, InheritedSockets, NbdExport, ShardError, ShardHandle, TlsOffer};
use crate::tls::TlsFiles;

/// Limit of a handshake: no client of these tests needs as much. It passes when a test sets the
/// shard's clock ahead.
const HANDSHAKE: Duration = Duration::from_secs(600);
/// Step of that clock, in nanoseconds: shorter than a gap that the shard takes for a pause of its
/// own.
const STEP: u64 = 2_000_000_000;
/// Longer than [`SLOW`] delays an operation, in nanoseconds.
const TURN: u64 = 1_100_000_000_000;
/// One operation of 4 KiB in 1,024 seconds.
const SLOW: DeviceLimit = DeviceLimit { bytes_per_second: Some(4), ops_per_second: None };

/// Returns the time by which a shard's clock is ahead.
fn ahead() -> &'static AtomicU64 {
    Box::leak(Box::default())
}

/// Sets the clock ahead in small steps, each of which the shard sees, until the peer of this socket
/// closes it. Returns the bytes that came before.
fn pass_until_end(shard: &ShardHandle, ahead: &AtomicU64, mut stream: UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut rest = Vec::new();
            let outcome = stream.read_to_end(&mut rest);
            // unread bytes reset the connection, which is an end as well
            assert!(outcome.is_ok() || outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "no end");
            rest
        });
        while !reading.is_finished() {
            ahead.fetch_add(STEP, Ordering::SeqCst);
            wait(shard.status()).expect("status");
        }
        reading.join().expect("read")
    })
}

/// Caps the shard's device at [`SLOW`] and sends three writes: the first is answered, two are in
/// flight until the cap is lifted.
fn writes_that_wait(shard: &ShardHandle, path: &Path) -> Client {
    wait(shard.limit_device(DeviceSlot(0), SLOW)).expect("limit");
    let mut client = Client::unix(path);
    for cookie in 0..3 {
        client.send(WRITE, cookie, cookie * 4096, 4096, &[7; 4096]);
    }
    assert_eq!(client.reply().expect("the first is free"), (0, 0));
    while in_flight(shard) < 2 {
        std::thread::yield_now();
    }
    client
}

#[test]
fn a_shard_that_ends_answers_what_is_in_flight_and_refuses_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = on_file(&dir.path().join("medium"), 8 << 20);
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    let mut client = writes_that_wait(&shard, &path);
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| wait(shard.shutdown()).expect("shutdown"));
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        // Otherwise it would get ESHUTDOWN, and a guest an I/O error.
        client.send(FLUSH, 99, 0, 0, &[]);
        wait(shard.limit_device(DeviceSlot(0), DeviceLimit::default())).expect("no limit any more");
        for cookie in 1..3 {
            assert_eq!(client.reply().expect("reply"), (0, cookie));
        }
        assert!(client.reply().is_err(), "the end of the connection, and no answer");
        ending.join().expect("ended");
    });
    assert!(!path.exists());
}

#[test]
fn an_inherited_socket_is_neither_shut_down_nor_removed() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let inherited = Arc::new(UnixListener::bind(&path).expect("bind").into());
    let spec = || NbdExport { inherited: InheritedSockets { unix: Some(Arc::clone(&inherited)), tcp: None }, ..on_unix(1, &path) };
    for round in 0..3 {
        // A client that connects between two shards waits for the next.
        let waiting = (round > 0).then(|| UnixStream::connect(&path).expect("connect"));
        let shard = in_memory();
        wait(shard.export_nbd(spec())).expect("export");
        if let Some(stream) = waiting {
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            assert_eq!(Client::greet(Box::new(stream)).write(0, &[1; 512]), 0);
        }
        assert_eq!(Client::unix(&path).write(0, &[1; 512]), 0);
        if round == 1 {
            wait(shard.unexport(ExportId(1))).expect("unexport");
        }
        wait(shard.shutdown()).expect("shutdown");
        assert!(path.exists());
    }
}

#[test]
fn limits_are_filled_and_kept() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let ahead = ahead();
    let shard = on_file_by(Clock::ahead_by(ahead), &dir.path().join("medium"), 8 << 20);
    let limits = ClientLimits { clients: 2, requests: 2, handshake: HANDSHAKE };
    wait(shard.export_nbd(NbdExport { limits, ..on_unix(1, &path) })).expect("export");
    // An idle handshake takes one of the places, for no longer than its limit.
    let begun = Instant::now();
    let idle = UnixStream::connect(&path).expect("connect");
    let mut client = Client::unix(&path);
    let mut one_too_many = UnixStream::connect(&path).expect("connect");
    assert_eq!(one_too_many.read(&mut [0; 18]).expect("an end"), 0, "turned away without a greeting");
    assert_eq!(pass_until_end(&shard, ahead, idle).len(), 18, "the greeting");
    let passed = begun.elapsed() + Duration::from_nanos(ahead.load(Ordering::SeqCst));
    assert!(passed >= HANDSHAKE, "{passed:?}");
    let mut second = Client::unix(&path);
    assert_eq!(second.write(0, &[1; 512]), 0);
    // Two requests of this client are in flight, however many it sends; they do not delay the other
    // client.
    wait(shard.limit_device(DeviceSlot(0), SLOW)).expect("limit");
    for cookie in 0..12 {
        client.send(WRITE, cookie, cookie * 4096, 4096, &[7; 4096]);
    }
    assert_eq!(client.reply().expect("the first is free").0, 0);
    while in_flight(&shard) < 2 {
        std::thread::yield_now();
    }
    for _ in 1..12 {
        assert!(in_flight(&shard) <= 2);
        ahead.fetch_add(TURN, Ordering::SeqCst);
        wait(shard.status()).expect("status");
        assert_eq!(client.reply().expect("reply").0, 0);
    }
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn where_tls_is_required_nothing_else_is_served() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, keys) = (dir.path().join("s"), dir.path().join("keys.psk"));
    std::fs::write(&keys, format!("alice:{}\n", "5a".repeat(32))).expect("keys");
    let credentials = TlsFiles::Psk { keys }.load().expect("credentials");
    let limits = ClientLimits { handshake: HANDSHAKE, ..ClientLimits::default() };
    let tls = Some(TlsOffer { required: true, credentials });
    let ahead = ahead();
    let shard = spawn_by(Clock::ahead_by(ahead), Vec::new(), |_, _| Ok(Double::memory(8 << 20))).expect("shard");
    wait(shard.export_nbd(NbdExport { tls, limits, ..on_unix(1, &path) })).expect("export");
    let option = |number: u32| [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &0u32.to_be_bytes()].concat();
    let greeted = || {
        let mut stream = UnixStream::connect(&path).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.read_exact(&mut [0; 18]).expect("greeting");
        stream.write_all(&3u32.to_be_bytes()).expect("flags");
        stream
    };
    let answer = |stream: &mut UnixStream, bytes: &[u8]| {
        stream.write_all(bytes).expect("option");
        let mut head = [0; 20];
        stream.read_exact(&mut head).expect("answer");
        u32::from_be_bytes(head[12..16].try_into().expect("four bytes"))
    };
    let mut clear = greeted();
    assert_eq!(answer(&mut clear, &option(3)), 0x8000_0005, "a list of exports is refused");
    // Idle after STARTTLS: ends like any handshake without progress.
    let mut idle = greeted();
    assert_eq!(answer(&mut idle, &option(5)), 1);
    pass_until_end(&shard, ahead, idle);
    // Bytes that are not TLS; and an option that follows STARTTLS in plain text.
    let mut noise = greeted();
    assert_eq!(answer(&mut noise, &option(5)), 1);
    noise.write_all(&[0x55; 4096]).expect("noise");
    pass_until_end(&shard, ahead, noise);
    let mut injected = greeted();
    assert_eq!(answer(&mut injected, &[option(5), option(3)].concat()), 1);
    assert!(pass_until_end(&shard, ahead, injected).is_empty(), "the list is not answered, neither in the clear nor encrypted");
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn a_panic_ends_the_shard_with_operations_under_way() {
    let dir = tempfile::tempdir().expect("directory");
    let (socket, medium) = (dir.path().join("s"), dir.path().join("medium"));
    let shard = on_file(&medium, 8 << 20);
    wait(shard.export_nbd(on_unix(1, &socket))).expect("export");
    let mut client = Client::unix(&socket);
    for request in 0..32 {
        client.send(WRITE, request, request << 16, 1 << 16, &[7; 1 << 16]);
    }
    assert!(shard.fallen().is_none());
    shard.panic();
    // the client sees the connection end
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    let lost = wait(async { shard.state().wait_for(|state| matches!(state, PoolState::Faulted(_))).await.map(|state| state.clone()) });
    assert!(matches!(lost, Ok(PoolState::Faulted(_))));
    while shard.fallen().is_none() {
        std::thread::yield_now();
    }
    assert!(shard.fallen().is_some_and(|why| why.starts_with("a defect in the program stopped the pool (as a test asked)")));
    assert!(matches!(wait(shard.status()), Err(ShardError::Gone)));
    assert!(!socket.exists());
    becomes_free(&medium);
}

#[test]
fn a_shard_that_is_given_up_disconnects_clients_and_frees_its_devices() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, medium) = (dir.path().join("s"), dir.path().join("medium"));
    let shard = on_file(&medium, 8 << 20);
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    // a write that is in flight for longer than this test takes
    wait(shard.write(HEAD, 0, vec![1; 4096])).expect("write");
    let mut client = writes_that_wait(&shard, &path);
    let closing = std::thread::spawn({
        let shard = shard.clone();
        move || wait(shard.shutdown())
    });
    while path.exists() {
        std::thread::yield_now();
    }
    assert!(!shard.has_ended());
    shard.abandon();
    wait(shard.ended());
    assert!(shard.has_ended());
    assert!(matches!(closing.join().expect("ended"), Err(ShardError::Gone)));
    assert!(matches!(wait(shard.status()), Err(ShardError::Gone)));
    assert!(client.reply().is_err(), "no answer, and the end of the connection");
    assert!(!path.exists());
    becomes_free(&medium);
}

#[test]
fn whoever_waits_for_a_shard_that_hangs_is_told_when_it_is_given_up() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = hung();
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    let mut client = Client::with_a_write_in_the_pool(&path);
    let waiting: Vec<_> = [Command::Checkpoint, Command::Job(JobCommand::StopScrub)]
        .into_iter()
        .map(|command| {
            let shard = shard.clone();
            std::thread::spawn(move || wait(shard.command(command)))
        })
        .collect();
    let unexporting = std::thread::spawn({
        let shard = shard.clone();
        move || wait(shard.unexport(ExportId(1)))
    });
    // it still answers queries that need no device
    while path.exists() {
        assert_eq!(wait(shard.status()).expect("status").clients, 1);
    }
    shard.abandon();
    wait(shard.ended());
    for waiting in waiting {
        assert!(matches!(waiting.join().expect("ended"), Err(ShardError::Gone)));
    }
    assert!(matches!(unexporting.join().expect("ended"), Err(ShardError::Gone)));
    assert!(client.reply().is_err());
}
