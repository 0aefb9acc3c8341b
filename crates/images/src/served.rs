//! Disks behind NBD sockets: a daemon's export, or an image served by `qemu-nbd`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use millpond_export::nbd::client::Extent;

use super::chain::Layer;
use super::qemu::{QemuError, Served, Server};
use super::source::{Image, Kind, Run, Source};
use crate::nbd::{self, Nbd};

const ALLOCATION: &str = "base:allocation";
const DEPTH: &str = "qemu:allocation-depth";
/// Flag of `base:allocation`: the range reads as zeroes.
const ZERO: u32 = 2;
/// Value of `qemu:allocation-depth` for ranges in the top layer. 0 is unallocated, higher values
/// are lower layers.
const OWN: u32 = 1;

/// A disk behind an NBD socket.
pub struct ServedImage {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Report ranges of lower layers as [`Kind::Keep`]. The server must support
    /// `qemu:allocation-depth`.
    pub layered: bool,
    /// Server to keep running as long as the disk is read.
    pub server: Option<Arc<Server>>,
}

impl Image for ServedImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        let reader = nbd::connect(&self.socket)?;
        let allocation = nbd::connect_for_extents(&self.socket, ALLOCATION)?;
        let depth = if self.layered { Some(nbd::connect_for_extents(&self.socket, DEPTH)?) } else { None };
        Ok(Box::new(ServedSource { reader, allocation, depth, _server: self.server.clone() }))
    }
}

/// A disk that `qemu-nbd` serves while it has readers, so that of a long chain one layer is open at
/// a time.
pub struct QemuImage {
    layers: Vec<Layer>,
    snapshot: Option<String>,
    layered: bool,
    running: Mutex<Weak<Server>>,
}

impl QemuImage {
    /// The disk of the last of `layers`, or an internal snapshot of it. Starts nothing yet.
    pub fn new(layers: &[Layer], snapshot: Option<String>, layered: bool) -> QemuImage {
        QemuImage { layers: layers.to_vec(), snapshot, layered, running: Mutex::new(Weak::new()) }
    }
}

impl Image for QemuImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let server = match running.upgrade() {
            Some(server) => server,
            None => {
                let started = Server::start(&Served::Layers(&self.layers, self.snapshot.as_deref()));
                let server = Arc::new(started.map_err(|failure| io::Error::other(QemuError(failure)))?);
                *running = Arc::downgrade(&server);
                server
            }
        };
        drop(running);
        ServedImage { socket: server.socket().to_owned(), layered: self.layered, server: Some(server) }.open()
    }
}

struct ServedSource {
    reader: Nbd,
    allocation: Nbd,
    depth: Option<Nbd>,
    _server: Option<Arc<Server>>,
}

fn plain(extents: Vec<Extent>) -> Vec<Run> {
    let kind = |flags: u32| if flags & ZERO != 0 { Kind::Zero } else { Kind::Data };
    extents.into_iter().map(|e| Run { offset: e.offset, length: e.length, kind: kind(e.flags) }).collect()
}

impl Source for ServedSource {
    fn size(&self) -> u64 {
        self.reader.size()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let Some(depth) = &mut self.depth else {
            return self.allocation.extents(offset, length).map(plain);
        };
        let first = depth.extents(offset, length)?.into_iter().next();
        let Some(first) = first else { return Ok(Vec::new()) };
        if first.flags == OWN {
            return self.allocation.extents(first.offset, first.length).map(plain);
        }
        Ok(vec![Run { offset: first.offset, length: first.length, kind: Kind::Keep }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reader.read(offset, into)
    }
}
