//! Errors about a front end.

use std::io;

use millpond_export::vhost_user::wire::Malformed;
use millpond_export::vhost_user::{QueueError, SessionError};
use rustix::io::Errno;
use vm_memory::GuestRegionCollectionError;
use vm_memory::mmap::MmapRegionError;

/// Reason why a request of a front end is not carried out. Display is one line, for a log.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestError {
    /// The shard has ended.
    #[error("the pool is not open any more")]
    PoolClosed,
    #[error("the export is going away")]
    ExportClosing,
    #[error("the last front end is not disconnected yet")]
    Occupied,
    #[error("{0}")]
    Queue(#[from] QueueError),
    /// A region of the guest's memory, or other shared memory, could not be mapped.
    #[error("{0}")]
    Map(#[from] MmapRegionError),
    /// The regions of the guest's memory overlap.
    #[error("{0}")]
    Regions(#[from] GuestRegionCollectionError),
    /// Size of a region in bytes.
    #[error("a region of memory is too large")]
    RegionSize(u64),
    /// Guest address of a region.
    #[error("a region of memory ends beyond all addresses")]
    RegionEnd(u64),
    /// Size of a piece in bytes.
    #[error("a piece of shared memory is too large")]
    SharedSize(u64),
    #[error("too many pieces of shared memory for one connection")]
    SharedCount,
    #[error("too many pieces of memory are mapped already")]
    NoGuard,
    #[error("no memory for a record of requests in flight: {0}")]
    Record(Errno),
    /// Magic number of the file system of a memory file.
    #[error("the guest's memory must be a memfd, or a file of tmpfs or hugetlbfs (QEMU: memory-backend-memfd, share=on)")]
    FileSystem(i64),
    /// Page size of hugetlbfs in bytes.
    #[error("pages of an impossible size")]
    PageSize(i64),
    #[error("queues are kicked and called by eventfds")]
    NoEventfd,
    #[error("the channel for configuration changes is not a stream socket")]
    NoStream,
    /// A descriptor cannot be examined or changed.
    #[error("{0}")]
    Descriptor(#[from] Errno),
    /// The name of a descriptor cannot be read.
    #[error("{0}")]
    Name(#[source] io::Error),
}

/// Reason why a connection to a front end has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum TalkError {
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] Errno),
    /// The daemon has no descriptor left for the front end.
    #[error("{}", crate::descriptors::refusal())]
    NoDescriptors,
    #[error("too many descriptors with one message")]
    DescriptorCount,
    #[error("{0}")]
    Session(#[from] SessionError<GuestError>),
}

impl From<Malformed> for TalkError {
    fn from(malformed: Malformed) -> TalkError {
        TalkError::Session(malformed.into())
    }
}
