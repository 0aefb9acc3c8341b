//! A mount without a kernel: a message socket in place of `/dev/fuse`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_block::ByteRange;
use millpond_device::Ring;
use millpond_engine::Target;
use millpond_export::testing::HostileRequests;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::client::{self, Client, on_unix, wait};
use super::engine::{clone_of_publication, next_chunk, pool};
use crate::budget::{Budget, LEAST, PoolBudget};
use crate::shard::clock::Clock;
use crate::shard::{ExportId, FuseExport, NbdExport, OpenFile, ShardError, ShardHandle};

const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const INIT: u32 = 26;

/// Waits of half a second for a reply that must come: ten minutes.
const ROUNDS: u32 = 1200;

/// The kernel's side of a mount.
struct Kernel {
    device: OwnedFd,
    last: u64,
}

impl Kernel {
    fn mount(shard: &ShardHandle, id: u64) -> Kernel {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        rustix::fs::fcntl_setfl(&theirs, OFlags::NONBLOCK).expect("nonblocking");
        set_socket_timeout(&ours, Timeout::Recv, Some(Duration::from_millis(500))).expect("timeout");
        let export = FuseExport { id: ExportId(id), name: "pond".to_owned(), device: theirs, uid: 0, gid: 0, mode: 0o600 };
        wait(shard.export_fuse(export)).expect("export");
        let mut kernel = Kernel { device: ours, last: 0 };
        let init = [7u32, 36, 0, 0].map(u32::to_ne_bytes).concat();
        assert_eq!(kernel.ask(INIT, 0, &init).0, 0);
        kernel
    }

    fn start(&mut self, opcode: u32, node: u64, body: &[u8]) -> u64 {
        self.last += 2;
        let head = [(40 + body.len() as u32).to_ne_bytes(), opcode.to_ne_bytes()].concat();
        let request = [&head[..], &self.last.to_ne_bytes(), &node.to_ne_bytes(), &[0; 8], &99u32.to_ne_bytes(), &[0; 4], body].concat();
        send(&self.device, &request, SendFlags::empty()).expect("send");
        self.last
    }

    /// Returns the next reply: its number, its error, the rest. `None` when none comes.
    fn reply(&mut self) -> Option<(u64, i32, Vec<u8>)> {
        let mut space = vec![0; (1 << 20) + 16];
        let length = recv(&self.device, space.as_mut_slice(), RecvFlags::empty()).ok()?.0;
        let error = i32::from_ne_bytes(space.get(4..8)?.try_into().ok()?);
        let unique = u64::from_ne_bytes(space.get(8..16)?.try_into().ok()?);
        Some((unique, -error, space.get(16..length)?.to_vec()))
    }

    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let number = self.start(opcode, node, body);
        loop {
            let (unique, error, rest) = (0..ROUNDS).find_map(|_| self.reply()).expect("a reply");
            if unique == number {
                return (error, rest);
            }
        }
    }
}

/// Returns the arguments of a read or write.
fn transfer(fh: u64, offset: u64, size: u32) -> Vec<u8> {
    [&fh.to_ne_bytes()[..], &offset.to_ne_bytes(), &size.to_ne_bytes(), &[0; 20]].concat()
}

#[test]
fn files_are_the_volumes_and_a_mount_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().expect("directory");
    let (shard, volume) = pool(&[dir.path().join("a")], 256 << 20, 32 << 20);
    let mut kernel = Kernel::mount(&shard, 5);
    let (error, entry) = kernel.ask(LOOKUP, 1, b"disk0\0");
    let node = u64::from_ne_bytes(*entry.first_chunk().expect("an entry"));
    assert_eq!(error, 0);
    let (error, opened) = kernel.ask(OPEN, node, &2u64.to_ne_bytes());
    let fh = u64::from_ne_bytes(*opened.first_chunk().expect("a file"));
    assert_eq!(error, 0);
    let bytes: Vec<u8> = (0..70_001u32).map(|index| (index / 7) as u8).collect();
    assert_eq!(kernel.ask(WRITE, node, &[transfer(fh, 12_345, 70_001), bytes.clone()].concat()).0, 0);
    assert!(kernel.ask(READ, node, &transfer(fh, 12_345, 70_001)).1 == bytes);
    let range = ByteRange { offset: 12_288, length: 512 };
    let sector = wait(shard.read(Target::Head(volume), range)).expect("read");
    assert_eq!((&sector[..57], &sector[57..]), (&[0; 57][..], &bytes[..455]), "another export sees the same");

    let export = ExportId(5);
    assert_eq!(wait(shard.open_files()).expect("files"), [OpenFile { export, target: Target::Head(volume), pid: 99 }]);
    let info = wait(shard.exports()).expect("exports").remove(0);
    assert_eq!((info.id, info.target, info.clients.len(), info.clients[0].peer.as_str()), (export, None, 1, "pid=99"));
    assert_eq!((info.counters.writes, info.counters.write_bytes, info.counters.reads), (1, 70_001, 1));
    let images: Vec<_> = info.images.iter().map(|image| (image.volume.as_str(), image.open, image.counters.write_bytes)).collect();
    assert_eq!(images, [("disk0", 1, 70_001)]);
    assert_eq!(wait(shard.status()).expect("status").clients, 1);
    assert_eq!(kernel.ask(RELEASE, node, &[&fh.to_ne_bytes()[..], &[0; 16]].concat()).0, 0);
    assert_eq!(wait(shard.open_files()).expect("files"), []);

    wait(shard.unexport(export)).expect("unexport");
    assert!(matches!(wait(shard.unexport(export)), Err(ShardError::NoExport(_))));
    assert!(send(&kernel.device, &[0; 40], SendFlags::NOSIGNAL).is_err(), "the device is closed");
    assert_eq!(wait(shard.status()).expect("status").guests.writes, 1, "what is gone is counted on");
    let (volumes, _) = wait(shard.volume_uses()).expect("volumes");
    let load = &volumes[0].load;
    assert_eq!((load.io.writes, load.io.write_bytes, load.io.reads, load.io.errors), (1, 70_001, 1, 0), "and for its volume");
    assert_eq!(load.times[0].counts.iter().sum::<u64>(), 1, "with a latency");
    // a mount that ends by itself, and one that exists when the pool is closed
    drop(Kernel::mount(&shard, 6));
    let _last = Kernel::mount(&shard, 7);
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn hostile_requests_leave_the_shard_serving() {
    let requests: u64 = std::env::var("MILLPOND_FUZZ_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000);
    let dir = tempfile::tempdir().expect("directory");
    let (shard, volume) = pool(&[dir.path().join("a")], 256 << 20, 1 << 20);
    let mut kernel = Kernel::mount(&shard, 1);
    let mut hostile = HostileRequests::new(0x1234_5678_9abc);
    for number in 0..requests {
        send(&kernel.device, &hostile.damaged((1 << 40) + 2 * number), SendFlags::empty()).expect("the shard reads on");
        if number % 8 == 7 {
            // a reply without room in the socket is lost, unlike one to /dev/fuse: ask again
            let served = (0..ROUNDS).any(|_| {
                let asked = kernel.start(STATFS, 1, &[]);
                std::iter::from_fn(|| kernel.reply()).any(|(unique, error, _)| unique == asked && error == 0)
            });
            assert!(served, "after request {number}");
        }
    }
    wait(shard.write(Target::Head(volume), 4096, vec![7; 4096])).expect("write");
    let range = ByteRange { offset: 4096, length: 4096 };
    assert!(wait(shard.read(Target::Head(volume), range)).expect("read") == vec![7; 4096]);
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn requests_of_a_mount_wait_for_the_memory_of_all_clients() {
    let dir = tempfile::tempdir().expect("directory");
    let (shard, volume) = pool(&[dir.path().join("a")], 256 << 20, 32 << 20);
    let budget = Arc::new(Budget::new(0));
    shard.set_budget(Arc::clone(&budget));
    let mut kernel = Kernel::mount(&shard, 5);
    let (_, entry) = kernel.ask(LOOKUP, 1, b"disk0\0");
    let node = u64::from_ne_bytes(*entry.first_chunk().expect("an entry"));
    let (_, opened) = kernel.ask(OPEN, node, &2u64.to_ne_bytes());
    let fh = u64::from_ne_bytes(*opened.first_chunk().expect("a file"));
    // a client of the pool holds some of the budget for ever, and another pool all of it; a small request
    // needs none of it
    let socket = dir.path().join("s");
    wait(shard.export_nbd(NbdExport { target: Target::Head(volume), ..on_unix(9, &socket) })).expect("export");
    let mut hog = Client::unix(&socket);
    hog.send(client::READ, 1, 0, 16 << 20, &[]);
    while wait(shard.status()).expect("status").guests.reads == 0 {
        std::thread::yield_now();
    }
    let held = budget.use_of().1;
    let other = PoolBudget::new(Arc::clone(&budget), Ring::new().expect("ring").waker());
    assert!(other.take(other.asker(), LEAST));
    assert_eq!(kernel.ask(WRITE, node, &[transfer(fh, 0, 4096), vec![7; 4096]].concat()).0, 0);
    // a write that is not copied holds the whole buffer in which it came
    let large = || [transfer(fh, 4096, 65_536), vec![9; 65_536]].concat();
    let waiting = kernel.start(WRITE, node, &large());
    assert!(kernel.reply().is_none(), "there is no memory for it");
    // setting the same budget again changes nothing
    shard.set_budget(Arc::clone(&budget));
    other.give_back(LEAST);
    let (unique, error, bytes) = (0..ROUNDS).find_map(|_| kernel.reply()).expect("a reply");
    assert_eq!((unique, error, bytes.len()), (waiting, 0, 8));
    let read = kernel.ask(READ, node, &transfer(fh, 0, 4096 + 65_536)).1;
    assert!(read[..4096] == [7; 4096] && read[4096..] == [9; 65_536]);
    while budget.use_of().1 > held {
        std::thread::yield_now();
    }
    // a mount ends while its request waits, which is noticed when the request gets its turn
    assert!(other.take(other.asker(), LEAST));
    kernel.start(WRITE, node, &large());
    assert!(kernel.reply().is_none());
    drop(kernel);
    other.give_back(LEAST);
    while wait(shard.exports()).expect("exports").len() > 1 || budget.use_of().1 > held {
        std::thread::yield_now();
    }
    drop(hog);
    while budget.use_of().1 > 0 {
        std::thread::yield_now();
    }
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn a_mount_ends_although_a_read_waits_for_a_target_that_is_away() {
    let dir = tempfile::tempdir().expect("directory");
    let ahead: &'static AtomicU64 = Box::leak(Box::default());
    let (shard, _, mut orders) = clone_of_publication(dir.path().join("a"), Clock::ahead_by(ahead));
    let mut kernel = Kernel::mount(&shard, 5);
    let node = u64::from_ne_bytes(*kernel.ask(LOOKUP, 1, b"vm\0").1.first_chunk().expect("an entry"));
    let fh = u64::from_ne_bytes(*kernel.ask(OPEN, node, &2u64.to_ne_bytes()).1.first_chunk().expect("a file"));
    let waiting = kernel.start(READ, node, &transfer(fh, 0, 4096));
    let chunk = next_chunk(&mut orders);
    let ending = {
        let shard = shard.clone();
        std::thread::spawn(move || wait(shard.shutdown()))
    };
    // an answer that comes soon is waited for
    assert!(kernel.reply().is_none() && !ending.is_finished());
    ahead.fetch_add(11_000_000_000, Ordering::SeqCst);
    let (unique, error, _) = (0..ROUNDS).find_map(|_| kernel.reply()).expect("a reply");
    assert_eq!((unique, error), (waiting, Errno::SHUTDOWN.raw_os_error()));
    ending.join().expect("no panic").expect("the pool is closed");
    assert!(!chunk.is_waited_for());
}
