//! Events of a ring, for its owner.

use std::os::fd::OwnedFd;
use std::time::Duration;

use millpond_block::{Io, IoDone};

/// Identity of a connection; never reused, even when its slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Identity of a listener; see [`ConnectionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Identity of a watched descriptor; see [`ConnectionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// An event of a ring.
#[derive(Debug)]
pub enum Event {
    /// A device operation completed.
    Io(IoDone),
    /// A device operation was not passed to the kernel, because the lease was over
    /// ([`super::Ring::set_lease`]). It has no other completion. A part of it may be on the device,
    /// if the kernel had carried out that part before.
    Unsent(Io),
    /// A client connected. The ring does not watch the socket yet.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The socket.
        socket: OwnedFd,
    },
    /// A connection has data to receive. The event is repeated only after more data has come:
    /// receive until fewer bytes come than the buffer holds, or until `WOULDBLOCK`.
    Readable {
        /// The connection.
        connection: ConnectionId,
        /// True when the peer will send no more, or the connection broke: receive until 0 or an
        /// error.
        ended: bool,
    },
    /// A connection has room to send, as requested with [`super::Ring::watch_writable`].
    Writable(ConnectionId),
    /// A connection was closed; its identity is void.
    Closed(ConnectionId),
    /// A listener was closed and accepts nothing any more; its address is free.
    Unlistened(ListenerId),
    /// A watched descriptor was written to, at least once.
    Signalled(WatchId),
    /// A [`super::Waker`] was used, at least once.
    Woken,
}

/// How long a turn may wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    AtMost(Duration),
    /// Until something happens.
    Forever,
}
