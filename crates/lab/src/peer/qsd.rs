//! qemu-storage-daemon with raw and qcow2 images; snapshots are inside the image, or form a chain
//! of overlays as in Proxmox VE 9.

use super::{Contender, Qmp};
use crate::load::Endpoint;
use crate::process::{Daemon, find_tool, run_tool};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of an image of a volume chain, as Proxmox VE 9 makes it.
pub(super) const CHAIN_OPTIONS: &str = "cluster_size=131072,extended_l2=on,preallocation=metadata,lazy_refcounts=off";

/// Format of the disk's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// A sparse raw file.
    Raw,
    /// qcow2 with default options; internal snapshots.
    Qcow2,
    /// qcow2 with 128 KiB clusters and subclusters (`extended_l2`); internal snapshots.
    Qcow2Subclusters,
    /// qcow2 as in `Qcow2Subclusters`, with metadata allocated when an image is made and an external
    /// overlay per snapshot: the options of Proxmox VE's volume chains.
    Chain,
}

/// Kind of asynchronous I/O of QEMU's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aio {
    /// io_uring.
    #[default]
    Uring,
    /// The kernel's older interface (libaio); it needs direct I/O.
    Native,
}

impl Aio {
    /// Name in QEMU.
    pub fn name(self) -> &'static str {
        match self {
            Aio::Uring => "io_uring",
            Aio::Native => "native",
        }
    }
}

/// Cache mode of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Direct I/O.
    #[default]
    None,
    /// Direct I/O, and every write is durable.
    Directsync,
    /// Through the host's page cache, and every write is durable.
    Writethrough,
    /// Through the host's page cache.
    Writeback,
    /// Through the host's page cache, and flushes are ignored.
    Unsafe,
}

impl CacheMode {
    /// All cache modes.
    pub const ALL: [CacheMode; 5] =
        [CacheMode::None, CacheMode::Directsync, CacheMode::Writethrough, CacheMode::Writeback, CacheMode::Unsafe];

    /// Name in QEMU and Millpond.
    pub fn name(self) -> &'static str {
        match self {
            CacheMode::None => "none",
            CacheMode::Directsync => "directsync",
            CacheMode::Writethrough => "writethrough",
            CacheMode::Writeback => "writeback",
            CacheMode::Unsafe => "unsafe",
        }
    }

    fn options(self) -> Value {
        json!({"direct": matches!(self, CacheMode::None | CacheMode::Directsync), "no-flush": self == CacheMode::Unsafe})
    }

    /// Whether an export flushes after every write.
    fn writes_through(self) -> bool {
        matches!(self, CacheMode::Directsync | CacheMode::Writethrough)
    }
}

impl ImageFormat {
    fn create(self, path: &Path, size: u64, backing: Option<&Path>) -> Result<()> {
        if self == ImageFormat::Raw {
            let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
            return file.set_len(size).with_context(|| format!("sizing {}", path.display()));
        }
        let mut args = vec!["create".to_owned(), "-q".into(), "-f".into(), "qcow2".into()];
        match self {
            ImageFormat::Raw | ImageFormat::Qcow2 => {}
            ImageFormat::Qcow2Subclusters => args.extend(["-o".into(), "cluster_size=131072,extended_l2=on".into()]),
            ImageFormat::Chain => args.extend(["-o".into(), CHAIN_OPTIONS.into()]),
        }
        if let Some(backing) = backing {
            args.extend(["-b".into(), backing.display().to_string(), "-F".into(), "qcow2".into()]);
        }
        args.extend([path.display().to_string(), size.to_string()]);
        run_tool("qemu-img", &args).map(|_| ())
    }

    fn node(self, path: &Path, name: &str, backing: Option<Option<&str>>, (cache, aio): (CacheMode, Aio)) -> Value {
        let file = json!({"driver": "file", "filename": path, "aio": aio.name(), "cache": cache.options()});
        let driver = if self == ImageFormat::Raw { "raw" } else { "qcow2" };
        let mut node = json!({"driver": driver, "node-name": name, "file": file, "cache": cache.options()});
        if let Some(backing) = backing {
            node["backing"] = json!(backing);
        }
        node
    }
}

/// A qemu-storage-daemon with its image.
#[derive(Debug)]
pub struct Qsd {
    name: &'static str,
    format: ImageFormat,
    dir: PathBuf,
    size: u64,
    daemon: Option<Daemon>,
    qmp: Option<Qmp>,
    /// Layers of the chain, bottom first; a single one without overlays.
    layers: Vec<usize>,
    /// Snapshots: name, and the layer that the snapshot made read-only.
    snapshots: Vec<(String, usize)>,
    made: usize,
    cache: CacheMode,
    aio: Aio,
    /// Id of the current export.
    exported: Option<&'static str>,
    /// Existing file or device to serve; `None` for a file of its own.
    place: Option<PathBuf>,
}

impl Qsd {
    /// Describes a server; starts nothing.
    pub fn new(name: &'static str, format: ImageFormat) -> Qsd {
        Qsd {
            name,
            format,
            dir: PathBuf::new(),
            size: 0,
            daemon: None,
            qmp: None,
            layers: vec![0],
            snapshots: Vec::new(),
            made: 0,
            cache: CacheMode::None,
            aio: Aio::default(),
            exported: None,
            place: None,
        }
    }

    /// Describes a server of an existing raw file or device.
    pub fn on(name: &'static str, place: &Path) -> Qsd {
        Qsd { place: Some(place.to_owned()), ..Qsd::new(name, ImageFormat::Raw) }
    }

    /// Sets the cache mode.
    pub fn with_cache(mut self, mode: CacheMode) -> Qsd {
        self.cache = mode;
        self
    }

    /// Sets the kind of asynchronous I/O.
    pub fn with_aio(mut self, aio: Aio) -> Qsd {
        self.aio = aio;
        self
    }

    fn image(&self, layer: usize) -> PathBuf {
        self.dir.join(format!("layer{layer}.img"))
    }

    fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.as_mut().context("not running")?.call(command, arguments)
    }

    fn launch(&mut self) -> Result<()> {
        let (monitor, nbd) = (self.dir.join("qmp.sock"), self.dir.join("nbd.sock"));
        let mut command = Command::new(find_tool("qemu-storage-daemon").context("qemu-storage-daemon is not installed")?);
        command.arg("--chardev").arg(format!("socket,path={},server=on,wait=off,id=monitor", monitor.display()));
        command.arg("--monitor").arg("chardev=monitor");
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={},max-connections=0", nbd.display()));
        let mut daemon = Daemon::spawn(&mut command, &self.dir.join("qsd.log"))?;
        let mut qmp = None;
        daemon.wait_ready(Duration::from_secs(20), || {
            qmp = Qmp::connect(&monitor).ok();
            qmp.is_some()
        })?;
        (self.daemon, self.qmp) = (Some(daemon), qmp);
        for (depth, layer) in self.layers.clone().into_iter().enumerate() {
            let below = depth.checked_sub(1).and_then(|at| self.layers.get(at)).map(|l| format!("layer{l}"));
            let node = self.format.node(&self.image(layer), &format!("layer{layer}"), below.as_deref().map(Some), (self.cache, self.aio));
            self.call("blockdev-add", node)?;
        }
        self.export()
    }

    fn export(&mut self) -> Result<()> {
        let top = self.top()?;
        // QEMU 7.2 aborts when the client of an NBD export in an iothread disconnects, so the
        // export stays in the main loop.
        let export = json!({"type": "nbd", "id": "disk", "node-name": format!("layer{top}"), "name": "disk", "writable": true, "writethrough": self.cache.writes_through()});
        self.add_export("disk", export)
    }

    fn add_export(&mut self, id: &'static str, export: Value) -> Result<()> {
        self.call("block-export-add", export)?;
        self.exported = Some(id);
        Ok(())
    }

    /// Ends the current export.
    fn unexport(&mut self) -> Result<()> {
        let id = self.exported.take().context("nothing is exported")?;
        self.call("block-export-del", json!({"id": id, "mode": "hard"}))?;
        self.qmp.as_mut().context("not running")?.event("BLOCK_EXPORT_DELETED").map(|_| ())
    }

    fn top(&self) -> Result<usize> {
        self.layers.last().copied().context("no image")
    }

    fn delete_internal(&mut self) -> Result<()> {
        for (name, _) in std::mem::take(&mut self.snapshots) {
            self.call("blockdev-snapshot-delete-internal-sync", json!({"device": "layer0", "name": name}))?;
        }
        Ok(())
    }

    /// Merges all overlays into the lowest layer while the disk is in use.
    fn commit(&mut self) -> Result<()> {
        let (top, bottom) = (self.top()?, self.layers.first().copied().context("no image")?);
        if top == bottom {
            return Ok(());
        }
        let job = json!({"job-id": "commit", "device": format!("layer{top}"), "base-node": format!("layer{bottom}")});
        self.call("block-commit", job)?;
        let qmp = self.qmp.as_mut().context("not running")?;
        qmp.event("BLOCK_JOB_READY")?;
        qmp.call("block-job-complete", json!({"device": "commit"}))?;
        let ended = qmp.event("BLOCK_JOB_COMPLETED")?;
        if let Some(error) = ended.pointer("/data/error") {
            bail!("merging the overlays: {error}");
        }
        for layer in self.layers.split_off(1).into_iter().rev() {
            self.call("blockdev-del", json!({"node-name": format!("layer{layer}")}))?;
            std::fs::remove_file(self.image(layer)).with_context(|| format!("removing layer {layer}"))?;
        }
        self.snapshots.clear();
        Ok(())
    }

    fn add_overlay(&mut self) -> Result<usize> {
        let below = self.top()?;
        self.made += 1;
        let layer = self.made;
        self.format.create(&self.image(layer), self.size, Some(&self.image(below)))?;
        Ok(layer)
    }
}

impl Contender for Qsd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        (self.dir, self.size) = (dir.to_owned(), size);
        match &self.place {
            Some(place) => symlink(place, self.image(0)).context("naming the disk")?,
            None => self.format.create(&self.image(0), size, None)?,
        }
        self.launch()
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::unix(&self.dir.join("nbd.sock"), "disk"))
    }

    fn file(&mut self) -> Result<PathBuf> {
        self.unexport()?; // both kinds want to be alone in changing the size
        let (top, place) = (self.top()?, self.dir.join("disk.file"));
        File::create_new(&place).context("making the file that becomes the disk")?;
        let export = json!({"type": "fuse", "id": "file", "node-name": format!("layer{top}"), "mountpoint": place, "writable": true, "growable": false, "writethrough": self.cache.writes_through()});
        self.add_export("file", export)?;
        Ok(place)
    }

    fn vhost_user(&mut self) -> Result<Endpoint> {
        self.unexport()?;
        let (top, socket) = (self.top()?, self.dir.join("disk.vu"));
        let addr = json!({"type": "unix", "path": socket});
        let export = json!({"type": "vhost-user-blk", "id": "guest", "node-name": format!("layer{top}"), "addr": addr, "writable": true, "writethrough": self.cache.writes_through()});
        self.add_export("guest", export)?;
        Ok(Endpoint::vhost_user(&socket, false))
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("not running")?.pid())
    }

    fn snapshot(&mut self, name: &str) -> Result<()> {
        match self.format {
            ImageFormat::Raw => bail!("a raw file has no snapshots"),
            ImageFormat::Qcow2 | ImageFormat::Qcow2Subclusters => {
                self.call("blockdev-snapshot-internal-sync", json!({"device": "layer0", "name": name}))?;
                self.snapshots.push((name.to_owned(), 0));
            }
            ImageFormat::Chain => {
                let frozen = self.top()?;
                let layer = self.add_overlay()?;
                let node = self.format.node(&self.image(layer), &format!("layer{layer}"), Some(None), (self.cache, self.aio));
                self.call("blockdev-add", node)?;
                self.call("blockdev-snapshot", json!({"node": format!("layer{frozen}"), "overlay": format!("layer{layer}")}))?;
                self.layers.push(layer);
                self.snapshots.push((name.to_owned(), frozen));
            }
        }
        Ok(())
    }

    fn delete_snapshots(&mut self) -> Result<()> {
        if self.format == ImageFormat::Chain { self.commit() } else { self.delete_internal() }
    }

    fn rollback(&mut self, name: &str) -> Result<()> {
        match self.format {
            ImageFormat::Raw => bail!("a raw file has no rollback"),
            ImageFormat::Qcow2 | ImageFormat::Qcow2Subclusters => {
                self.stop()?; // the daemon has no command for it; the image must be closed
                run_tool("qemu-img", &["snapshot", "-a", name, &self.image(0).display().to_string()])?;
                self.launch()
            }
            ImageFormat::Chain => {
                let frozen = self.snapshots.iter().find(|s| s.0 == name).with_context(|| format!("no snapshot {name}"))?.1;
                self.unexport()?;
                while self.top()? != frozen {
                    let top = self.top()?;
                    self.call("blockdev-del", json!({"node-name": format!("layer{top}")}))?;
                    std::fs::remove_file(self.image(top)).with_context(|| format!("removing layer {top}"))?;
                    self.layers.pop();
                }
                self.snapshots.retain(|s| self.layers.contains(&s.1));
                let layer = self.add_overlay()?;
                let node = self.format.node(
                    &self.image(layer),
                    &format!("layer{layer}"),
                    Some(Some(&format!("layer{frozen}"))),
                    (self.cache, self.aio),
                );
                self.call("blockdev-add", node)?;
                self.layers.push(layer);
                self.export()
            }
        }
    }

    fn kill9(&mut self) -> Result<()> {
        self.qmp = None;
        self.daemon.take().context("not running")?.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        self.launch()
    }

    fn stop(&mut self) -> Result<()> {
        self.qmp = None;
        match self.daemon.take() {
            Some(mut daemon) => daemon.terminate(Duration::from_secs(20)).map(|_| ()),
            None => Ok(()),
        }
    }
}
