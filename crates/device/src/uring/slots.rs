//! Operations in flight: what the kernel may be touching, kept in place until their last completion.

use std::rc::Rc;

use io_uring::squeue::Entry;
use millpond_block::{Buf, Piece};

use crate::{DeviceIndex, Io, IoId, IoKind};

/// What an operation owns while the kernel works on it. Everything the kernel has a pointer to lies on the heap (buffers, boxes, vectors
/// that do not grow), so that a slot may move when the table of slots grows.
pub(super) enum Op {
    /// A device operation.
    Io(IoOp),
    /// A multishot accept.
    Accept { listener: u32 },
    /// A multishot poll for input.
    PollIn { connection: u32 },
    /// A poll for room to send.
    PollOut { connection: u32 },
    /// A read of the waker's eventfd.
    Wake { counter: Box<[u8; 8]> },
    /// A multishot poll of a descriptor that is watched.
    Watch { watch: u32 },
    /// A cancellation.
    Cancel,
}

/// A device operation and its progress.
pub(super) struct IoOp {
    pub id: IoId,
    pub device: DeviceIndex,
    pub kind: IoOpKind,
    /// Bytes done.
    pub done: u64,
    /// Attempts without progress.
    pub stuck: u32,
    /// It overtakes others.
    pub urgent: bool,
    /// It may take long: the ring's thread does not do it itself.
    pub long: bool,
}

impl IoOp {
    /// It may change what the device holds, or what of it is stable.
    pub fn changes(&self) -> bool {
        !matches!(self.kind, IoOpKind::Read { .. })
    }

    /// The operation as it was asked for, from the start.
    pub fn into_io(self) -> Io {
        let kind = match self.kind {
            IoOpKind::Read { offset, length, buf } => IoKind::Read { offset, length, buf },
            IoOpKind::Write { offset, pieces, .. } => IoKind::Write { offset, pieces },
            IoOpKind::Zero { offset, length } => IoKind::Zero { offset, length },
            IoOpKind::Flush => IoKind::Flush,
            IoOpKind::Discard { offset, length } => IoKind::Discard { offset, length },
        };
        Io { id: self.id, device: self.device, kind, urgent: self.urgent }
    }
}

pub(super) enum IoOpKind {
    Read {
        offset: u64,
        length: usize,
        buf: Buf,
    },
    Write {
        offset: u64,
        length: u64,
        pieces: Vec<Piece>,
        vectors: Vec<libc::iovec>,
    },
    /// Zeros by a call of their own.
    Zero {
        offset: u64,
        length: u64,
    },
    Flush,
    Discard {
        offset: u64,
        length: u64,
    },
}

/// A table of operations; the index is the operation's `user_data`.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Makes the ring `!Send`, as `SINGLE_ISSUER` needs it to be.
    _thread: std::marker::PhantomData<Rc<()>>,
}

impl Slots {
    /// Puts an operation in its place and names it.
    pub fn insert(&mut self, op: Op) -> u32 {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            *slot = Some(op);
            return index;
        }
        let index = u32::try_from(self.slots.len()).unwrap_or_else(|_| std::process::abort());
        self.slots.push(Some(op));
        index
    }

    /// The operation, where it lies.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Op> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The operation that a request to the kernel is of.
    pub fn named_by(&mut self, entry: &Entry) -> Option<&mut Op> {
        self.get_mut(u32::try_from(entry.get_user_data()).ok()?)
    }

    /// Takes the operation out that a request is of, which the kernel was not given.
    pub fn take_named_by(&mut self, entry: &Entry) -> Option<Op> {
        self.remove(u32::try_from(entry.get_user_data()).ok()?)
    }

    /// Takes the operation out; only when the kernel is done with it (INV-URING-1).
    pub fn remove(&mut self, index: u32) -> Option<Op> {
        let op = self.slots.get_mut(index as usize)?.take();
        if op.is_some() {
            self.free.push(index);
        }
        op
    }

    /// The device operations in flight.
    pub fn ios(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.slots).filter(|(_, op)| matches!(op, Some(Op::Io(_)))).map(|(index, _)| index)
    }

    /// Operations in flight.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
