//! Listening sockets of exports, and the settings of accepted connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Kernel buffer per direction in bytes: it holds a full queue of large requests, so that the
/// sender need not wait for the peer. The kernel may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// A unix socket file that this process has made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its file there meanwhile: that one stays.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Access rights of a unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Owner; `None` for the daemon's user.
    pub uid: Option<u32>,
    /// Group; `None` for the daemon's group.
    pub gid: Option<u32>,
    /// Permissions; `None` for read and write by the owner, and by the group where `gid` is given.
    pub mode: Option<u16>,
}

impl SocketAccess {
    fn mode(self) -> Mode {
        let usual = if self.gid.is_some() { 0o660 } else { 0o600 };
        Mode::from_raw_mode(self.mode.unwrap_or(usual).into())
    }

    /// Sets owner, group and mode of a socket file. Until then only the daemon's user can connect.
    ///
    /// # Errors
    /// Errors of the host: only root gives files to other users.
    pub fn grant(self, path: &Path) -> io::Result<()> {
        if self == SocketAccess::default() {
            return Ok(());
        }
        // change the file that was opened, whatever replaces it at the path meanwhile
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file is at this path"));
        }
        let give = |uid, gid| {
            let given = rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH);
            given.map_err(|errno| io::Error::new(errno.kind(), format!("it cannot be given to another owner: {errno}")))
        };
        // the owner last: a daemon with CAP_CHOWN alone may not change the mode of another's file
        give(None, self.gid.map(Gid::from_raw))?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), self.mode())?;
        give(self.uid.map(Uid::from_raw), None)
    }
}

/// Listens on a unix socket. Replaces a socket file on which no process listens any more.
pub(super) fn unix(path: &Path, access: SocketAccess) -> io::Result<(OwnedFd, SocketFile)> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket is there"));
        }
        // Non-blocking: a listener whose queue is full is in use as well.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
            // a daemon that was killed had given its socket away, and this one is not root
            Err(Errno::ACCESS) if access.uid == Some(meta.uid()) => std::fs::remove_file(path)?,
            Ok(()) | Err(Errno::AGAIN) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
            Err(errno) => return Err(errno.into()),
        }
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file takes its mode from the socket, so there is no moment at which other users could
    // connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let meta = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), device: meta.dev(), inode: meta.ino() };
    access.grant(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket, file))
}

/// Listens on a TCP address; returns the bound address.
pub(super) fn tcp(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    Ok((listener.into(), bound))
}

/// Prepares a connection for bulk transfer, and returns the name of its peer.
pub(super) fn prepare(socket: &OwnedFd, is_tcp: bool) -> String {
    let fd = socket.as_fd();
    // A setting that fails only makes the connection slower. The forced variants exceed the
    // system's limit where the process may.
    let _ =
        sockopt::set_socket_send_buffer_size_force(fd, SOCKET_BUFFER).or_else(|_| sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER));
    let _ =
        sockopt::set_socket_recv_buffer_size_force(fd, SOCKET_BUFFER).or_else(|_| sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER));
    if is_tcp {
        let _ = sockopt::set_tcp_nodelay(fd, true);
        let _ = sockopt::set_socket_keepalive(fd, true);
        let peer = rustix::net::getpeername(fd).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
        return peer.map_or_else(|| "tcp".to_owned(), |address| address.to_string());
    }
    sockopt::socket_peercred(fd).map_or_else(|_| "unix".to_owned(), |peer| format!("unix:pid={}", peer.pid.as_raw_nonzero()))
}
