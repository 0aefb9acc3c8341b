//! Front ends that connect and leave; the end-to-end tests show with guests how queues work.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millpond_engine::Target;
use millpond_export::vhost_user::front_end::{Channel, FrontEnd, RingPlaces, STATUS_AT, Segment, Signals, WRITE, chain, request_header};
use millpond_export::vhost_user::wire::{HEADER, Region, code, protocol};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::client::{Client, PATIENCE, in_memory, on_unix, wait};
use super::double::{HEAD, SNAPSHOT};
use super::engine::{UNIT, clone_of_publication, next_chunk};
use crate::shard::clock::Clock;
use crate::shard::{ExportId, ShardError, ShardHandle, SocketAccess, VhostUserExport};

const READ_ONLY: u64 = 1 << 5;

fn spec(id: u64, path: &Path) -> VhostUserExport {
    VhostUserExport {
        access: SocketAccess::default(),
        id: ExportId(id),
        name: "p/v".to_owned(),
        target: HEAD,
        unix: path.to_owned(),
        queues: 4,
        read_only: false,
        promised: false,
    }
}

/// Socket of a front end.
struct Socket(UnixStream);

impl Channel for Socket {
    fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.into_iter().collect();
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())?;
        assert_eq!(sent, bytes.len());
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let first = bytes.len().min(1);
        rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes[..first])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next();
        self.0.read_exact(&mut bytes[first..]).map(|()| fd)
    }
}

fn connect(path: &Path) -> FrontEnd<Socket> {
    let stream = UnixStream::connect(path).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    FrontEnd::new(Socket(stream))
}

fn features(front: &mut FrontEnd<Socket>) -> u64 {
    front.ask(code::GET_FEATURES, &[]).expect("features")
}

fn ends(front: &mut FrontEnd<Socket>) -> bool {
    matches!(front.channel().0.read(&mut [0; 1]), Ok(0) | Err(_))
}

fn clients(shard: &ShardHandle) -> usize {
    wait(shard.exports()).expect("exports").iter().map(|export| export.clients.len()).sum()
}

fn eventually(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn front_ends_are_served_one_after_another() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    let info = wait(shard.export_vhost_user(spec(1, &path))).expect("export");
    assert_eq!((info.unix.as_deref(), info.clients.len()), (Some(path.as_path()), 0));
    assert_eq!(std::fs::metadata(&path).expect("socket").permissions().mode() & 0o777, 0o600);
    let mut first = connect(&path);
    assert_eq!(features(&mut first) & READ_ONLY, 0);
    assert_eq!((clients(&shard), wait(shard.status()).expect("status").clients), (1, 1));
    // The second front end is answered after the first has left, and a third after the second has
    // sent an invalid message.
    let mut second = connect(&path);
    second.send(code::GET_FEATURES, &[], None).expect("send");
    second.channel().0.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
    assert!(second.channel().0.read(&mut [0; 20]).is_err());
    drop(first);
    second.channel().0.set_read_timeout(Some(PATIENCE)).expect("timeout");
    second.channel().receive(&mut [0; HEADER + 8]).expect("reply");
    second.send(code::SET_MEM_TABLE, &[0xff; 40], None).expect("send");
    assert!(ends(&mut second));
    assert_ne!(features(&mut connect(&path)), 0);
    eventually("all are gone", || clients(&shard) == 0);
    wait(shard.shutdown()).expect("shutdown");
    assert!(!path.exists());
}

#[test]
fn an_export_goes_with_its_front_end_connected_and_another_waiting() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    wait(shard.export_vhost_user(spec(1, &path))).expect("export");
    let mut connected = connect(&path);
    features(&mut connected);
    let mut waiting = connect(&path);
    wait(shard.unexport(ExportId(1))).expect("unexport");
    assert!(ends(&mut connected) && ends(&mut waiting) && !path.exists());
    assert!(matches!(wait(shard.unexport(ExportId(1))), Err(ShardError::NoExport(_))));
    // The same path and id again; this export ends with the pool.
    wait(shard.export_vhost_user(spec(1, &path))).expect("export");
    let mut connected = connect(&path);
    features(&mut connected);
    wait(shard.shutdown()).expect("shutdown");
    assert!(ends(&mut connected) && !path.exists());
}

#[test]
fn what_cannot_be_exported_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let shard = in_memory();
    wait(shard.export_nbd(on_unix(1, &path))).expect("export");
    assert!(matches!(wait(shard.export_vhost_user(spec(1, &dir.path().join("t")))), Err(ShardError::ExportExists(_))));
    assert!(matches!(wait(shard.export_vhost_user(spec(2, &path))), Err(ShardError::Listen { .. })));
    let snapshot = VhostUserExport { target: SNAPSHOT, ..spec(3, &dir.path().join("t")) };
    wait(shard.export_vhost_user(snapshot)).expect("export");
    assert_ne!(features(&mut connect(&dir.path().join("t"))) & READ_ONLY, 0, "a snapshot takes no writes");
    assert!(matches!(wait(shard.export_nbd(on_unix(3, &dir.path().join("u")))), Err(ShardError::ExportExists(_))));
    wait(shard.shutdown()).expect("shutdown");
}

#[test]
fn a_guest_whose_memory_is_cut_short_is_broken_off_alone() {
    const VERSION_1: u64 = 1 << 32;
    const MEMORY: u64 = 1 << 20;
    let dir = tempfile::tempdir().expect("directory");
    let (path, other) = (dir.path().join("s"), dir.path().join("o"));
    let shard = in_memory();
    wait(shard.export_vhost_user(spec(1, &path))).expect("export");
    wait(shard.export_nbd(on_unix(2, &other))).expect("export");
    let mut neighbour = Client::unix(&other);
    let mut front = connect(&path);
    front.negotiate(VERSION_1, 0).expect("negotiated");
    // not a memfd: it takes no seals
    let memory: File = tempfile::tempfile_in("/dev/shm").expect("memory");
    memory.set_len(MEMORY).expect("size");
    front.share_memory(Region { guest: 0, size: MEMORY, user: 0, offset: 0 }, memory.as_fd()).expect("shared");
    let places = RingPlaces { size: 8, descriptors: 0x1000, available: 0x2000, used: 0x3000 };
    let kick = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    front.start(0, &places, 0, &Signals { kick: kick.as_fd(), call: None, error: None }).expect("sent");
    assert_ne!(features(&mut front), 0, "all of that was taken");
    eventually("the queue runs", || {
        // in the used ring the device enables or disables kicks
        let mut used = [0; 64];
        memory.read_exact_at(&mut used, 0x3000).is_ok() && clients(&shard) == 2
    });
    memory.set_len(0).expect("size");
    rustix::io::write(&kick, &1u64.to_ne_bytes()).expect("kick");
    assert!(ends(&mut front), "the front end is broken off");
    assert_eq!(neighbour.write(0, &[5; 4096]), 0);
    assert_eq!(neighbour.read(0, 4096).expect("read"), [5; 4096]);
    // the front end may connect again
    assert_ne!(features(&mut connect(&path)), 0);
    wait(shard.shutdown()).expect("shutdown");
}

/// A guest with one queue, whose memory and record of requests in flight outlive its connections.
struct Guest {
    memory: File,
    record: Option<(OwnedFd, Vec<u8>)>,
    kick: OwnedFd,
}

impl Guest {
    const MEMORY: u64 = 1 << 20;
    const PLACES: RingPlaces = RingPlaces { size: 8, descriptors: 0x1000, available: 0x2000, used: 0x3000 };
    const DATA: u64 = 0x8000;

    fn new() -> Guest {
        let memory = tempfile::tempfile_in("/dev/shm").expect("memory");
        memory.set_len(Guest::MEMORY).expect("size");
        Guest { memory, record: None, kick: eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd") }
    }

    /// Connects, and starts the queue.
    fn connect(&mut self, path: &Path) -> FrontEnd<Socket> {
        const VERSION_1: u64 = 1 << 32;
        const PROTOCOL: u64 = 1 << 30;
        let mut front = connect(path);
        front.negotiate(VERSION_1 | PROTOCOL, protocol::INFLIGHT_SHMFD | protocol::REPLY_ACK).expect("negotiated");
        let record = match self.record.take() {
            Some(record) => record,
            None => front.make_record(1, Guest::PLACES.size).expect("a record"),
        };
        front.share_record(record.0.as_fd(), &record.1).expect("shared");
        self.record = Some(record);
        front.share_memory(Region { guest: 0, size: Guest::MEMORY, user: 0, offset: 0 }, self.memory.as_fd()).expect("shared");
        front.start(0, &Guest::PLACES, self.used(), &Signals { kick: self.kick.as_fd(), call: None, error: None }).expect("started");
        front
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("written");
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, at).expect("read");
        bytes
    }

    /// Offers the request of this number, which reads a sector; each has descriptors of its own.
    fn ask(&self, number: u16, sector: u64) {
        let (head, at) = (number * 3, Guest::DATA + u64::from(number) * 0x1000);
        self.write(at, &request_header(0, sector));
        let segments = [(at, 16, 0), (at + 512, 512, WRITE), (at + STATUS_AT, 1, WRITE)];
        let segments = segments.map(|(at, length, flags)| Segment { at, length, flags });
        self.write(Guest::PLACES.descriptors + 16 * u64::from(head), &chain(&segments, head));
        self.write(Guest::PLACES.available + 4 + 2 * u64::from(number), &head.to_le_bytes());
        self.write(Guest::PLACES.available + 2, &(number + 1).to_le_bytes());
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("kick");
    }

    fn used(&self) -> u16 {
        u16::from_le_bytes(self.read(Guest::PLACES.used + 2))
    }
}

#[test]
fn a_guest_whose_read_waits_for_a_target_that_is_away_leaves_and_repeats_it() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let (shard, volume, mut orders) = clone_of_publication(dir.path().join("a"), Clock::default());
    let spec = VhostUserExport { target: Target::Head(volume), ..spec(1, &path) };
    wait(shard.export_vhost_user(spec.clone())).expect("export");
    let mut guest = Guest::new();
    let mut front = guest.connect(&path);
    guest.ask(0, 0);
    let chunk = next_chunk(&mut orders);
    let begun = Instant::now();
    wait(shard.unexport(ExportId(1))).expect("unexport");
    assert!(begun.elapsed() < PATIENCE / 10 && ends(&mut front));
    assert_eq!((guest.used(), guest.read(Guest::DATA + STATUS_AT)), (0, [0xff]), "it got an answer");
    eventually("nobody waits", || !chunk.is_waited_for());
    // the target is back, and the front end connects again
    wait(shard.export_vhost_user(spec)).expect("export");
    let mut front = guest.connect(&path);
    eventually("the read waits again", || chunk.is_waited_for());
    chunk.answer(Ok(Some(vec![7; UNIT])));
    eventually("the read is answered", || guest.used() == 1);
    assert_eq!((guest.read(Guest::DATA + STATUS_AT), guest.read(Guest::DATA + 512)), ([0], [7; 512]));
    // the pool is closed although a read waits
    guest.ask(1, 4096);
    next_chunk(&mut orders);
    let begun = Instant::now();
    wait(shard.shutdown()).expect("the pool is closed");
    assert!(begun.elapsed() < PATIENCE / 10 && ends(&mut front) && guest.used() == 1);
}
