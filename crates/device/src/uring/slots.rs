//! Operations in flight, with all memory that the kernel may access, until their last completion.

use std::rc::Rc;

use io_uring::squeue::Entry;
use millpond_block::{Buf, BufSlice, DeviceSlot, Io, IoId, IoKind};
use slab::Slab;

/// Memory and state of an operation while the kernel works on it. Everything that the kernel has a
/// pointer to is on the heap (buffers, boxes, vectors that do not grow), so a slot may move when
/// the table grows.
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
    /// A multishot poll of a watched descriptor.
    Watch { watch: u32 },
    /// A cancellation.
    Cancel,
}

/// A device operation and its progress.
pub(super) struct IoOp {
    pub id: IoId,
    pub device: DeviceSlot,
    pub kind: IoOpKind,
    /// Bytes done.
    pub done: u64,
    /// Attempts without progress.
    pub stuck: u32,
    /// True when it overtakes other operations.
    pub urgent: bool,
    /// True when it may take long, so that the ring's thread does not carry it out itself.
    pub long: bool,
}

impl IoOp {
    /// True when it may change the device's content, or what is on stable media.
    pub fn changes(&self) -> bool {
        !matches!(self.kind, IoOpKind::Read { .. })
    }

    /// Returns the operation as it was submitted, without its progress.
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
        pieces: Vec<BufSlice>,
        vectors: Vec<libc::iovec>,
    },
    /// Zeros by a system call that need not write.
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

/// Table of operations; the index is the operation's `user_data`.
#[derive(Default)]
pub(super) struct Slots {
    slots: Slab<Op>,
    /// Number of device operations among them.
    io_count: usize,
    /// Makes the ring `!Send`, as `SINGLE_ISSUER` needs it to be.
    _thread: std::marker::PhantomData<Rc<()>>,
}

impl Slots {
    /// Adds an operation and returns its index.
    pub fn insert(&mut self, op: Op) -> u32 {
        self.io_count += usize::from(matches!(op, Op::Io(_)));
        u32::try_from(self.slots.insert(op)).unwrap_or_else(|_| std::process::abort())
    }

    /// Returns the operation in its slot.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Op> {
        self.slots.get_mut(index as usize)
    }

    /// Returns the operation that a kernel request belongs to.
    pub fn named_by(&mut self, entry: &Entry) -> Option<&mut Op> {
        self.get_mut(u32::try_from(entry.get_user_data()).ok()?)
    }

    /// Removes the operation of a request that the kernel was not given.
    pub fn take_named_by(&mut self, entry: &Entry) -> Option<Op> {
        self.remove(u32::try_from(entry.get_user_data()).ok()?)
    }

    /// Removes an operation; only when the kernel has completed it (INV-URING-1).
    pub fn remove(&mut self, index: u32) -> Option<Op> {
        let op = self.slots.try_remove(index as usize)?;
        self.io_count -= usize::from(matches!(op, Op::Io(_)));
        Some(op)
    }

    /// Indices of the device operations in flight.
    pub fn ios(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|(_, op)| matches!(op, Op::Io(_))).map(|(index, _)| index as u32)
    }

    /// Number of device operations in flight.
    pub fn io_count(&self) -> usize {
        self.io_count
    }

    /// Number of operations in flight.
    pub fn live(&self) -> usize {
        self.slots.len()
    }
}
