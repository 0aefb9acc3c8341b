//! The loop with the real engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millpond_block::{ByteRange, CacheMode, SectorProfile};
use millpond_device::{HostDevice, OpenOptions};
use millpond_engine::{
    BaseInfo, CatalogCommand, Command, CommandError, Compression, Engine, GroupSpec, Layout, PoolId, PoolSpec, PoolState, Reply, Target,
    Tuning, VolumeId,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::client::{Client, FLUSH, on_unix, wait};
use crate::helpers::Helpers;
use crate::shard::clock::Clock;
use crate::shard::start::spawn_by;
use crate::shard::{FetchOrder, NbdExport, ShardError, ShardHandle, WantedChunk, create, import};

fn open(paths: &[PathBuf], size: u64) -> Vec<HostDevice> {
    let options = OpenOptions { create_size: Some(size), direct: true, read_only: false };
    paths.iter().map(|path| HostDevice::open(path, options).expect("open")).collect()
}

/// Returns a new pool with one volume.
pub fn pool(paths: &[PathBuf], device_size: u64, volume_size: u64) -> (ShardHandle, VolumeId) {
    compressed_pool(paths, device_size, volume_size, Compression::Off)
}

/// Returns a new pool with one volume of this compression.
fn compressed_pool(paths: &[PathBuf], device_size: u64, volume_size: u64, compression: Compression) -> (ShardHandle, VolumeId) {
    let spec = PoolSpec {
        name: "pond".to_owned(),
        id: PoolId([3; 16]),
        groups: vec![GroupSpec::data(Layout::Linear)],
        extent_bytes: None,
        features: false,
    };
    let shard = create(spec, open(paths, device_size), Tuning::default()).expect("create");
    assert_eq!(wait(shard.opened()).expect("opened"), PoolState::Online);
    let volume = Command::Catalog(CatalogCommand::CreateVolume {
        name: "disk0".to_owned(),
        size: volume_size,
        sector: SectorProfile::S512e,
        cache: CacheMode::Writeback,
        compression,
    });
    let Reply::Volume(volume) = wait(shard.command(volume)).expect("volume") else { panic!("no volume") };
    (shard, volume)
}

/// Bytes that a clone of a publication fetches at a time.
pub const UNIT: usize = 64 << 10;

/// Returns a new pool with a volume `vm` of 8 MiB that reads as a base, of which the pool has nothing, and
/// the orders to fetch for it: as long as they are not answered, the target is away.
pub fn clone_of_publication(path: PathBuf, clock: Clock) -> (ShardHandle, VolumeId, UnboundedReceiver<FetchOrder>) {
    let groups = vec![GroupSpec::data(Layout::Linear)];
    let spec = PoolSpec { name: "pond".to_owned(), id: PoolId([4; 16]), groups, extent_bytes: None, features: true };
    let make = move |geometries, now| Engine::create(spec, geometries, Tuning::default(), now);
    let shard = spawn_by(clock, open(&[path], 256 << 20), make).expect("create");
    assert_eq!(wait(shard.opened()).expect("opened"), PoolState::Online);
    let (to, orders) = unbounded_channel();
    shard.pass_fetches_to("pond", to);
    let base = CatalogCommand::CreateBase {
        name: "golden".to_owned(),
        size: 8 << 20,
        sector: SectorProfile::S512e,
        compression: Compression::Off,
        source: BaseInfo { unit: UNIT as u32, source: String::new() },
    };
    let Reply::Base(base) = wait(shard.command(base)).expect("base") else { panic!("no base") };
    let clone = CatalogCommand::Clone { snapshot: base.snapshot, name: "vm".to_owned() };
    let Reply::Volume(volume) = wait(shard.command(clone)).expect("clone") else { panic!("no clone") };
    (shard, volume, orders)
}

/// Waits until a read needs a chunk.
pub fn next_chunk(orders: &mut UnboundedReceiver<FetchOrder>) -> WantedChunk {
    match orders.blocking_recv() {
        Some(FetchOrder::Fetch(chunk)) => chunk,
        _ => panic!("no chunk is wanted"),
    }
}

fn snapshot(shard: &ShardHandle, volume: VolumeId, name: &str) -> Target {
    let command = Command::Catalog(CatalogCommand::Snapshot {
        targets: vec![(volume, name.to_owned())],
        description: String::new(),
        expires: None,
        lock_millis: None,
    });
    match wait(shard.command(command)).expect("snapshot") {
        Reply::Snapshots(made) => Target::Snapshot(made[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn guests_write_snapshots_are_served_and_all_of_it_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("directory");
    let socket = dir.path().join("s");
    let paths = [dir.path().join("a"), dir.path().join("b")];
    let (shard, volume) = pool(&paths, 256 << 20, 32 << 20);
    let head = NbdExport { target: Target::Head(volume), ..on_unix(1, &socket) };
    wait(shard.export_nbd(head.clone())).expect("export");
    let mut client = Client::unix(&socket);
    let old: Vec<u8> = (0..3u32 << 20).map(|index| (index / 512 % 251) as u8).collect();
    assert_eq!(client.write(1 << 20, &old), 0);
    let frozen = snapshot(&shard, volume, "before");
    assert_eq!(client.write((1 << 20) + 512, &[0xaa; 1024]), 0);
    client.send(FLUSH, 1, 0, 0, &[]);
    assert_eq!(client.reply().expect("reply"), (0, 1));
    let mut new = old.clone();
    new[512..1536].fill(0xaa);
    assert!(client.read(1 << 20, 3 << 20).expect("read") == new);

    let of_snapshot = dir.path().join("snapshot");
    wait(shard.export_nbd(NbdExport { target: frozen, ..on_unix(2, &of_snapshot) })).expect("export");
    let mut reader = Client::unix(&of_snapshot);
    assert!(reader.read(1 << 20, 3 << 20).expect("read") == old);
    assert_eq!(reader.write(0, &[1; 512]), 1, "read-only");
    let status = wait(shard.status()).expect("status");
    assert_eq!((status.devices.len(), status.clients), (2, 2));
    assert!(status.devices.iter().flatten().map(|device| device.load.write_bytes).sum::<u64>() >= 3 << 20);
    wait(shard.shutdown()).expect("shutdown");

    // The devices may come in any order.
    let reversed: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    let shard = import(open(&reversed, 4096), Tuning::default()).expect("import");
    assert_eq!(wait(shard.opened()).expect("opened"), PoolState::Online);
    wait(shard.export_nbd(head)).expect("export");
    let mut client = Client::unix(&socket);
    assert!(client.read(1 << 20, 3 << 20).expect("read") == new);
    let range = ByteRange { offset: 1 << 20, length: 3 << 20 };
    assert!(wait(shard.read(frozen, range)).expect("read") == old);
    let changed = wait(shard.diff(Some(frozen), Target::Head(volume))).expect("diff");
    assert_eq!(changed.iter().map(|extent| (extent.offset, extent.length, extent.data)).collect::<Vec<_>>(), [(1 << 20, 4096, true)]);
    drop(client);
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn devices_without_a_pool_are_a_fault_that_can_be_shut_down() {
    let dir = tempfile::tempdir().expect("directory");
    let paths = [dir.path().join("blank")];
    let shard = import(open(&paths, 64 << 20), Tuning::default()).expect("import");
    let PoolState::Faulted(_) = wait(shard.opened()).expect("opened") else { panic!("opened a blank device") };
    assert!(matches!(wait(shard.status()), Err(ShardError::Command(CommandError::Faulted(_)))));
    assert!(matches!(wait(shard.command(Command::Checkpoint)), Err(ShardError::Command(CommandError::Faulted(_)))));
    wait(shard.shutdown()).expect("shutdown");
    drop(open(&paths, 64 << 20));
}

/// Bytes of a block that can be compressed, after `times` writes.
fn block(number: u64, times: u8) -> Vec<u8> {
    let mut bytes = vec![times; 4096];
    for (at, byte) in bytes.iter_mut().step_by(7).enumerate() {
        *byte = (number.wrapping_mul(31).wrapping_add(at as u64 / 16)) as u8;
    }
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Requests of all sizes to a compressed volume, many at once, with and without helpers: guests
/// read what they wrote, at once, after a flush and a restart without a close.
#[test]
fn compressed_blocks_are_what_was_written_with_and_without_helpers() {
    for (threads, compression) in [(0, Compression::Zstd), (3, Compression::Zstd), (2, Compression::Lz4)] {
        let dir = tempfile::tempdir().expect("directory");
        let (socket, paths) = (dir.path().join("s"), [dir.path().join("a")]);
        let (shard, volume) = compressed_pool(&paths, 256 << 20, 16 << 20, compression);
        shard.set_helpers(Arc::new(Helpers::start(threads)));
        let head = NbdExport { target: Target::Head(volume), ..on_unix(1, &socket) };
        wait(shard.export_nbd(head.clone())).expect("export");
        let mut client = Client::unix(&socket);
        let mut times = vec![0u8; 4096];
        for round in 1..4u8 {
            let mut sent = 0;
            for (nth, count) in [1u64, 64, 3, 256, 1, 17, 1, 1, 128, 9].into_iter().cycle().take(60).enumerate() {
                let first = (nth as u64 * 67 + u64::from(round) * 41) % (4096 - count);
                let bytes: Vec<u8> = (first..first + count).flat_map(|number| block(number, round)).collect();
                client.send(1, nth as u64, first * 4096, bytes.len() as u32, &bytes);
                times[first as usize..(first + count) as usize].fill(round);
                sent += 1;
            }
            (0..sent).for_each(|_| assert_eq!(client.reply().expect("reply").0, 0));
            let stored: Vec<u8> =
                (0..).zip(&times).flat_map(|(number, times)| if *times == 0 { vec![0; 4096] } else { block(number, *times) }).collect();
            for from in (0..4096u64).step_by(512) {
                let read = client.read(from * 4096, 512 * 4096).expect("read");
                assert!(read == stored[from as usize * 4096..][..512 * 4096], "{threads} helpers, round {round}, block {from}");
            }
        }
        client.send(FLUSH, 1, 0, 0, &[]);
        assert_eq!(client.reply().expect("reply").0, 0);
        drop(client);
        wait(shard.shutdown()).expect("shutdown");
        let shard = import(open(&paths, 4096), Tuning::default()).expect("import");
        assert_eq!(wait(shard.opened()).expect("opened"), PoolState::Online);
        for (number, times) in (0..).zip(&times).step_by(37) {
            let read = wait(shard.read(Target::Head(volume), ByteRange { offset: number * 4096, length: 4096 })).expect("read");
            assert!(read == if *times == 0 { vec![0; 4096] } else { block(number, *times) }, "block {number}");
        }
        wait(shard.shutdown()).expect("shutdown");
    }
}

#[test]
fn a_chunk_reaches_only_the_import_that_wants_it() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("a");
    let (shard, volume, _orders) = clone_of_publication(path.clone(), Clock::default());
    wait(shard.shutdown()).expect("shutdown");
    // imports that only read: their fetches have the same numbers
    let import_again = || {
        let device = HostDevice::open(&path, OpenOptions { create_size: None, direct: true, read_only: true }).expect("open");
        let shard = import(vec![device], Tuning { read_only: true, ..Tuning::default() }).expect("import");
        assert_eq!(wait(shard.opened()).expect("opened"), PoolState::Online);
        let (to, mut orders) = unbounded_channel();
        shard.pass_fetches_to("pond", to);
        let reading = {
            let shard = shard.clone();
            thread::spawn(move || wait(shard.read(Target::Head(volume), ByteRange { offset: 0, length: 4096 })))
        };
        let chunk = next_chunk(&mut orders);
        (shard, reading, chunk)
    };
    let (first, reading, old) = import_again();
    first.abandon();
    assert!(reading.join().expect("no panic").is_err());
    wait(first.ended());
    let (second, reading, new) = import_again();
    old.answer(Ok(Some(vec![9; UNIT])));
    thread::sleep(Duration::from_millis(200));
    assert!(!reading.is_finished(), "it got what another import wanted");
    new.answer(Ok(Some(vec![7; UNIT])));
    assert!(reading.join().expect("no panic").expect("read") == [7; 4096]);
    wait(second.shutdown()).expect("shutdown");
}
