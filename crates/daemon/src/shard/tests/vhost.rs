//! Front ends that connect and leave; the end-to-end tests show with guests how queues work.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millpond_export::vhost_user::front_end::{Channel, FrontEnd, RingPlaces, Signals};
use millpond_export::vhost_user::wire::{HEADER, Region, code};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::client::{Client, PATIENCE, in_memory, on_unix, wait};
use super::double::{HEAD, SNAPSHOT};
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

/// Socket of a front end that gets no descriptors.
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
        self.0.read_exact(bytes).map(|()| None)
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
