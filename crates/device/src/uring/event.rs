//! What a ring tells its owner.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{Io, IoDone};

/// Names a connection; never means another one later, even when its place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Names a listener; see [`ConnectionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Names a descriptor that is watched; see [`ConnectionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A device operation ended.
    Io(IoDone),
    /// A device operation was not handed to the kernel, because the lease was over ([`super::Ring::set_lease`]). No other end of it follows.
    /// The device may hold a part of it, when the kernel had carried out that part before.
    Unsent(Io),
    /// A client connected. The socket is not yet known to the ring.
    Accepted {
        /// Through which listener.
        listener: ListenerId,
        /// The connection.
        socket: OwnedFd,
    },
    /// There is something to receive. Told again only after more has come: receive until there is nothing left, that is until fewer bytes
    /// came than there was room for, or until `WOULDBLOCK`.
    Readable {
        /// Where.
        connection: ConnectionId,
        /// The peer will send no more, or the connection broke: receive until 0 or an error.
        ended: bool,
    },
    /// There is room to send, as asked for with [`super::Ring::watch_writable`].
    Writable(ConnectionId),
    /// A connection that was closed is gone; its number is void.
    Closed(ConnectionId),
    /// A listener that was closed accepts nothing any more; its address is free.
    Unlistened(ListenerId),
    /// A descriptor that is watched was written to, once or more often.
    Signalled(WatchId),
    /// Some [`super::Waker`] was used, once or more often.
    Woken,
}

/// How long a turn may wait when nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    AtMost(Duration),
    /// Until something happens.
    Forever,
}
