//! Front ends that come and go; what queues do is shown with guests, end to end.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::client::{in_memory, on_unix, wait};
use super::double::{HEAD, SNAPSHOT};
use crate::daemon::shard::{ExportId, ShardError, ShardHandle, VhostUserExport};

const GET_FEATURES: u32 = 1;
const SET_MEM_TABLE: u32 = 5;
const READ_ONLY: u64 = 1 << 5;

fn spec(id: u64, path: &Path) -> VhostUserExport {
    VhostUserExport {
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
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    stream
}

fn send(stream: &mut UnixStream, code: u32, payload: &[u8]) {
    let head = [code, 1, payload.len() as u32];
    let mut bytes: Vec<u8> = head.iter().flat_map(|field| field.to_ne_bytes()).collect();
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes).expect("send");
}

fn features(stream: &mut UnixStream) -> u64 {
    send(stream, GET_FEATURES, &[]);
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("reply");
    u64::from_ne_bytes(reply[12..].try_into().expect("eight bytes"))
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
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
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
    // The second is answered when the first has gone, and a third when the second has said what cannot be.
    let mut second = connect(&path);
    send(&mut second, GET_FEATURES, &[]);
    second.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
    assert!(second.read(&mut [0; 20]).is_err());
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    let mut reply = [0; 20];
    second.read_exact(&mut reply).expect("reply");
    send(&mut second, SET_MEM_TABLE, &[0xff; 40]);
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
    // The same path and number again; it ends with the pool.
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
