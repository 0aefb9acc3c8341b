//! Front ends that connect and leave; the end-to-end tests show with guests how queues work.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millpond_export::vhost_user::wire::{HEADER, code, request};
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

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

fn send(stream: &mut UnixStream, code: u32, payload: &[u8]) {
    stream.write_all(&request(code, false, payload)).expect("send");
}

fn features(stream: &mut UnixStream) -> u64 {
    send(stream, code::GET_FEATURES, &[]);
    let mut reply = [0; HEADER + 8];
    stream.read_exact(&mut reply).expect("reply");
    u64::from_ne_bytes(reply[HEADER..].try_into().expect("eight bytes"))
}

fn ends(stream: &mut UnixStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
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
    send(&mut second, code::GET_FEATURES, &[]);
    second.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
    assert!(second.read(&mut [0; 20]).is_err());
    drop(first);
    second.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut reply = [0; 20];
    second.read_exact(&mut reply).expect("reply");
    send(&mut second, code::SET_MEM_TABLE, &[0xff; 40]);
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

/// Sends a message with a descriptor.
fn send_with(stream: &UnixStream, code: u32, payload: &[u8], fd: BorrowedFd<'_>) {
    let bytes = request(code, false, payload);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty()).expect("send");
    assert_eq!(sent, bytes.len());
}

fn words(fields: &[u64]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

/// Two 32-bit fields.
fn pair(first: u32, second: u32) -> Vec<u8> {
    words(&[u64::from(first) | u64::from(second) << 32])
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
    let mut stream = connect(&path);
    features(&mut stream);
    send(&mut stream, code::SET_FEATURES, &words(&[VERSION_1]));
    // not a memfd: it takes no seals
    let memory: File = tempfile::tempfile_in("/dev/shm").expect("memory");
    memory.set_len(MEMORY).expect("size");
    send_with(&stream, code::SET_MEM_TABLE, &words(&[1, 0, MEMORY, 0, 0]), memory.as_fd());
    send(&mut stream, code::SET_VRING_NUM, &pair(0, 8));
    send(&mut stream, code::SET_VRING_BASE, &pair(0, 0));
    send(&mut stream, code::SET_VRING_ADDR, &[pair(0, 0), words(&[0x1000, 0x3000, 0x2000, 0])].concat());
    let kick = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    send_with(&stream, code::SET_VRING_KICK, &words(&[0]), kick.as_fd());
    assert_ne!(features(&mut stream), 0, "all of that was taken");
    eventually("the queue runs", || {
        // in the used ring the device enables or disables kicks
        let mut used = [0; 64];
        memory.read_exact_at(&mut used, 0x3000).is_ok() && clients(&shard) == 2
    });
    memory.set_len(0).expect("size");
    rustix::io::write(&kick, &1u64.to_ne_bytes()).expect("kick");
    assert!(ends(&mut stream), "the front end is broken off");
    assert_eq!(neighbour.write(0, &[5; 4096]), 0);
    assert_eq!(neighbour.read(0, 4096).expect("read"), [5; 4096]);
    // the front end may connect again
    assert_ne!(features(&mut connect(&path)), 0);
    wait(shard.shutdown()).expect("shutdown");
}
