//! A small blocking NBD client, and the shards it talks to.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use millpond_export::nbd::client::reply::parse;
use millpond_export::nbd::client::{Export, negotiate};
use millpond_export::nbd::wire::{RequestHeader, SIMPLE_REPLY, Style};

use crate::shard::start::spawn;
use crate::shard::{ClientLimits, ExportId, InheritedSockets, NbdExport, ShardHandle, SocketAccess};

use super::double::{Double, HEAD, Medium};

/// Longest wait for an answer or a state that must come, for a machine that is busy with other
/// work.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
/// A code that no NBD command has.
const UNKNOWN: u16 = 99;

/// Both directions of a connection.
pub trait Stream: Read + Write + Send {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

pub struct Client {
    pub stream: Box<dyn Stream>,
    pub size: u64,
    pub flags: u16,
}

impl Client {
    pub fn unix(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Client::greet(Box::new(stream))
    }

    /// Returns a client whose write is in flight in the pool. A command that is refused at once
    /// serves as a marker: its answer comes after the pool has got the write before it.
    pub fn with_a_write_in_the_pool(path: &Path) -> Client {
        let mut client = Client::unix(path);
        client.send(WRITE, 1, 0, 4096, &[7; 4096]);
        client.send(UNKNOWN, 2, 0, 0, &[]);
        assert_eq!(client.reply().expect("a refusal").1, 2);
        client
    }

    pub fn greet(mut stream: Box<dyn Stream>) -> Client {
        let Export { size, flags, .. } = negotiate(&mut stream, "", Style::Simple, None).expect("an export");
        Client { stream, size, flags }
    }

    pub fn send(&mut self, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) {
        let header = RequestHeader { magic: Style::Simple.request_magic(), flags: 0, command, cookie, offset, length: length.into() };
        let bytes = [&*header.encode(Style::Simple), payload].concat();
        self.stream.write_all(&bytes).expect("request");
    }

    /// Returns error and cookie of the next reply.
    pub fn reply(&mut self) -> io::Result<(u32, u64)> {
        let mut head = [0; SIMPLE_REPLY];
        self.stream.read_exact(&mut head)?;
        let reply = parse(&head).expect("a reply").expect("a simple one");
        Ok((reply.error, reply.cookie))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> u32 {
        self.send(WRITE, 5, offset, bytes.len() as u32, bytes);
        self.reply().expect("reply").0
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        self.send(READ, 6, offset, length as u32, &[]);
        let (error, cookie) = self.reply().expect("reply");
        assert_eq!(cookie, 6);
        if error != 0 {
            return Err(error);
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("data");
        Ok(bytes)
    }

    /// Waits for the server to close the connection.
    pub fn wait_end(mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("an end");
        assert!(rest.is_empty());
    }
}

/// Waits for a future.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("in time") })
}

/// Returns a shard with 8 MiB in memory.
pub fn in_memory() -> ShardHandle {
    spawn(Vec::new(), |_, _| Ok(Double::memory(8 << 20))).expect("shard")
}

/// Returns a shard whose medium never answers.
pub fn hung() -> ShardHandle {
    spawn(Vec::new(), |_, _| Ok(Double::new(Medium::Hung, 8 << 20))).expect("shard")
}

pub fn on_unix(id: u64, path: &Path) -> NbdExport {
    NbdExport {
        access: SocketAccess::default(),
        id: ExportId(id),
        name: "double/disk".to_owned(),
        description: String::new(),
        target: HEAD,
        unix: Some(path.to_owned()),
        tcp: None,
        read_only: false,
        tls: None,
        limits: ClientLimits::default(),
        inherited: InheritedSockets::default(),
    }
}
