//! Restarts, sockets that outlive the shard, limits, and encryption that does not come.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_device::DeviceIndex;

use super::client::{Client, FLUSH, WRITE, in_memory, on_unix, wait};
use super::serving::on_file;
use crate::daemon::shard::{ClientLimits, DeviceLimit, ExportId, InheritedSockets, NbdExport, TlsOffer};
use crate::daemon::tls::TlsFiles;

#[test]
fn a_shard_that_ends_answers_what_is_in_flight_and_refuses_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = on_file(&dir.path().join("medium"), 8 << 20);
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    let limit = DeviceLimit { bytes_per_second: None, ops_per_second: Some(4) };
    wait(shard.limit_device(DeviceIndex(0), limit)).expect("limit");
    let mut client = Client::unix(&path);
    for cookie in 0..3 {
        client.send(WRITE, cookie, cookie * 4096, 4096, &[7; 4096]);
    }
    while wait(shard.status()).expect("status").devices[0].as_ref().expect("device").load.in_flight == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| wait(shard.shutdown()).expect("shutdown"));
        while UnixStream::connect(&path).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It would have got ESHUTDOWN, and a guest an I/O error.
        client.send(FLUSH, 99, 0, 0, &[]);
        for cookie in 0..3 {
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
        // Who comes between two shards waits for the next.
        let waiting = (round > 0).then(|| UnixStream::connect(&path).expect("connect"));
        let shard = in_memory();
        wait(shard.export_nbd(spec())).expect("export");
        if let Some(stream) = waiting {
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
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
    let shard = on_file(&dir.path().join("medium"), 8 << 20);
    let limits = ClientLimits { clients: 2, requests: 2, handshake: Duration::from_millis(700) };
    wait(shard.export_nbd(NbdExport { limits, ..on_unix(1, &path) })).expect("export");
    // An idle handshake takes a place, and only for its time.
    let mut idle = UnixStream::connect(&path).expect("connect");
    idle.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    let mut client = Client::unix(&path);
    let mut one_too_many = UnixStream::connect(&path).expect("connect");
    assert_eq!(one_too_many.read(&mut [0; 18]).expect("an end"), 0, "turned away without a greeting");
    let begun = Instant::now();
    let mut greeting = Vec::new();
    idle.read_to_end(&mut greeting).expect("an end");
    assert_eq!(greeting.len(), 18);
    assert!((Duration::from_millis(400)..Duration::from_secs(5)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let mut second = Client::unix(&path);
    assert_eq!(second.write(0, &[1; 512]), 0);
    // Two requests of this client are in flight, whatever it sends; the other client is not kept waiting by that.
    let limit = DeviceLimit { bytes_per_second: None, ops_per_second: Some(20) };
    wait(shard.limit_device(DeviceIndex(0), limit)).expect("limit");
    for cookie in 0..12 {
        client.send(WRITE, cookie, cookie * 4096, 4096, &[7; 4096]);
    }
    let mut most = 0;
    for _ in 0..12 {
        most = most.max(wait(shard.status()).expect("status").devices[0].as_ref().expect("device").load.in_flight);
        assert_eq!(client.reply().expect("reply").0, 0);
    }
    assert!((1..=2).contains(&most), "{most} at a time");
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn where_tls_is_required_nothing_else_is_served() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, keys) = (dir.path().join("s"), dir.path().join("keys.psk"));
    std::fs::write(&keys, format!("alice:{}\n", "5a".repeat(32))).expect("keys");
    let credentials = TlsFiles::Psk { keys }.load().expect("credentials");
    let limits = ClientLimits { handshake: Duration::from_millis(500), ..ClientLimits::default() };
    let tls = Some(TlsOffer { required: true, credentials });
    let shard = in_memory();
    wait(shard.export_nbd(NbdExport { tls, limits, ..on_unix(1, &path) })).expect("export");
    let option = |number: u32| [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &0u32.to_be_bytes()].concat();
    let greeted = || {
        let mut stream = UnixStream::connect(&path).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
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
    // Idle after STARTTLS: ended like any handshake that does not go on.
    let mut idle = greeted();
    assert_eq!(answer(&mut idle, &option(5)), 1);
    let begun = Instant::now();
    idle.read_to_end(&mut Vec::new()).expect("an end");
    assert!(begun.elapsed() < Duration::from_secs(5));
    // Something else than TLS; and an option that came with STARTTLS, in the clear.
    let mut noise = greeted();
    assert_eq!(answer(&mut noise, &option(5)), 1);
    noise.write_all(&[0x55; 4096]).expect("noise");
    let _ = noise.read_to_end(&mut Vec::new());
    let mut injected = greeted();
    assert_eq!(answer(&mut injected, &[option(5), option(3)].concat()), 1);
    let mut rest = Vec::new();
    injected.read_to_end(&mut rest).expect("an end");
    assert!(rest.is_empty(), "the list is not answered, neither in the clear nor encrypted");
    wait(shard.shutdown()).expect("shutdown");
}
