//! What the thread that talks to a front end asks of the shard.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;

use millpond_block::{Features, Geometry};
use millpond_device::{Guard, Waker};
use millpond_export::vhost_user::{DirtyLog, Memory, QueueSetup, Signal};
use tokio::sync::oneshot;

use crate::daemon::shard::handle::ExportId;

/// Where an answer goes; the error is words for a log.
pub(super) type Answer<T> = oneshot::Sender<Result<T, String>>;

/// For which export, and what.
pub(super) struct Order {
    pub export: ExportId,
    pub what: What,
}

/// What is asked.
pub(super) enum What {
    /// A front end has connected.
    Attach {
        peer: String,
        answer: Answer<()>,
    },
    /// Size, sectors and features now; `fresh`: for the configuration of a guest that has seen no other.
    Offer {
        fresh: bool,
        answer: Answer<(Geometry, Features)>,
    },
    /// Exchange the memory; gives the old one back, to be unmapped elsewhere.
    Memory(Memory, Vec<Arc<Guard>>, Answer<Memory>),
    /// Other memory of the front end's that is touched from now on.
    Shared(Arc<Guard>),
    /// Exchange the log of dirty pages; gives the old one back.
    Log(DirtyLog, Answer<Option<DirtyLog>>),
    Features(u64),
    WriteCache(bool),
    Start {
        index: usize,
        setup: QueueSetup,
        kick: Arc<OwnedFd>,
        answer: Answer<()>,
    },
    /// Answered when nothing of the queue is in flight.
    Stop {
        index: usize,
        answer: Answer<u16>,
    },
    Signal {
        index: usize,
        signal: Signal,
        fd: Option<OwnedFd>,
    },
    Channel(OwnedFd),
    /// The front end is gone. Answered when nothing is in flight, with the memory.
    Detach(Answer<Memory>),
    /// The thread has ended; nothing comes after this.
    Ended,
}

/// The thread's way to the shard.
#[derive(Clone)]
pub(super) struct Orders {
    pub export: ExportId,
    pub sender: mpsc::Sender<Order>,
    pub waker: Waker,
}

/// Words for when the shard has ended.
const GONE: &str = "the pool is not open any more";

impl Orders {
    /// Says what needs no answer. A shard that has ended takes nothing, which the next question tells.
    pub fn tell(&self, what: What) {
        let _ = self.sender.send(Order { export: self.export, what });
        self.waker.wake();
    }

    /// Asks and waits. Not to be called from asynchronous code.
    pub fn ask<T>(&self, what: impl FnOnce(Answer<T>) -> What) -> Result<T, String> {
        let (sender, receiver) = oneshot::channel();
        self.tell(what(sender));
        receiver.blocking_recv().unwrap_or_else(|_| Err(GONE.to_owned()))
    }
}
