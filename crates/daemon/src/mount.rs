//! Mounting and unmounting FUSE file systems: as root by mount(2), else by `fusermount3`.
//!
//! A mount whose server is dead stays in place and answers ENOTCONN until it is unmounted. So each
//! mount has a guard: a process of its own (`millpond fuse-guard`) that waits for the end of a pipe
//! which the daemon holds, and then unmounts what is left. When the guard was killed too, the next
//! start replaces the dead mount.

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use millpond_api::{ApiError, ErrorKind};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};

use super::mount_table::{MountEntry, mounts_on};
use super::users;

/// File system type, as `findmnt` shows it.
pub const FS_TYPE: &str = "fuse.millpond";
const DEVICE: &str = "/dev/fuse";
/// Program that mounts for users other than root; Debian's package is `fuse3`.
const HELPER: &str = "fusermount3";
/// Variable with the number of the descriptor over which the helper sends the device.
const HELPER_VARIABLE: &str = "_FUSE_COMMFD";
/// Bytes of one read; the kernel asks for no more.
const MAX_READ: u32 = millpond_export::fuse::MAX_TRANSFER;

/// A mounted file system. Dropping it leaves the mount to its guard, which detaches it.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    /// Device number of the file system.
    number: String,
    guard: Child,
}

/// Mounts on `dir`, which is made where missing, and returns the device to serve, which is
/// non-blocking. Blocks for as long as the file system of `dir` does. Other users can reach a mount
/// of root as far as owner and mode permit; a mount of another user, only with `allow_other`.
///
/// # Errors
/// When `dir` is in use for another purpose, or the system refuses.
pub fn mount(dir: &Path, pool: &str, allow_other: bool) -> Result<(Mounted, OwnedFd), ApiError> {
    let fail = |why: String| ApiError::busy(format!("cannot mount on {}: {why}", dir.display()));
    prepare(dir)?;
    let device = if is_root() { mount_as_root(dir, pool) } else { mount_by_helper(dir, pool, allow_other) };
    let device = device.map_err(|e| fail(format!("{e}; is FUSE there and allowed ({DEVICE})?")))?;
    let found = mounts_on(dir).map_err(|e| fail(e.to_string()))?.into_iter().next_back();
    let entry = found.filter(|entry| entry.fs_type == FS_TYPE).ok_or_else(|| fail("it was not there afterwards".to_owned()))?;
    match start_guard(dir, &entry.number) {
        Ok(guard) => Ok((Mounted { dir: dir.to_owned(), number: entry.number, guard }, device)),
        Err(e) => {
            // Without a guard, nothing else would remove the mount.
            let _ = detach(dir, true);
            Err(fail(format!("its guard cannot be started: {e}")))
        }
    }
}

impl Mounted {
    /// Unmounts. With `lazy` also while files are open: they stay usable until they are closed, but
    /// no file can be opened any more. Does nothing when it is unmounted already.
    ///
    /// # Errors
    /// When files are open; the message names the processes.
    pub fn unmount(&mut self, lazy: bool) -> Result<(), ApiError> {
        if self.is_there() {
            match detach(&self.dir, lazy) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let users = users::of(&self.dir);
                    let who = if users.is_empty() { "a process".to_owned() } else { users.join(", ") };
                    let message = format!(
                        "{} is in use by {who}; end that, give --lazy to serve open files until they are closed, or --force to end that too",
                        self.dir.display()
                    );
                    return Err(ApiError::busy(message));
                }
                Err(error) => return Err(ApiError::busy(format!("cannot unmount {}: {error}", self.dir.display()))),
            }
        }
        // The guard sees its pipe closed, finds no mount, and ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        Ok(())
    }

    /// True while it is mounted.
    pub fn is_there(&self) -> bool {
        let entries = mounts_on(&self.dir).unwrap_or_default();
        entries.iter().any(|entry| entry.number == self.number && entry.fs_type == FS_TYPE)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes the directory where missing, removes dead mounts of millpond, and refuses a directory
/// whose content a mount would hide.
fn prepare(dir: &Path) -> Result<(), ApiError> {
    let path = dir.display();
    let fail = |e: io::Error| ApiError::busy(format!("cannot mount on {path}: {e}; give another directory"));
    for entry in mounts_on(dir).map_err(fail)?.into_iter().rev() {
        if entry.fs_type != FS_TYPE || !matches!(rustix::fs::statfs(dir), Err(Errno::NOTCONN)) {
            let message = format!("{path} is a mount point already ({}); unmount it or give another directory", entry.fs_type);
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        tracing::info!("replacing a dead mount on {path}");
        detach(dir, true).map_err(fail)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(fail(e)),
        Ok(()) => Ok(()),
        Err(_) if !dir.is_dir() => Err(ApiError::invalid(format!("{path} is not a directory; give one"))),
        Err(_) => match fs::read_dir(dir).map_err(fail)?.next() {
            Some(_) => Err(ApiError::busy(format!("{path} is not empty, and a mount would hide its content; give an empty directory"))),
            None => Ok(()),
        },
    }
}

fn mount_as_root(dir: &Path, pool: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={MAX_READ}",
        device.as_fd().as_raw_fd()
    );
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(pool, dir, FS_TYPE, flags, options.as_c_str())?;
    Ok(device)
}

/// The helper opens the device, mounts, and sends the device over a socket, which is its standard
/// input.
fn mount_by_helper(dir: &Path, pool: &str, allow_other: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The helper reads in /etc/fuse.conf whether that is allowed (user_allow_other), and reports it
    // if not.
    let others = if allow_other { ",allow_other" } else { "" };
    let options = format!("rw,nosuid,nodev,noatime,default_permissions{others},max_read={MAX_READ},subtype=millpond,fsname={pool}");
    let output = Command::new(HELPER)
        .args(["-o", &options, "--"])
        .arg(dir)
        .env(HELPER_VARIABLE, "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("{HELPER}: {e}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        return Err(io::Error::other(words));
    }
    let device = receive_descriptor(&ours)?;
    rustix::fs::fcntl_setfl(&device, rustix::fs::fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    Ok(device)
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    received.find_map(|mut descriptors| descriptors.next()).ok_or_else(|| io::Error::other(format!("{HELPER} sent no device")))
}

/// Unmounts the topmost file system on `dir`.
fn detach(dir: &Path, lazy: bool) -> io::Result<()> {
    if is_root() {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW)?);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let output = command.output().map_err(|e| io::Error::new(e.kind(), format!("{HELPER}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    // only the helper's message shows this case
    let kind = if words.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, words))
}

fn start_guard(dir: &Path, number: &str) -> io::Result<Child> {
    // This runs the same program even when its file was replaced meanwhile.
    Command::new("/proc/self/exe")
        .arg("fuse-guard")
        .arg(number)
        .arg("--")
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
}

/// Work of the guard when the daemon has ended: detaches the mount with this number from `dir`, if
/// it is there.
///
/// # Errors
/// Errors of the system.
pub fn clear(dir: &Path, number: &str) -> io::Result<()> {
    let is_ours = |entry: &MountEntry| entry.number == number && entry.fs_type == FS_TYPE;
    if mounts_on(dir)?.last().is_some_and(is_ours) { detach(dir, true) } else { Ok(()) }
}
