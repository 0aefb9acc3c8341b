use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond_block::DeviceSlot;
use millpond_device::{DeviceLimit, HostDevice, OpenError, OpenOptions};

use super::client::{Client, DISCONNECT, FLUSH, PATIENCE, READ, WRITE, in_memory, on_unix, wait};
use super::double::{Double, Medium, SNAPSHOT};
use crate::budget::{Budget, LEAST};
use crate::shard::clock::Clock;
use crate::shard::start::{spawn, spawn_by};
use crate::shard::{ExportId, NbdExport, ShardError, ShardHandle};

const EPERM: u32 = 1;
const EINVAL: u32 = 22;

#[test]
fn a_unix_export_serves_small_and_large_requests() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    let info = wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    assert_eq!((info.unix.as_deref(), info.tcp, info.clients.len()), (Some(path.as_path()), None, 0));
    assert_eq!(std::fs::metadata(&path).expect("socket").permissions().mode() & 0o777, 0o600);
    let mut client = Client::unix(&path);
    assert_eq!(client.size, 8 << 20);
    // 600 KiB goes into a buffer of its own, 512 bytes through the input buffer.
    let large: Vec<u8> = (0..600 << 10).map(|index: u32| (index % 253) as u8).collect();
    assert_eq!(client.write(1 << 20, &large), 0);
    assert_eq!(client.write(512, &[9; 512]), 0);
    assert!(client.read(1 << 20, 600 << 10).expect("read") == large);
    assert_eq!(client.read(0, 1536).expect("read"), [[0; 512], [9; 512], [0; 512]].concat());
    assert_eq!(client.read(8 << 20, 512), Err(EINVAL));
    client.send(FLUSH, 77, 0, 0, &[]);
    assert_eq!(client.reply().expect("reply"), (0, 77));

    let exports = wait(shard.exports()).expect("exports");
    let counters = exports[0].clients[0].counters;
    assert!(exports[0].clients[0].peer.starts_with("unix:pid="));
    assert_eq!((counters.reads, counters.read_bytes), (2, (600 << 10) + 1536));
    assert_eq!((counters.writes, counters.write_bytes), (2, (600 << 10) + 512));
    assert_eq!((counters.flushes, counters.errors), (1, 1));
    client.send(DISCONNECT, 0, 0, 0, &[]);
    client.wait_end();
    let exports = wait(shard.exports()).expect("exports");
    assert!(exports[0].clients.is_empty());
    assert_eq!(exports[0].counters, counters, "what a client did outlives it");
    assert_eq!(wait(shard.status()).expect("status").guests, counters);
    let of_volume = |shard: &ShardHandle| *wait(shard.volume_uses()).expect("volumes").0[0].load;
    let load = of_volume(&shard);
    assert_eq!(load.io, counters, "and counts for its volume");
    let timed: Vec<u64> = load.times.iter().map(|times| times.counts.iter().sum()).collect();
    assert_eq!(timed, [counters.reads, counters.writes, counters.flushes, counters.discards], "each answered request has a latency");
    assert_eq!((load.times[0].nanos, load.times[1].nanos), (counters.read_nanos, counters.write_nanos));
    // a connected client counts, too, and the end of the export changes nothing
    let mut client = Client::unix(&path);
    assert_eq!(client.write(0, &[1; 512]), 0);
    assert_eq!(of_volume(&shard).io.writes, 3);
    wait(shard.unexport(ExportId(1))).expect("unexport");
    assert_eq!(of_volume(&shard).io.writes, 3);
    wait(shard.shutdown()).expect("shutdown");
    assert!(!path.exists());
}

/// Sends `count` requests before the first reply is read.
fn pipeline(client: &mut Client, count: u64, length: u32) {
    let payload = vec![3; length as usize];
    for cookie in 0..count {
        let offset = cookie % 64 * u64::from(length);
        match cookie % 2 {
            0 => client.send(WRITE, cookie, offset, length, &payload),
            _ => client.send(READ, cookie, offset, length, &[]),
        }
    }
    let mut seen = vec![false; count as usize];
    for _ in 0..count {
        let (error, cookie) = client.reply().expect("reply");
        assert_eq!(error, 0);
        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "answered twice");
        if cookie % 2 == 1 {
            let mut data = vec![0; length as usize];
            client.stream.read_exact(&mut data).expect("data");
        }
    }
}

#[test]
fn many_clients_at_once_more_requests_than_the_limits_let_in() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let file = dir.path().join("medium");
    for on_device in [false, true] {
        let shard = if on_device { on_file(&file, 8 << 20) } else { in_memory() };
        wait(shard.export_nbd(on_unix(1, &path))).expect("export");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = Client::unix(&path);
                    pipeline(&mut client, 300, 4096);
                    pipeline(&mut client, 20, 128 << 10);
                });
            }
        });
        let counters = wait(shard.status()).expect("status").guests;
        assert_eq!((counters.reads, counters.writes, counters.errors), (4 * 160, 4 * 160, 0));
        wait(shard.shutdown()).expect("shutdown");
    }
}

pub fn on_file(path: &Path, size: u64) -> ShardHandle {
    on_file_by(Clock::default(), path, size)
}

pub fn on_file_by(clock: Clock, path: &Path, size: u64) -> ShardHandle {
    let options = OpenOptions { create_size: Some(size), direct: false, read_only: false };
    let device = HostDevice::open(path, options).expect("open");
    spawn_by(clock, vec![device], move |devices, _| Ok(Double::new(Medium::Device, devices[0].size))).expect("shard")
}

/// Waits until no process has the device any more. A process that another test is starting has this
/// test's files open for a moment.
pub fn becomes_free(path: &Path) {
    let start = Instant::now();
    let options = OpenOptions { create_size: None, direct: true, read_only: false };
    while let Err(error) = HostDevice::open(path, options) {
        assert!(matches!(error, OpenError::InUse { .. }) && start.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the operations that device 0 has not completed, including throttled ones.
pub fn in_flight(shard: &ShardHandle) -> u64 {
    wait(shard.status()).expect("status").devices[0].as_ref().expect("device").load.in_flight
}

#[test]
fn tcp_and_read_only_exports() {
    let shard = in_memory();
    let address = Some("127.0.0.1:0".parse().expect("address"));
    let spec = NbdExport { unix: None, tcp: address, read_only: true, ..on_unix(1, Path::new("")) };
    let live = wait(shard.export_nbd(spec.clone())).expect("export");
    let snapshot = NbdExport { id: ExportId(2), target: SNAPSHOT, read_only: false, ..spec };
    let snapshot = wait(shard.export_nbd(snapshot)).expect("export");
    for info in [live, snapshot] {
        let address = info.tcp.expect("an address");
        assert_ne!(address.port(), 0);
        let mut client = Client::greet(Box::new(TcpStream::connect(address).expect("connect")));
        assert_ne!(client.flags & 2, 0, "announced as read-only");
        assert_eq!(client.write(0, &[1; 512]), EPERM);
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        drop(client);
        wait(shard.unexport(info.id)).expect("unexport");
        assert!(TcpStream::connect(address).is_err());
    }
}

#[test]
fn addresses_in_use_are_refused_and_stale_sockets_replaced() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    assert!(matches!(wait(shard.export_nbd(NbdExport { unix: None, ..on_unix(1, &path) })), Err(ShardError::NoAddress)));
    let nothing = millpond_engine::Target::Head(millpond_engine::VolumeId(9));
    let spec = NbdExport { target: nothing, ..on_unix(1, &path) };
    assert!(matches!(wait(shard.export_nbd(spec)), Err(ShardError::NoTarget(target)) if target == nothing));
    let listener = UnixListener::bind(&path).expect("bind");
    assert!(matches!(wait(shard.export_nbd(on_unix(1, &path))), Err(ShardError::Listen { .. })));
    drop(listener);
    wait(shard.export_nbd(on_unix(1, &path))).expect("a stale socket is replaced");
    assert!(matches!(wait(shard.export_nbd(on_unix(1, &path))), Err(ShardError::ExportExists(ExportId(1)))));
    assert!(matches!(wait(shard.export_nbd(on_unix(2, &path))), Err(ShardError::Listen { .. })));
    drop(Client::unix(&path));
    let file = dir.path().join("file");
    std::fs::write(&file, b"precious").expect("write");
    let refused = wait(shard.export_nbd(on_unix(3, &file))).expect_err("not a socket");
    assert!(refused.to_string().contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    assert!(matches!(wait(shard.unexport(ExportId(7))), Err(ShardError::NoExport(ExportId(7)))));
    // Another file has replaced the socket: it is not removed.
    std::fs::remove_file(&path).expect("remove");
    std::fs::write(&path, b"other").expect("write");
    wait(shard.unexport(ExportId(1))).expect("unexport");
    assert!(path.exists());
}

#[test]
fn unexport_answers_what_was_received_and_then_closes() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = on_file(&dir.path().join("medium"), 8 << 20);
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    // the cap throttles it until it is lifted, 1,000 seconds for each write, so that it is in
    // flight when the export ends
    let limit = DeviceLimit { bytes_per_second: Some(4), ops_per_second: None };
    wait(shard.limit_device(DeviceSlot(0), limit)).expect("limit");
    let mut client = Client::unix(&path);
    let idle = Client::unix(&path);
    let silent = UnixStream::connect(&path).expect("connect");
    for cookie in 0..3 {
        client.send(WRITE, cookie, cookie * 4096, 4096, &[7; 4096]);
    }
    assert_eq!(client.reply().expect("the first is free"), (0, 0));
    while in_flight(&shard) < 2 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let unexporting = scope.spawn(|| wait(shard.unexport(ExportId(1))).expect("unexport"));
        idle.wait_end();
        assert_eq!(in_flight(&shard), 2, "the client that waits for answers is waited for");
        assert!(!unexporting.is_finished());
        wait(shard.limit_device(DeviceSlot(0), DeviceLimit::default())).expect("limit");
        for cookie in 1..3 {
            assert_eq!(client.reply().expect("reply"), (0, cookie));
        }
        client.wait_end();
    });
    drop(silent);
    assert!(!path.exists() && UnixStream::connect(&path).is_err());
    assert!(wait(shard.exports()).expect("exports").is_empty());
    assert_eq!(wait(shard.status()).expect("status").guests.writes, 3);
}

#[test]
fn clients_that_vanish_or_talk_nonsense_harm_nobody() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    let mut steady = Client::unix(&path);
    for round in 0..50u64 {
        let mut client = Client::unix(&path);
        match round % 3 {
            // A client that ends in the middle of a payload, one that never reads its replies, one
            // that sends garbage.
            0 => client.send(WRITE, 1, 0, 1 << 20, &[1; 5000]),
            1 => (0..40).for_each(|cookie| client.send(READ, cookie, 0, 64 << 10, &[])),
            _ => {
                client.stream.write_all(&[0xff; 100]).expect("write");
                client.wait_end();
                continue;
            }
        }
        drop(client);
        assert_eq!(steady.write(4096, &[round as u8; 512]), 0);
        assert_eq!(steady.read(4096, 512), Ok(vec![round as u8; 512]));
    }
    let start = Instant::now();
    while wait(shard.status()).expect("status").clients > 1 {
        assert!(start.elapsed() < PATIENCE, "clients that are gone stay listed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pool_whose_clients_hold_memory_for_long_does_not_stop_another() {
    const LENGTH: u32 = 60 << 20;
    let dir = tempfile::tempdir().expect("directory");
    let budget = Arc::new(Budget::new(0));
    let [(busy, socket), (_quick, path)] = ["busy", "quick"].map(|name| {
        let (shard, path) = (spawn(Vec::new(), |_, _| Ok(Double::memory(64 << 20))).expect("shard"), dir.path().join(name));
        shard.set_budget(Arc::clone(&budget));
        wait(shard.export_nbd(on_unix(1, &path))).expect("export");
        (shard, path)
    });
    let mut hogs: Vec<Client> = (0..16).map(|_| Client::unix(&socket)).collect();
    hogs.iter_mut().for_each(|hog| hog.send(READ, 1, 0, LENGTH, &[]));
    let reads = || wait(busy.status()).expect("status").guests.reads;
    while reads() < LEAST / 2 / u64::from(LENGTH) {
        std::thread::yield_now();
    }
    let mut client = Client::unix(&path);
    for _ in 0..20 {
        assert_eq!(client.read(0, LENGTH as usize).expect("read").len(), LENGTH as usize);
    }
    assert_eq!(reads(), LEAST / 2 / u64::from(LENGTH), "it waited until the others were broken off");
}

#[test]
fn clients_that_never_read_hold_no_more_than_the_budget_and_are_broken_off() {
    const CLIENTS: usize = 24;
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let ahead: &'static AtomicU64 = Box::leak(Box::default());
    let shard = spawn_by(Clock::ahead_by(ahead), Vec::new(), |_, _| Ok(Double::memory(64 << 20))).expect("shard");
    let budget = Arc::new(Budget::new(0));
    shard.set_budget(Arc::clone(&budget));
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    let mut hogs: Vec<Client> = (0..CLIENTS).map(|_| Client::unix(&path)).collect();
    let clients = || wait(shard.exports()).expect("exports")[0].clients.len();
    let reads = || wait(shard.status()).expect("status").guests.reads;
    for hog in &mut hogs {
        hog.send(READ, 1, 0, 62 << 20, &[]);
    }
    // exactly as many reads as the budget allows are done
    while reads() < LEAST / (62 << 20) {
        std::thread::yield_now();
    }
    for _ in 0..100 {
        // as when a pool is opened or closed: held memory stays counted
        shard.set_budget(Arc::clone(&budget));
        let (total, used) = budget.use_of();
        assert!(used <= total && reads() <= LEAST / (62 << 20), "{used} of {total}");
    }
    assert!(budget.use_of().1 > 62 << 20, "the replies that nobody reads are held");
    // a small request of another client does not wait for the budget
    let mut small = Client::unix(&path);
    assert_eq!(small.read(0, 4096).expect("read"), [0; 4096]);
    assert_eq!(clients(), CLIENTS + 1);
    // clients that do not read are disconnected, the waiting ones get their turn, and are
    // disconnected as well
    let mut rounds = 0;
    while clients() > 1 {
        rounds += 1;
        assert!(rounds < 200_000, "{} are left", clients());
        // the shard may handle dozens of messages between two looks: small steps, so that it takes
        // none for a pause of its own
        ahead.fetch_add(100_000_000, Ordering::SeqCst);
        let (total, used) = budget.use_of();
        assert!(used <= total && reads() <= CLIENTS as u64 + 1);
    }
    assert_eq!(budget.use_of().1, 0);
    let large = small.read(0, 62 << 20).expect("one that reads is served");
    assert_eq!(large.len(), 62 << 20);
    wait(shard.shutdown()).expect("shutdown");
}
