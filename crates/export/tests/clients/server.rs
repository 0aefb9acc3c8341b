//! A minimal loop that drives sessions: one thread, `poll`, non-blocking Unix sockets, and one disk
//! in memory for all connections.

use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use millpond_block::{BufPool, Disk, SectorProfile};
use millpond_export::nbd::{Limits, Phase, RecvBuf, SendBatch, Session};
use millpond_export::testing::{MemoryDisk, Order};
use millpond_export::{ExportId, ExportInfo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of slices per system call, set by Linux.
const MOST_SLICES: usize = 1024;

/// Configuration of a server.
#[derive(Clone, Copy)]
pub struct Setup {
    pub size: usize,
    pub sector: SectorProfile,
    pub read_only: bool,
    pub order: Order,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { size: 16 << 20, sector: SectorProfile::S512e, read_only: false, order: Order::InOrder }
    }
}

/// Number of connections, and the reasons for which they ended.
#[derive(Debug, Default)]
pub struct Summary {
    pub connections: usize,
    pub reasons: HashMap<String, usize>,
    pub requests: usize,
    pub handed_over: usize,
}

/// A running server; stopped with [`Server::stop`].
pub struct Server {
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Summary>,
}

impl Server {
    pub fn start(setup: Setup) -> Server {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("nbd.sock")).expect("a socket");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || Loop::new(listener, setup).run(&stopped));
        Server { directory, stop, thread }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd.sock")
    }

    /// Returns the URI for libnbd, qemu and fio.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }

    /// Stops the server and returns its summary.
    pub fn stop(self) -> Summary {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the server did not panic")
    }
}

struct Connection {
    stream: UnixStream,
    session: Session,
    recv: Option<RecvBuf>,
    batch: Option<SendBatch>,
}

struct Loop {
    listener: UnixListener,
    exports: Vec<ExportInfo>,
    disk: MemoryDisk,
    pool: BufPool,
    connections: Vec<Connection>,
    summary: Summary,
}

impl Loop {
    fn new(listener: UnixListener, setup: Setup) -> Loop {
        listener.set_nonblocking(true).expect("non-blocking");
        let disk = MemoryDisk::new(setup.size, setup.sector).with_order(setup.order).with_read_only(setup.read_only).with_pieces(60_000);
        let export = ExportInfo {
            id: ExportId(1),
            name: "disk".to_owned(),
            description: "memory".to_owned(),
            geometry: disk.geometry(),
            features: disk.features(),
            multi_conn: true,
            default: true,
        };
        let empty = ExportInfo { id: ExportId(2), name: "other".to_owned(), default: false, ..export.clone() };
        Loop {
            listener,
            exports: vec![export, empty],
            disk,
            pool: BufPool::default(),
            connections: Vec::new(),
            summary: Summary::default(),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Summary {
        while !stop.load(Ordering::SeqCst) || !self.connections.is_empty() {
            self.wait();
            self.accept();
            for connection in &mut self.connections {
                connection.receive(&mut self.pool);
                connection.session.handshake(&self.exports);
                connection.session.requests(&mut self.disk);
            }
            while let Some(answer) = self.disk.pop_answer() {
                if let Some(connection) = self.connections.get_mut(Session::id_of(answer.tag) as usize) {
                    assert!(connection.session.answer(answer), "an answer nobody waits for");
                }
            }
            while let Some(completion) = self.disk.pop_completion() {
                let id = Session::id_of(completion.tag);
                if let Some(connection) = self.connections.get_mut(id as usize) {
                    assert!(connection.session.complete(completion), "a completion nobody waits for");
                }
            }
            for connection in &mut self.connections {
                connection.transmit(&mut self.pool);
            }
            self.bury(stop.load(Ordering::SeqCst));
        }
        self.summary.requests = self.disk.log.len();
        self.summary.handed_over = self.disk.log.iter().filter(|(_, owned)| *owned).count();
        self.summary
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for connection in &self.connections {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, connection.recv.is_some());
            flags.set(PollFlags::OUT, connection.batch.is_some());
            fds.push(PollFd::new(&connection.stream, flags));
        }
        let timeout = Timespec::try_from(Duration::from_millis(20)).expect("in range");
        poll(&mut fds, Some(&timeout)).expect("poll");
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).expect("non-blocking");
            // Positions serve as ids, because connections are removed only when all of them have
            // ended.
            let session = Session::new(self.connections.len() as u32, Limits::default());
            self.connections.push(Connection { stream, session, recv: None, batch: None });
            self.summary.connections += 1;
        }
    }

    fn bury(&mut self, stopping: bool) {
        for connection in &mut self.connections {
            if connection.session.phase() == Phase::Closed {
                let _ = connection.stream.shutdown(std::net::Shutdown::Both);
            } else if stopping && connection.session.is_idle() {
                connection.session.abort(&mut self.pool);
            }
        }
        if self.connections.iter().all(|connection| connection.session.phase() == Phase::Closed) {
            for connection in self.connections.drain(..) {
                let reason = connection.session.close_reason().map(|r| r.to_string()).unwrap_or_default();
                *self.summary.reasons.entry(reason).or_default() += 1;
                connection.session.recycle(&mut self.pool);
            }
        }
    }
}

impl Connection {
    fn receive(&mut self, pool: &mut BufPool) {
        let Some(mut recv) = self.recv.take().or_else(|| self.session.recv(pool)) else { return };
        match (&self.stream).read(recv.space()) {
            Ok(n) => self.session.received(recv, n),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.recv = Some(recv),
            Err(_) => self.session.received(recv, 0),
        }
    }

    fn transmit(&mut self, pool: &mut BufPool) {
        while let Some(batch) = self.batch.take().or_else(|| self.session.send()) {
            let slices: Vec<IoSlice> = batch.slices().take(MOST_SLICES).map(IoSlice::new).collect();
            match (&self.stream).write_vectored(&slices) {
                Ok(n) => self.session.sent(batch, n, pool),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.batch = Some(batch);
                    return;
                }
                Err(_) => {
                    self.session.sent(batch, 0, pool);
                    self.session.abort(pool);
                }
            }
        }
        // Room made by sent bytes or answers is used before the next wait.
        if self.recv.is_none() {
            self.recv = self.session.recv(pool);
        }
    }
}
