//! The thread that talks to front ends, one at a time, and maps their memory.
//!
//! Everything that a front end hands over is checked before use. Memory must be of tmpfs or
//! hugetlbfs (memfd is), so that accessing it never waits for a file system of the front end's
//! choice. Descriptors for kicks and calls must be eventfds, and are made non-blocking.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use millpond_block::PAGE;
use millpond_device::Guard;
use millpond_export::vhost_user::wire::{HEADER, Header, MAX_DESCRIPTORS, Region};
use millpond_export::vhost_user::{Backend, DirtyLog, InflightMemory, Memory, MemoryRegion, Offer, QueueSetup, Reply, Session, Signal};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};

use super::error::{GuestError, TalkError};
use super::order::{Orders, What};
use super::stop::Stop;
use crate::descriptors;
use crate::shard::listen;

/// Types of file systems whose pages are in memory.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
/// Most pieces of shared memory that one connection may bring besides the guest's memory: each
/// migration to another host takes one or two.
const MAX_SHARED: usize = 64;
/// Name of an eventfd in /proc.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// State of the thread.
pub(super) struct Talk {
    orders: Orders,
    queues: u16,
    /// Number of pieces of shared memory that the front end has brought.
    shared: usize,
}

/// A region of the guest's memory. The front end may take the memory away, whatever it has
/// promised.
#[derive(Clone)]
pub(super) struct Watched {
    region: MemoryRegion,
    guard: Arc<Guard>,
}

/// Reports the end of the thread when dropped, even after a panic.
struct Ending(Orders);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.tell(What::Ended);
    }
}

impl Talk {
    /// Serves front ends on a thread of its own until it is stopped.
    pub fn spawn(orders: Orders, stop: Arc<Stop>, queues: u16) -> io::Result<()> {
        let name = format!("vhost-user-{}", orders.export);
        let body = move || {
            let _ending = Ending(orders.clone());
            let mut talk = Talk { orders, queues, shared: 0 };
            while !stop.is_ended() {
                match accept(&stop) {
                    Ok(socket) => talk.serve(&socket, &stop),
                    Err(_) if stop.is_ended() => {}
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(errno) => {
                        // Out of descriptors or memory, which passes.
                        tracing::warn!(export = %talk.orders.export, %errno, "no front end can be accepted now");
                        thread::sleep(std::time::Duration::from_millis(200));
                    }
                }
            }
        };
        thread::Builder::new().name(name).spawn(body).map(drop)
    }

    fn ask_offer(&self, fresh: bool) -> Result<Offer, GuestError> {
        let (geometry, features) = self.orders.ask(|answer| What::Offer { fresh, answer })?;
        Ok(Offer { geometry, features, queues: self.queues })
    }

    fn serve(&mut self, socket: &OwnedFd, stop: &Stop) {
        let copy = socket.try_clone().ok().filter(|copy| descriptors::may_keep(copy));
        let Some(copy) = copy else {
            return tracing::warn!(export = %self.orders.export, "a front end was turned away: {}", descriptors::refusal());
        };
        if !stop.serving(Some(copy)) {
            return;
        }
        self.shared = 0;
        let peer = listen::prepare(socket, false);
        match self.orders.ask(|answer| What::Attach { peer: peer.clone(), answer }) {
            Ok(()) => {
                let mut session = Session::new(self.queues);
                let Err(reason) = self.talk(&mut session, socket);
                match reason {
                    TalkError::Closed => tracing::debug!(export = %self.orders.export, peer, "the front end has closed the connection"),
                    reason => tracing::warn!(export = %self.orders.export, peer, %reason, "the connection to the front end ends"),
                }
                // The memory is unmapped on this thread, where that delays no other client.
                drop(self.orders.ask(What::Detach));
            }
            Err(reason) => tracing::warn!(export = %self.orders.export, peer, reason = reason.to_string(), "a front end was turned away"),
        }
        stop.serving(None);
    }

    fn talk(&mut self, session: &mut Session<Talk>, socket: &OwnedFd) -> Result<std::convert::Infallible, TalkError> {
        loop {
            let mut fds = Vec::new();
            let mut head = [0; HEADER];
            receive(socket, &mut head, &mut fds)?;
            let header = Header::read(&head)?;
            let mut payload = vec![0; header.length];
            receive(socket, &mut payload, &mut fds)?;
            let reply = session.handle(self, &header, &payload, fds)?;
            send(socket, reply)?;
        }
    }
}

fn accept(stop: &Stop) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(stop.listener(), SocketFlags::CLOEXEC)
}

/// Fills `target`; adds descriptors that arrive with the bytes to `fds`.
fn receive(socket: &OwnedFd, target: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(), TalkError> {
    let mut rest = target;
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(rest)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Err(TalkError::Closed),
            Err(errno) => return Err(errno.into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                fds.extend(files);
            }
        }
        if received.bytes == 0 {
            return Err(TalkError::Closed);
        }
        if !fds.iter().all(descriptors::may_keep) {
            return Err(TalkError::NoDescriptors);
        }
        if fds.len() > MAX_DESCRIPTORS {
            return Err(TalkError::DescriptorCount);
        }
        rest = rest.get_mut(received.bytes..).unwrap_or_default();
    }
    Ok(())
}

fn send(socket: &OwnedFd, reply: Reply) -> Result<(), TalkError> {
    let fds: Vec<_> = reply.fd.iter().map(AsFd::as_fd).collect();
    let mut rest = reply.bytes.as_slice();
    let mut first = true;
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if first && !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(count) => {
                first = false;
                rest = rest.get(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(TalkError::Closed),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

impl Backend for Talk {
    type Region = Watched;
    type Error = GuestError;

    fn offer(&mut self) -> Result<Offer, GuestError> {
        self.ask_offer(false)
    }

    fn configuration(&mut self, fresh: bool) -> Result<Offer, GuestError> {
        self.ask_offer(fresh)
    }

    fn map(&mut self, region: &Region, file: OwnedFd) -> Result<Watched, GuestError> {
        let page = in_memory(&file)?;
        // A file that shrinks, or for whose pages the host has no memory, breaks its guard, and the
        // front end is disconnected. A file that takes seals cannot shrink.
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK);
        let size = usize::try_from(region.size).map_err(|_| GuestError::RegionSize(region.size))?;
        let mapped = MmapRegion::from_file(FileOffset::new(File::from(file), region.offset), size)?;
        let guard = watch(&mapped, page)?;
        let end = GuestError::RegionEnd(region.guest);
        let region = GuestRegionMmap::new(mapped, GuestAddress(region.guest)).ok_or(end)?;
        Ok(Watched { region: Arc::new(region), guard })
    }

    fn set_memory(&mut self, regions: Vec<Watched>) -> Result<(), GuestError> {
        let (regions, guards): (Vec<_>, Vec<_>) = regions.into_iter().map(|Watched { region, guard }| (region, guard)).unzip();
        let memory = match regions.is_empty() {
            true => Memory::new(),
            false => Memory::from_arc_regions(regions)?,
        };
        self.orders.ask(|answer| What::Memory(memory, guards, answer)).map(drop)
    }

    fn make_inflight(&mut self, size: u64) -> Result<OwnedFd, GuestError> {
        let make = || -> Result<OwnedFd, Errno> {
            let fd = rustix::fs::memfd_create("vhost-user-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&fd, size)?;
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
            Ok(fd)
        };
        make().map_err(GuestError::Record)
    }

    fn map_shared(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<InflightMemory, GuestError> {
        let page = in_memory(&file)?;
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK);
        let size = usize::try_from(size).map_err(|_| GuestError::SharedSize(size))?;
        self.shared += 1;
        if self.shared > MAX_SHARED {
            return Err(GuestError::SharedCount);
        }
        let mapped = MmapRegion::from_file(FileOffset::new(File::from(file), offset), size)?;
        self.orders.tell(What::Shared(watch(&mapped, page)?));
        Ok(Arc::new(mapped))
    }

    fn set_log(&mut self, log: DirtyLog) -> Result<(), GuestError> {
        self.orders.ask(|answer| What::Log(log, answer)).map(drop)
    }

    fn set_features(&mut self, features: u64) -> Result<(), GuestError> {
        self.orders.tell(What::Features(features));
        Ok(())
    }

    fn set_write_cache(&mut self, on: bool) -> Result<(), GuestError> {
        self.orders.tell(What::WriteCache(on));
        Ok(())
    }

    fn start(&mut self, index: usize, setup: QueueSetup, kick: Arc<OwnedFd>) -> Result<(), GuestError> {
        self.orders.ask(|answer| What::Start { index, setup, kick, answer })
    }

    fn stop(&mut self, index: usize) -> Result<u16, GuestError> {
        self.orders.ask(|answer| What::Stop { index, answer })
    }

    fn set_signal(&mut self, index: usize, signal: Signal, fd: Option<OwnedFd>) -> Result<(), GuestError> {
        if let Some(fd) = &fd {
            eventfd(fd)?;
        }
        self.orders.tell(What::Signal { index, signal, fd });
        Ok(())
    }

    fn check_kick(&mut self, fd: &OwnedFd) -> Result<(), GuestError> {
        eventfd(fd)
    }

    fn set_channel(&mut self, fd: OwnedFd) -> Result<(), GuestError> {
        match rustix::net::sockopt::socket_type(&fd) {
            Ok(SocketType::STREAM) => {
                self.orders.tell(What::Channel(fd));
                Ok(())
            }
            _ => Err(GuestError::NoStream),
        }
    }
}

/// Watches mapped memory for pages that are taken away.
fn watch(mapped: &MmapRegion, page: usize) -> Result<Arc<Guard>, GuestError> {
    let guard = Guard::new(mapped.as_ptr(), mapped.size(), page).ok_or(GuestError::NoGuard)?;
    Ok(Arc::new(guard))
}

/// Refuses files that are not in memory. Returns their page size in bytes.
fn in_memory(file: &OwnedFd) -> Result<usize, GuestError> {
    let stat = rustix::fs::fstatfs(file)?;
    match stat.f_type {
        TMPFS => Ok(PAGE),
        HUGETLBFS => usize::try_from(stat.f_bsize).map_err(|_| GuestError::PageSize(stat.f_bsize)),
        other => Err(GuestError::FileSystem(other)),
    }
}

/// Refuses a descriptor that is no eventfd, and makes it non-blocking.
fn eventfd(fd: &OwnedFd) -> Result<(), GuestError> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(GuestError::Name)?;
    if name.as_os_str() != EVENTFD {
        return Err(GuestError::NoEventfd);
    }
    let set = rustix::fs::fcntl_getfl(fd).and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    Ok(set?)
}
