//! Orders to the shard from the thread that talks to a front end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;

use millpond_block::{Features, Geometry};
use millpond_device::{Guard, Waker};
use millpond_export::vhost_user::{DirtyLog, Memory, QueueSetup, Signal};
use tokio::sync::oneshot;

use super::error::GuestError;
use crate::shard::report::ExportId;

/// Channel for an answer.
pub(super) type Answer<T> = oneshot::Sender<Result<T, GuestError>>;

/// An order about an export.
pub(super) struct Order {
    pub export: ExportId,
    pub what: What,
}

/// Content of an order.
pub(super) enum What {
    /// A front end has connected.
    Attach {
        peer: String,
        answer: Answer<()>,
    },
    /// Asks for size, sectors and features; `fresh`: for the configuration of a guest that has read
    /// none before.
    Offer {
        fresh: bool,
        answer: Answer<(Geometry, Features)>,
    },
    /// Exchanges the memory; the answer is the old one, to be unmapped elsewhere.
    Memory(Memory, Vec<Arc<Guard>>, Answer<Memory>),
    /// Adds other memory of the front end that is accessed from now on.
    Shared(Arc<Guard>),
    /// Exchanges the log of dirty pages; the answer is the old one.
    Log(DirtyLog, Answer<Option<DirtyLog>>),
    Features(u64),
    WriteCache(bool),
    Start {
        index: usize,
        setup: QueueSetup,
        kick: Arc<OwnedFd>,
        answer: Answer<()>,
    },
    /// Stops a queue; answered when the queue has nothing in flight.
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
    /// The front end is gone. Answered with the memory, when nothing is in flight.
    Detach(Answer<Memory>),
    /// The thread has ended; no order follows.
    Ended,
}

/// The thread's channel to the shard.
#[derive(Clone)]
pub(super) struct Orders {
    pub export: ExportId,
    pub sender: mpsc::Sender<Order>,
    pub waker: Waker,
}

impl Orders {
    /// Sends an order that needs no answer. A shard that has ended takes none, which the next
    /// [`Orders::ask`] reports.
    pub fn tell(&self, what: What) {
        let _ = self.sender.send(Order { export: self.export, what });
        self.waker.wake();
    }

    /// Sends an order and waits for its answer. Not to be called from asynchronous code.
    pub fn ask<T>(&self, what: impl FnOnce(Answer<T>) -> What) -> Result<T, GuestError> {
        let (sender, receiver) = oneshot::channel();
        self.tell(what(sender));
        receiver.blocking_recv().unwrap_or(Err(GuestError::PoolClosed))
    }
}
