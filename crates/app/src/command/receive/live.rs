//! The volume of a daemon that a stream is received into. Data goes over a private NBD export,
//! which keeps other writers away; everything else goes over the API.

use std::path::Path;
use std::time::{Duration, Instant};

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{RECEIVING_VOLUME, SnapshotOrigin};
use millpond_api::names::{MAX_NAME, VolumeName};
use millpond_api::{
    CreateSnapshots, CreateVolume, Created, Destroy, Destroyed, DiffExtent, Export, Rename, Resize, Resized, Rollback, RolledBack,
    SetProperties, Snapshot, Volume, VolumeSector,
};
use millpond_images::nbd::{Nbd, connect, connect_for_extents};
use millpond_images::stream::{Check, Content, Target};
use tokio::runtime::Handle;

use crate::command::image::TransientExport;

/// Flag of an extent that reads as zeroes.
const ZERO: u32 = 2;
/// Most bytes of zeroes that are written or read at once.
const ZEROES: u64 = 1 << 30;
const PIECE: u64 = 1 << 20;
/// How long a rollback waits until the daemon has seen that this process left.
const LEAVING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// Properties of a new volume.
pub struct New {
    /// Size in bytes.
    pub size: u64,
    /// Sector profile.
    pub sector: VolumeSector,
    /// Other properties.
    pub properties: SetProperties,
}

/// Returns the name that a new volume has until its first snapshot is complete.
pub fn incomplete_name(name: &VolumeName) -> VolumeName {
    VolumeName { pool: name.pool.clone(), volume: format!("{RECEIVING_VOLUME}{}", name.volume) }
}

/// Longest name of a volume that can be received.
pub const LONGEST: usize = MAX_NAME - RECEIVING_VOLUME.len();

/// Returns the snapshots of a volume, oldest first; `None` when there is no such volume.
///
/// # Errors
/// The daemon's.
pub async fn snapshots_of(client: &Client, name: &VolumeName) -> Outcome<Option<Vec<Snapshot>>> {
    let volumes: Vec<Volume> = client.get(&format!("/v1/volumes?pool={}", quoted(&name.pool))).await?;
    if !volumes.iter().any(|volume| volume.name == name.to_string()) {
        return Ok(None);
    }
    client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&name.pool), quoted(&name.volume))).await.map(Some)
}

/// Destroys the new volume of an incomplete receive; returns the names that are gone.
///
/// # Errors
/// The daemon's, as when a receive into it runs.
pub async fn destroy_new(client: &Client, name: &VolumeName) -> Outcome<Vec<String>> {
    let part = incomplete_name(name);
    let request = Destroy { name: part.to_string(), recursive: true, unexport: true, ..Destroy::default() };
    client.post::<_, Destroyed>("/v1/destroy", &request).await.map(|done| done.destroyed)
}

/// True if a receive took the snapshot.
fn is_ours(snapshot: &Snapshot) -> bool {
    snapshot.receiving.is_some() || snapshot.received
}

/// A volume of a daemon.
pub struct LiveTarget {
    client: Client,
    handle: Handle,
    name: VolumeName,
    /// Id of the volume: a name can be given to another one.
    id: Option<u32>,
    published: bool,
    export: Option<TransientExport>,
    writer: Option<Nbd>,
    /// Receives are ended, with those that read their snapshots back.
    takes_over: bool,
}

impl LiveTarget {
    /// Takes the volume of this name, or makes a new one with its name for the time being.
    ///
    /// # Errors
    /// The daemon's; another volume has that name; something else serves the volume.
    pub fn open(client: Client, handle: Handle, name: VolumeName, new: &New) -> Outcome<LiveTarget> {
        let part = incomplete_name(&name);
        let there = handle.block_on(snapshots_of(&client, &part))?;
        if handle.block_on(snapshots_of(&client, &name))?.is_some() {
            if there.is_some() {
                let message = format!("there are '{name}' and '{part}', which an incomplete receive left; rename or destroy one of them");
                return Err(Failure::failed(message));
            }
            return LiveTarget::existing(client, handle, name);
        }
        let mut target = LiveTarget { client, handle, name, id: None, published: false, export: None, writer: None, takes_over: false };
        match there {
            Some(snapshots) if snapshots.iter().any(is_ours) => {}
            Some(snapshots) => {
                // a receive ended before its first step, or the volume is somebody's; a clone of a
                // publication has content although no block of it is here
                let volume: Volume = target.wait(target.client.get(&format!("/v1/volumes/{part}")))?;
                if volume.referenced_bytes > 0 || volume.origin.is_some() || !snapshots.is_empty() {
                    let message = format!("there is a volume '{part}', and no mark that a receive made it; rename or destroy it");
                    return Err(Failure::failed(message));
                }
                target.wait(destroy_new(&target.client, &target.name))?;
                target.create(&part, new)?;
            }
            None => target.create(&part, new)?,
        }
        target.keep_away()?;
        Ok(target)
    }

    /// Takes the volume of this name.
    ///
    /// # Errors
    /// The daemon's; something else serves the volume.
    pub fn existing(client: Client, handle: Handle, name: VolumeName) -> Outcome<LiveTarget> {
        let mut target = LiveTarget { client, handle, name, id: None, published: true, export: None, writer: None, takes_over: false };
        target.refuse_readonly()?;
        target.keep_away()?;
        Ok(target)
    }

    /// Takes the volume of this name from its receives, which are ended: they change nothing more.
    /// Others may export it, and it may be read-only.
    ///
    /// # Errors
    /// The daemon's.
    pub fn taken_over(client: Client, handle: Handle, name: VolumeName) -> Outcome<LiveTarget> {
        let mut target = LiveTarget { client, handle, name, id: None, published: true, export: None, writer: None, takes_over: true };
        let volume = target.volume()?;
        target.id = Some(volume.id);
        // its own export first: the daemon refuses that of a receive that begins after it
        let name = target.name.to_string();
        let export = target.wait(TransientExport::open_beside_receives(&target.client, &name, volume.readonly))?;
        target.use_export(export)?;
        let ended = target.end_receives();
        match ended {
            Ok(()) => Ok(target),
            Err(failure) => target.close().and(Err(failure)),
        }
    }

    /// Ends the receives of others into the volume. On return their writes are completed, and the
    /// daemon refuses their later steps.
    fn end_receives(&self) -> Outcome {
        let own = self.export.as_ref().map(TransientExport::id);
        let exports: Vec<Export> = self.wait(self.client.get("/v1/exports"))?;
        if !exports.iter().any(|export| export.receive && Some(export.id) == own) {
            let message = "the daemon is older than this program, and cannot end a receive; restart it with this version";
            return Err(Failure::failed(message));
        }
        let receives = || -> Outcome<Vec<u64>> {
            let exports: Vec<Export> = self.wait(self.client.get("/v1/exports"))?;
            let is_other = |export: &&Export| export.receive && export.name == self.name.to_string() && Some(export.id) != own;
            Ok(exports.iter().filter(is_other).map(|export| export.id).collect())
        };
        for id in receives()? {
            if let Err(failure) = self.wait(self.client.delete::<()>(&format!("/v1/exports/{id}?force=true")))
                && receives()?.contains(&id)
            {
                return Err(failure.during("the receive that is under way cannot be ended"));
            }
        }
        Ok(())
    }

    /// Refuses to change the data of the volume where others use it.
    ///
    /// # Errors
    /// It is read-only, or something else serves it.
    pub fn check_unused(&self) -> Outcome {
        self.refuse_readonly()?;
        self.refuse_exports()
    }

    fn refuse_readonly(&self) -> Outcome {
        if self.volume()?.readonly {
            let message = format!("it is read-only; run 'millpond set readonly=off {}' first", self.name);
            return Err(Failure::failed(message));
        }
        Ok(())
    }

    /// Takes the new volume of a receive that ended before it had its name.
    ///
    /// # Errors
    /// The daemon's; something else serves the volume.
    pub fn unnamed(client: Client, handle: Handle, name: VolumeName) -> Outcome<LiveTarget> {
        let mut target = LiveTarget { client, handle, name, id: None, published: false, export: None, writer: None, takes_over: false };
        target.keep_away()?;
        Ok(target)
    }

    fn create(&self, part: &VolumeName, new: &New) -> Outcome {
        let request =
            CreateVolume { name: part.to_string(), size: new.size, sector: Some(new.sector.clone()), properties: new.properties.clone() };
        self.wait(self.client.post::<_, Volume>("/v1/volumes", &request)).map(drop)
    }

    /// Makes the export that keeps other writers away, and ends that of a receive that was killed.
    fn keep_away(&mut self) -> Outcome {
        self.id = Some(self.volume()?.id);
        self.refuse_exports()?;
        let name = self.current().to_string();
        let export = self.wait(TransientExport::open_for_receive(&self.client, &name, false))?;
        self.use_export(export)
    }

    fn use_export(&mut self, export: TransientExport) -> Outcome {
        self.writer = Some(connect(export.socket()).map_err(|e| Failure::failed(format!("cannot use the private export: {e}")))?);
        self.export = Some(export);
        Ok(())
    }

    /// The export without which the daemon refuses the steps.
    fn step(&self) -> Option<u64> {
        self.export.as_ref().map(TransientExport::id)
    }

    /// Refuses a volume that something else serves; ends the export of a receive that was killed.
    fn refuse_exports(&self) -> Outcome {
        let name = self.current().to_string();
        let exports: Vec<Export> = self.wait(self.client.get("/v1/exports"))?;
        let is_open = |export: &&Export| export.volumes.iter().any(|open| open.name == name && open.clients > 0);
        if let Some(mount) = exports.iter().find(is_open) {
            return Err(Failure::failed(format!("it is open in the mount of export {}; end that first", mount.id)));
        }
        let own = self.step();
        for export in exports.iter().filter(|export| export.name == name && Some(export.id) != own) {
            let socket = export.unix.as_deref().map(Path::new).and_then(Path::file_name).map(|file| file.to_string_lossy().into_owned());
            if !socket.is_some_and(|file| file.starts_with("transient-")) {
                let message =
                    format!("export {} serves it; run 'millpond unexport {}' first, or receive into another volume", export.id, export.id);
                return Err(Failure::failed(message));
            }
            if export.clients > 0 {
                let who: Vec<&str> = export.connections.iter().map(|client| client.peer.as_str()).collect();
                return Err(Failure::failed(format!("another command uses it ({}); wait for its end, or end it", who.join(" "))));
            }
            // refused if a client has connected meanwhile
            self.wait(self.client.delete::<()>(&format!("/v1/exports/{}", export.id)))?;
        }
        Ok(())
    }

    /// Ends the private export, and destroys a new volume into which nothing was received.
    ///
    /// # Errors
    /// The daemon's.
    pub fn close(mut self) -> Outcome {
        self.writer = None;
        if let Some(export) = self.export.take() {
            self.handle.block_on(export.close(&self.client))?;
        }
        if !self.published && !self.snapshots()?.iter().any(is_ours) {
            self.wait(destroy_new(&self.client, &self.name))?;
        }
        Ok(())
    }

    /// Returns the volume. It is the one with which the receive began.
    fn volume(&self) -> Outcome<Volume> {
        let volume: Volume = self.wait(self.client.get(&format!("/v1/volumes/{}", self.current())))?;
        if self.id.is_some_and(|id| id != volume.id) {
            return Err(Failure::failed(format!("'{}' is another volume now; receive again", self.current())));
        }
        Ok(volume)
    }

    /// The name that the volume has now.
    fn current(&self) -> VolumeName {
        if self.published { self.name.clone() } else { incomplete_name(&self.name) }
    }

    /// Takes a snapshot of the volume for this command. Durable on return.
    ///
    /// # Errors
    /// The daemon's; another command has ended this one.
    pub fn snapshot(&self, name: &str, description: &str) -> Outcome {
        let (names, description) = (vec![self.full(name)], description.to_owned());
        let request = CreateSnapshots { names, description, export: self.step(), ..CreateSnapshots::default() };
        self.wait(self.client.post::<_, Created>("/v1/snapshots", &request)).map(drop)
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    fn full(&self, snapshot: &str) -> String {
        format!("{}@{snapshot}", self.current())
    }

    /// Returns why the private export takes no connection.
    fn cannot_connect(&self, error: &std::io::Error) -> Failure {
        let exports: Outcome<Vec<Export>> = self.wait(self.client.get("/v1/exports"));
        match exports.is_ok_and(|exports| exports.iter().all(|export| Some(export.id) != self.step())) {
            true => Failure::failed(ENDED),
            false => cannot_write(0, error),
        }
    }

    fn writer(&mut self) -> Outcome<&mut Nbd> {
        if self.writer.is_none() {
            let socket = self.export.as_ref().map(|export| export.socket().to_owned()).unwrap_or_default();
            self.writer = Some(connect(&socket).map_err(|e| self.cannot_connect(&e))?);
        }
        self.writer.as_mut().ok_or_else(|| Failure::failed("the private export is gone; receive again"))
    }
}

/// Reason why a receive cannot go on: the daemon refuses its steps, too.
const ENDED: &str = "another command, such as 'millpond failover', or a restart of the daemon has ended this receive";

fn cannot_write(offset: u64, error: &std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return Failure::failed("the pool is full; add a device with 'millpond pool add', or free space");
    }
    Failure::failed(format!("cannot write at byte {offset}: {error}; see the daemon's messages"))
}

impl Target for LiveTarget {
    fn is_published(&self) -> bool {
        self.published
    }

    fn publish(&mut self) -> Outcome {
        let path = format!("/v1/volumes/{}/rename", self.volume()?.name);
        let request = Rename { name: self.name.to_string(), receive: true, export: self.step() };
        let renamed = self.wait(self.client.post::<_, ()>(&path, &request));
        renamed.map_err(|e| e.during("the snapshot is complete, but its volume keeps its temporary name"))?;
        self.published = true;
        Ok(())
    }

    fn size(&mut self) -> Outcome<u64> {
        self.volume().map(|volume| volume.size)
    }

    fn resize(&mut self, size: u64) -> Outcome {
        let (size, export) = (size.to_string(), self.step());
        let request = Resize { size, allow_shrink: true, no_snapshot: true, force: true, reconnect: false, dry_run: false, export };
        self.wait(self.client.post::<_, Resized>(&format!("/v1/volumes/{}/resize", self.current()), &request))?;
        // a connection knows the size of its beginning; the new one is there before the old one ends
        let before = self.writer.take();
        self.writer().map(drop)?;
        drop(before);
        Ok(())
    }

    fn snapshots(&mut self) -> Outcome<Vec<Snapshot>> {
        self.volume()?;
        let of = self.current();
        self.wait(self.client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))))
    }

    fn take(&mut self, name: &str, description: &str, origin: &SnapshotOrigin) -> Outcome {
        self.volume()?;
        let request = CreateSnapshots {
            names: vec![self.full(name)],
            description: description.to_owned(),
            origin: Some(origin.clone()),
            export: self.step(),
            ..CreateSnapshots::default()
        };
        self.wait(self.client.post::<_, Created>("/v1/snapshots", &request))?;
        // an export that began before the volume had the mark
        if origin.position == Some(0) { self.refuse_exports() } else { Ok(()) }
    }

    fn rename(&mut self, from: &str, to: &str) -> Outcome {
        let path = format!("/v1/snapshots/{}/{from}/rename", self.current());
        self.wait(self.client.post::<_, ()>(&path, &Rename { name: self.full(to), receive: true, export: self.step() }))
    }

    fn destroy(&mut self, name: &str) -> Outcome {
        // a receive that was killed may have left an export of it
        // one that failover ends may be reading it back
        let (export, force) = (self.step(), self.takes_over);
        let request = Destroy { name: self.full(name), unexport: true, receive: true, export, force, ..Destroy::default() };
        self.wait(self.client.post::<_, Destroyed>("/v1/destroy", &request)).map(drop)
    }

    fn roll_back(&mut self, to: &str, incomplete: bool) -> Outcome<String> {
        self.volume()?;
        // this process is the one client that may be connected; the daemon sees later that it left
        self.writer = None;
        let path = format!("/v1/snapshots/{}/{to}/rollback", self.current());
        let request = |dry_run| Rollback { dry_run, force: false, receive: incomplete, export: self.step() };
        let end = Instant::now() + LEAVING;
        while Instant::now() < end {
            let planned: RolledBack = self.wait(self.client.post(&path, &request(true)))?;
            if planned.connected.is_empty() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        let done: RolledBack = self.wait(self.client.post(&path, &request(false)))?;
        self.writer().map(drop)?;
        Ok(done.kept_as.rsplit_once('@').map_or_else(String::new, |(_, name)| name.to_owned()))
    }

    fn reconnect(&mut self) -> Outcome {
        self.writer = None;
        self.writer().map(drop)
    }

    fn differences(&mut self, older: &str, newer: Option<&str>) -> Outcome<Vec<(u64, u64)>> {
        let newer = newer.map_or_else(|| self.current().to_string(), |newer| self.full(newer));
        let path = format!("/v1/diff?older={}&newer={}", quoted(&self.full(older)), quoted(&newer));
        let extents: Vec<DiffExtent> = self.wait(self.client.get(&path))?;
        Ok(extents.into_iter().map(|extent| (extent.offset, extent.length)).collect())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome {
        self.writer()?.write(offset, bytes).map_err(|e| cannot_write(offset, &e))
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Outcome {
        let mut at = offset;
        while at < offset + length {
            let part = (offset + length - at).min(ZEROES);
            self.writer()?.write_zeroes(at, part as u32).map_err(|e| cannot_write(at, &e))?;
            at += part;
        }
        Ok(())
    }

    fn first_difference(&mut self, snapshot: &str, checks: &[Check]) -> Outcome<Option<u64>> {
        let export = self.wait(TransientExport::open_for_receive(&self.client, &self.full(snapshot), true))?;
        let found = compare(export.socket(), checks);
        let closed = self.wait(export.close(&self.client));
        let found = found.map_err(|e| Failure::failed(format!("cannot read back what was received: {e}; see the daemon's messages")));
        found.and_then(|found| closed.map(|()| found))
    }
}

/// Reads ranges back; returns the offset of the first that is not as written.
fn compare(socket: &Path, checks: &[Check]) -> std::io::Result<Option<u64>> {
    let mut reader = connect(socket)?;
    let mut map = connect_for_extents(socket, "base:allocation")?;
    let mut buffer = Vec::new();
    for check in checks {
        let end = check.offset + check.length;
        if check.content != Content::Zero {
            buffer.resize(usize::try_from(check.length).unwrap_or(0), 0);
            reader.read(check.offset, &mut buffer)?;
            if !check.agrees(&buffer) {
                return Ok(Some(check.offset));
            }
            continue;
        }
        let mut at = check.offset;
        while at < end {
            for extent in map.extents(at, (end - at).min(ZEROES))? {
                let to = (extent.offset + extent.length).min(end);
                while at < to && extent.flags & ZERO == 0 {
                    buffer.resize(usize::try_from((to - at).min(PIECE)).unwrap_or(0), 0);
                    reader.read(at, &mut buffer)?;
                    if !check.agrees(&buffer) {
                        return Ok(Some(at));
                    }
                    at += buffer.len() as u64;
                }
                at = at.max(to);
            }
        }
    }
    Ok(None)
}
