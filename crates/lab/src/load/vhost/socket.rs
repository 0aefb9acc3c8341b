//! The socket of a front end, which passes descriptors.

use anyhow::{Context, Result};
use millpond_export::vhost_user::front_end::Channel;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Maximum wait for the bytes of a reply.
const PATIENCE: Duration = Duration::from_secs(300);

/// A connection to a back end.
pub(super) struct Socket(UnixStream);

impl Socket {
    pub fn connect(path: &Path) -> Result<Socket> {
        let stream = UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Socket(stream))
    }
}

impl Channel for Socket {
    fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
        }
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::WriteZero, "a message was cut short")) }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
        let (mut rest, mut descriptor) = (bytes, None);
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(rest)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            let fds = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            descriptor = fds.flatten().next().or(descriptor);
            if received.bytes == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the back end has closed the connection"));
            }
            rest = rest.get_mut(received.bytes..).unwrap_or_default();
        }
        Ok(descriptor)
    }
}
