//! State that the daemon keeps across restarts: its pools and exports, in one small JSON file.
//!
//! The file is replaced as a whole: a temporary file beside it, fsync, rename, fsync of the
//! directory. After a crash it is the old file or the new one. Paths inside the state directory are
//! kept relative to it, so that the directory can be moved.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{Access, DeviceCap, ExportKind, IoMode, NbdLimits, TlsMode};
use millpond_block::MemberId;
use millpond_engine::{DeviceId, LabelsInForce};
use serde::{Deserialize, Serialize};

use super::access::TokenRecord;
use super::copies::CopyRecord;
use super::labels::Labelled;
use super::policy::PolicyRecord;
use super::tls::TlsFiles;

#[cfg(test)]
mod tests;

const FILE: &str = "state.json";
const LOCK: &str = "lock";
/// File that exists while a daemon runs. A daemon that finds it at its start knows that the
/// previous one was killed, or that the host went down.
const RUNNING: &str = "running";
/// Version of the file; a later one is refused rather than misread. It rises only when older
/// programs would misread the file: a field with a default is no reason, as they skip it.
const VERSION: u32 = 2;
/// Oldest readable version: that of 0.1.0.
const OLDEST: u32 = 2;

/// The part of a file that every version has.
#[derive(Deserialize)]
struct Written {
    version: u32,
    /// Empty when a later version has it elsewhere.
    #[serde(default)]
    program: String,
}

impl Written {
    /// Returns the program that wrote the file.
    fn by(&self) -> String {
        let usual = |c: char| c.is_ascii_alphanumeric() || ".-+~".contains(c);
        match self.program.as_str() {
            version if !version.is_empty() && version.len() <= 32 && version.chars().all(usual) => format!("Millpond {version}"),
            _ => "a newer version of Millpond".to_owned(),
        }
    }
}

/// The labels that were last in force on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Generation of the pool's shape.
    pub generation: u64,
    /// Members that held all acknowledged data, with the ids of their devices.
    pub current: BTreeMap<u16, u64>,
    /// Ids of their replacements.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replacements: BTreeMap<u16, u64>,
    /// Devices were left behind on this host, now or before, or the pool was imported by hand and
    /// others may have been left behind elsewhere: another host may have made a pool of those.
    #[serde(default, skip_serializing_if = "is_false")]
    pub left_behind: bool,
    /// Time since which they have been in force.
    pub since: Timestamp,
}

impl InForce {
    /// Returns the labels as the rules for imports take them.
    pub fn labels(&self) -> LabelsInForce {
        let devices = self.current.iter().chain(&self.replacements);
        let current = devices.map(|(member, id)| (MemberId(*member), DeviceId(*id))).collect();
        LabelsInForce { generation: self.generation, current, left_behind: self.left_behind }
    }
}

/// A device as it was last seen, which describes it when it is missing; and its errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDevice {
    /// Id of the device.
    pub id: u64,
    /// Serial number of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Errors since it joined the pool, or since a scrub found none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// Errors among these that were repaired from another device.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repaired: u64,
    /// Start of the latest scrub that had begun when the last of these errors was noticed: a later
    /// scrub without errors clears them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Timestamp>,
    /// Errors and repairs since the import of its pool that are included in these.
    #[serde(skip)]
    pub counted: (u64, u64),
}

impl SeenDevice {
    /// Returns all errors and repairs, given those since the import.
    pub fn with(&self, (errors, repaired): (u64, u64)) -> (u64, u64) {
        (self.errors + errors.saturating_sub(self.counted.0), self.repaired + repaired.saturating_sub(self.counted.1))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A removal that ended by itself, before the device was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalEnded {
    /// Reason.
    pub why: String,
    /// Time when it was noticed.
    pub at: Timestamp,
}

/// A pool to import at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Name.
    pub name: String,
    /// Id, in hexadecimal digits.
    pub id: String,
    /// Paths of devices, by member: of a missing device its last path, of a removed one an empty
    /// path.
    pub devices: Vec<PathBuf>,
    /// Paths of replacements, and of devices that may have become members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<PathBuf>,
    /// How they are opened.
    #[serde(default)]
    pub io: IoMode,
    /// The pool is imported read-only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// Checkpoint at which it is read; `None` for the newest state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// Caps of devices, by member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<u16, DeviceCap>,
    /// Devices as they were last seen, by member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<u16, SeenDevice>,
    /// Labels that were last in force: an import by the daemon itself takes no older ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// End of the last removal, when it ended by itself; until another one begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_ended: Option<RemovalEnded>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl PoolRecord {
    /// Returns a record with these devices and no other settings.
    pub fn new(name: String, id: String, devices: Vec<PathBuf>, io: IoMode) -> PoolRecord {
        let (replacements, limits, seen) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        PoolRecord {
            name,
            id,
            devices,
            replacements,
            io,
            read_only: false,
            checkpoint: None,
            limits,
            seen,
            in_force: None,
            removal_ended: None,
        }
    }

    /// Returns the path of a member, or its last path.
    pub fn last_path(&self, member: MemberId) -> Option<&PathBuf> {
        self.devices.get(member.index()).filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the paths, or last paths, of its devices and their replacements.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.devices.iter().chain(&self.replacements).filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the labels that were last in force on this host.
    pub fn remembered(&self) -> Option<LabelsInForce> {
        self.in_force.as_ref().map(InForce::labels)
    }

    /// Returns the record with the paths at which its devices were found. A device that was not
    /// found keeps its remembered path. Where none is remembered, or the labels of the others
    /// describe another device, it gets the path in those labels.
    pub fn with(self, found: &Labelled) -> PoolRecord {
        let is_known = |at: MemberId| match (self.seen.get(&at.0), found.looks.get(&at)) {
            (Some(seen), Some(look)) => seen.id == look.device.0,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let last = |at: MemberId| found.looks.get(&at).filter(|look| !look.path.is_empty()).map(|look| PathBuf::from(&look.path));
        let own = |at: MemberId| self.last_path(at).cloned();
        let before = |at: MemberId| if is_known(at) { own(at).or_else(|| last(at)) } else { last(at).or_else(|| own(at)) };
        let place = |(at, path): (MemberId, &Option<PathBuf>)| path.clone().or_else(|| before(at));
        let devices = (0..).map(MemberId).zip(&found.members).map(|member| place(member).unwrap_or_default()).collect();
        let mut seen = self.seen.clone();
        for (at, look) in found.looks.iter().filter(|(at, _)| !is_known(**at)) {
            let serial = Some(look.serial.clone()).filter(|serial| !serial.is_empty());
            seen.insert(
                at.0,
                SeenDevice { id: look.device.0, serial, size: look.size, errors: 0, repaired: 0, scrub: None, counted: (0, 0) },
            );
        }
        PoolRecord { devices, seen, replacements: found.replacements.clone(), ..self }
    }

    /// Returns the record with the labels that are in force.
    pub fn remembering(self, labels: &LabelsInForce) -> PoolRecord {
        PoolRecord { in_force: Some(InForce::of(labels, self.in_force.as_ref())), ..self }
    }
}

/// Target of an export, by ids that are never reused, so that a rename does not break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Served {
    /// The head of a volume.
    Volume(u32),
    /// A snapshot.
    Snapshot(u64),
}

/// An export to restore at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    /// Id of the export.
    pub id: u64,
    /// Name of the pool.
    pub pool: String,
    /// Full name of its target when last seen.
    pub name: String,
    /// Writes are refused.
    pub readonly: bool,
    /// Its front end.
    #[serde(flatten)]
    pub protocol: Protocol,
}

/// A front end (protocol), with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Protocol {
    /// NBD.
    Nbd {
        /// Target.
        served: Served,
        /// Unix socket.
        unix: Option<PathBuf>,
        /// TCP address, with the port that was bound.
        tcp: Option<String>,
        /// Access rights of the unix socket.
        #[serde(default)]
        access: Access,
        /// Encryption.
        #[serde(default)]
        tls: Option<TlsRecord>,
        /// Limits on its clients.
        #[serde(default)]
        limits: NbdLimits,
    },
    /// vhost-user.
    VhostUser {
        /// Target.
        served: Served,
        /// Unix socket.
        unix: PathBuf,
        /// Access rights of the socket.
        #[serde(default)]
        access: Access,
        /// Most queues of a guest.
        queues: u16,
        /// Guests may have been promised, under a stricter cache mode, that there is no write
        /// cache.
        #[serde(default, skip_serializing_if = "is_false")]
        promised: bool,
    },
    /// FUSE: the whole pool.
    Fuse {
        /// Directory of the mount.
        dir: PathBuf,
        /// Access rights of the mount.
        #[serde(default)]
        access: Access,
    },
}

/// Encryption of an NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsRecord {
    /// Whether clients have to encrypt.
    pub mode: TlsMode,
    /// Files of the credentials; they are read whenever the export starts.
    pub files: TlsFiles,
    /// First identity in a file of keys.
    #[serde(default)]
    pub identity: Option<String>,
    /// Names of the clients that are served; empty for all.
    #[serde(default)]
    pub clients: Vec<String>,
}

impl Protocol {
    /// Returns the protocol.
    pub fn kind(&self) -> ExportKind {
        match self {
            Protocol::Nbd { .. } => ExportKind::Nbd,
            Protocol::VhostUser { .. } => ExportKind::VhostUser,
            Protocol::Fuse { .. } => ExportKind::Fuse,
        }
    }

    /// Returns the volume or snapshot behind it; `None` for a whole pool.
    pub fn served(&self) -> Option<Served> {
        match self {
            Protocol::Nbd { served, .. } | Protocol::VhostUser { served, .. } => Some(*served),
            Protocol::Fuse { .. } => None,
        }
    }

    /// Returns its path in the file system.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Protocol::Nbd { unix, .. } => unix.as_ref(),
            Protocol::VhostUser { unix, .. } => Some(unix),
            Protocol::Fuse { dir, .. } => Some(dir),
        }
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Protocol::Nbd { unix, .. } => unix.as_mut(),
            Protocol::VhostUser { unix, .. } => Some(unix),
            Protocol::Fuse { dir, .. } => Some(dir),
        }
    }

    /// Returns its TCP address.
    pub fn tcp(&self) -> Option<&String> {
        match self {
            Protocol::Nbd { tcp, .. } => tcp.as_ref(),
            Protocol::VhostUser { .. } | Protocol::Fuse { .. } => None,
        }
    }
}

/// Content of the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Version of the program that wrote the file.
    program: String,
    /// Id of the next export; ids are never reused.
    pub next_export: u64,
    /// Pools in service, and pools that the daemon is to import.
    pub pools: Vec<PoolRecord>,
    /// Exports.
    pub exports: Vec<ExportRecord>,
    /// Exported pools: `pool import` looks at their devices first.
    #[serde(default)]
    pub known: Vec<PoolRecord>,
    /// Full copies that have not ended, or that could not be undone because a pool was not in
    /// service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyRecord>,
    /// Tokens of clients over TCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenRecord>,
    /// Policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyRecord>,
}

impl Default for State {
    fn default() -> Self {
        State::new(1, Vec::new(), Vec::new(), Vec::new())
    }
}

/// The state directory, locked against a second daemon for as long as this lives.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the directory (mode 0700) where missing, and locks it. What is in it is durable on return:
    /// a daemon that was killed may have left entries that a power cut could undo, and pools and clients
    /// rely on what this one reads.
    ///
    /// # Errors
    /// When it cannot be made or another daemon uses it.
    pub fn open(dir: &Path) -> Outcome<StateDir> {
        let fail = |what: &str, e: io::Error| Failure::failed(format!("cannot {what} {}: {e}; give another --state DIR", dir.display()));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| fail("make the state directory", e))?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK)).map_err(|e| fail("lock", e))?;
        match lock.try_lock() {
            Ok(()) => {
                File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| fail("make durable", e))?;
                Ok(StateDir { dir: dir.to_owned(), _lock: lock })
            }
            Err(fs::TryLockError::WouldBlock) => {
                Err(Failure::failed(format!("another daemon uses the state in {}; stop it or give another directory", dir.display())))
            }
            Err(fs::TryLockError::Error(e)) => Err(fail("lock", e)),
        }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Records, durably, that a daemon runs. True when the previous one did not end cleanly.
    ///
    /// # Errors
    /// I/O errors of the host.
    pub fn note_start(&self) -> io::Result<bool> {
        let made = File::options().write(true).create_new(true).open(self.dir.join(RUNNING));
        match made {
            Ok(_) => File::open(&self.dir)?.sync_all().map(|()| false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Records that the daemon has ended cleanly.
    ///
    /// # Errors
    /// I/O errors of the host.
    pub fn note_end(&self) -> io::Result<()> {
        fs::remove_file(self.dir.join(RUNNING))
    }

    /// Reads the state file; without one, the state is empty.
    ///
    /// # Errors
    /// When it cannot be read or understood. The content is never guessed, for pools would be
    /// forgotten.
    pub fn load(&self) -> Outcome<State> {
        let path = self.dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(e) => return Err(Failure::failed(format!("cannot read {}: {e}", path.display()))),
        };
        let damaged = |why: String| Failure::failed(format!("cannot parse {}: {why}; correct it or move it away", path.display()));
        // the versions come first: the rest of a newer file may have another form
        let written: Written = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if written.version > VERSION {
            return Err(Failure::failed(format!(
                "{} has version {} of its format and was written by {}; this program reads versions up to {VERSION}: install that one \
                 again, or give another --state DIR; nothing was changed",
                path.display(),
                written.version,
                written.by()
            )));
        }
        if written.version < OLDEST {
            return Err(damaged(format!("its version {} is of a time before the first release", written.version)));
        }
        let mut state: State = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        // the empty path of a removed device is no place in the directory
        state.each_path(|path| {
            if !path.as_os_str().is_empty() {
                *path = self.dir.join(&*path);
            }
        });
        Ok(state)
    }

    /// Replaces the state file. Durable on return.
    ///
    /// # Errors
    /// I/O errors of the host; the old file stays.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let mut state = state.clone();
        state.each_path(|path| {
            if let Ok(inside) = path.strip_prefix(&self.dir) {
                *path = inside.to_owned();
            }
        });
        replace_file(&self.dir.join(FILE), &serde_json::to_vec_pretty(&state)?)
    }
}

/// Replaces a file of the state directory as a whole. Durable on return.
///
/// # Errors
/// I/O errors of the host; the old file stays.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let temporary = dir.join(format!(".{}.new", name.to_string_lossy()));
    let written = File::create(&temporary).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        // half a file takes space that the old one needs
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(dir)?.sync_all()
}

impl State {
    /// Returns the state to save.
    pub fn new(next_export: u64, pools: Vec<PoolRecord>, exports: Vec<ExportRecord>, known: Vec<PoolRecord>) -> State {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let (copies, tokens, policies) = (Vec::new(), Vec::new(), Vec::new());
        State { version: VERSION, program, next_export, pools, exports, known, copies, tokens, policies }
    }

    fn each_path(&mut self, mut change: impl FnMut(&mut PathBuf)) {
        let pools = self.pools.iter_mut().chain(&mut self.known);
        pools.flat_map(|pool| pool.devices.iter_mut().chain(&mut pool.replacements)).for_each(&mut change);
        self.exports.iter_mut().filter_map(|export| export.protocol.path_mut()).for_each(&mut change);
    }
}
