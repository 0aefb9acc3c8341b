//! Messages of a vhost-user front end over the socket. Integers are in the host's byte order.
//!
//! Source: QEMU's `docs/interop/vhost-user.rst`.

use anyhow::{Context, Result, ensure};
use millpond_export::vhost_user::wire::{HEADER, request};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);

/// A connection to a back end.
pub(super) struct Talk(UnixStream);

impl Talk {
    pub fn connect(socket: &Path) -> Result<Talk> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Talk(stream))
    }

    /// Sends a message that has no reply. With `acknowledged`, requests an acknowledgement, waits
    /// for it and checks it.
    pub fn tell(&mut self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>, acknowledged: bool) -> Result<()> {
        self.send(&request(code, acknowledged, payload), fd)?;
        if acknowledged {
            let status = self.reply()?;
            ensure!(status.iter().all(|byte| *byte == 0), "message {code} was refused");
        }
        Ok(())
    }

    /// Sends a message and returns the number in its reply.
    pub fn ask(&mut self, code: u32, payload: &[u8]) -> Result<u64> {
        let reply = self.call(code, payload)?;
        reply.try_into().map(u64::from_ne_bytes).ok().context("an answer of another length")
    }

    /// Sends a message and returns the payload of its reply.
    pub fn call(&mut self, code: u32, payload: &[u8]) -> Result<Vec<u8>> {
        self.send(&request(code, false, payload), None)?;
        self.reply()
    }

    /// Sends a message and returns the file descriptor and the payload of its reply.
    pub fn call_for_descriptor(&mut self, code: u32, payload: &[u8]) -> Result<(OwnedFd, Vec<u8>)> {
        self.send(&request(code, false, payload), None)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64];
        let received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next().context("no descriptor came")?;
        Ok((fd, bytes.get(HEADER..received.bytes).context("a short answer")?.to_vec()))
    }

    fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        ensure!(sent == bytes.len(), "a message was cut short");
        Ok(())
    }

    fn reply(&mut self) -> Result<Vec<u8>> {
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).context("waiting for an answer")?;
        let [.., a, b, c, d] = header;
        let mut payload = vec![0; u32::from_ne_bytes([a, b, c, d]) as usize];
        self.0.read_exact(&mut payload).context("waiting for an answer's bytes")?;
        Ok(payload)
    }
}
