//! Device operations: `Io` values become kernel requests, are continued after partial transfers,
//! and come back as `IoDone`s.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, FsyncFlags};
use io_uring::{IoUring, opcode};
use millpond_block::{Buf, BufSlice, DeviceError, DeviceSlot, Io, IoDone, IoKind, PAGE};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::event::Event;
use super::ring::Ring;
use super::slots::{IoOp, IoOpKind, Op};
use crate::HostDevice;
use crate::mapping::Mapping;

/// Maximum devices of a ring over its lifetime, because positions are not reused: four times the
/// members of a pool, so that each can be replaced.
pub(super) const MAX_DEVICES: u32 = 256;
/// Vectors that one request may carry (the kernel's UIO_MAXIOV).
const MAX_VECTORS: usize = 1024;
/// Maximum bytes of one request; the kernel's own limit is just below 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;
/// Attempts without progress before an operation fails: interruptions and shortages pass, other
/// causes do not.
const MAX_STUCK: u32 = 1000;
/// Size in bytes of the buffer of zeros that is written.
const ZEROS: usize = 64 << 10;
/// Mode of fallocate(2) that zeroes and allocates a range without writing
/// (`FALLOC_FL_WRITE_ZEROES`, Linux 6.17).
const WRITE_ZEROES: i32 = 0x80;
/// Maximum lists of vectors that are kept for reuse.
const KEPT_VECTORS: usize = 256;

/// The devices of a ring.
pub(super) struct Devices {
    table: Vec<Option<Device>>,
    /// True when descriptors are registered with the kernel, which saves a look-up per request.
    fixed: bool,
    spare: Vec<Vec<libc::iovec>>,
    zeros: Arc<Buf>,
}

pub(super) struct Device {
    pub(super) host: HostDevice,
    descriptor: Descriptor,
    /// True when operations are carried out at once, see [`super::instant`].
    pub(super) instant: bool,
    /// Mapping through which it is read without a system call, if there is one.
    pub(super) mapping: Option<Mapping>,
    /// Set when a flush has failed: writes before it may be lost, so writes and flushes fail until
    /// the device is opened again.
    poisoned: Option<DeviceError>,
    in_flight: usize,
    /// True when the host has no call for zeros, so they are written.
    writes_zeros: bool,
}

#[derive(Clone, Copy)]
enum Descriptor {
    Fixed(u32),
    Plain(RawFd),
}

/// Applies the builder to either kind of descriptor.
macro_rules! with_descriptor {
    ($descriptor:expr, $fd:ident => $entry:expr) => {
        match $descriptor {
            Descriptor::Fixed(index) => {
                let $fd = Fixed(index);
                $entry
            }
            Descriptor::Plain(raw) => {
                let $fd = Fd(raw);
                $entry
            }
        }
    };
}

impl Ring {
    /// Adds a device. Operations refer to it by the returned position; positions count up from 0.
    ///
    /// # Errors
    /// Returns the device when the ring has no free position.
    pub fn add_device(&mut self, host: HostDevice) -> Result<DeviceSlot, HostDevice> {
        let index = match u16::try_from(self.devices.table.len()) {
            Ok(index) if u32::from(index) < MAX_DEVICES => index,
            _ => return Err(host),
        };
        let raw = host.as_fd().as_raw_fd();
        let slot = u32::from(index);
        let fixed = self.devices.fixed && self.submitter().register_files_update(slot, &[raw]).is_ok_and(|done| done == 1);
        let descriptor = if fixed { Descriptor::Fixed(slot) } else { Descriptor::Plain(raw) };
        let instant = host.in_memory();
        let mapping = if instant { Mapping::new(host.as_fd(), host.geometry().size) } else { None };
        self.devices.table.push(Some(Device { host, descriptor, instant, mapping, poisoned: None, in_flight: 0, writes_zeros: false }));
        Ok(DeviceSlot(index))
    }

    /// Number of positions that were assigned so far.
    pub fn devices(&self) -> u16 {
        u16::try_from(self.devices.table.len()).unwrap_or(u16::MAX)
    }

    /// The device at a position.
    pub fn device(&self, index: DeviceSlot) -> Option<&HostDevice> {
        Some(&self.devices.get(index)?.host)
    }

    /// Removes a device and returns it, if it has no operation in flight; its position stays empty.
    pub fn remove_device(&mut self, index: DeviceSlot) -> Option<HostDevice> {
        let place = self.devices.table.get_mut(usize::from(index.0))?;
        if place.as_ref().is_none_or(|device| device.in_flight != 0) {
            return None;
        }
        let device = place.take()?;
        if let Descriptor::Fixed(slot) = device.descriptor {
            // Frees the entry in the kernel's table; if that fails, the kernel keeps the file open
            // until the ring ends, no more.
            let _ = self.submitter().register_files_update(slot, &[-1]);
        }
        Some(device.host)
    }

    /// Starts a device operation with the next turn. Its completion is an [`Event::Io`]; operations
    /// complete in any order.
    ///
    /// Reads past the end of the device return zeroes; writes and discards there fail. A flush
    /// covers the writes whose completions were popped before it was submitted. After a failed
    /// flush, all writes and flushes of the device fail with that error. When the lease is over
    /// ([`Ring::set_lease`]), an operation other than a read comes back as [`Event::Unsent`].
    pub fn submit(&mut self, io: Io) {
        match self.devices.admit(io) {
            Ok(mut op) => {
                if self.devices.is_instant(&op) {
                    if op.changes() && self.lease_is_over() {
                        return self.unsend(op);
                    }
                    let result = self.devices.carry_out(&mut op);
                    return self.io_done(op, result);
                }
                let index = self.slots.insert(Op::Io(op));
                let Some(Op::Io(op)) = self.slots.get_mut(index) else { return };
                let urgent = op.urgent;
                match self.devices.entry(op) {
                    Some(entry) if urgent => self.push_first(index, entry),
                    Some(entry) => self.push(index, entry),
                    None => {
                        if let Some(Op::Io(op)) = self.slots.remove(index) {
                            self.io_done(op, -Errno::INVAL.raw_os_error());
                        }
                    }
                }
            }
            Err(done) => self.events.push_back(Event::Io(done)),
        }
    }

    pub(super) fn io_done(&mut self, op: IoOp, result: i32) {
        let done = self.devices.finish(op, result);
        self.events.push_back(Event::Io(done));
    }
}

impl Ring {
    /// Returns an operation that the kernel does not have.
    pub(super) fn unsend(&mut self, op: IoOp) {
        self.devices.forget(&op);
        self.events.push_back(Event::Unsent(op.into_io()));
    }
}

impl Devices {
    pub fn new(uring: &IoUring) -> Devices {
        let fixed = uring.submitter().register_files_sparse(MAX_DEVICES).is_ok();
        Devices { table: Vec::new(), fixed, spare: Vec::new(), zeros: Arc::new(Buf::zeroed(ZEROS)) }
    }

    pub(super) fn get(&self, index: DeviceSlot) -> Option<&Device> {
        self.table.get(usize::from(index.0))?.as_ref()
    }

    /// Removes an operation that the kernel never had from the count of those in flight.
    pub fn forget(&mut self, op: &IoOp) {
        if let Some(device) = self.get_mut(op.device) {
            device.in_flight = device.in_flight.saturating_sub(1);
        }
    }

    fn get_mut(&mut self, index: DeviceSlot) -> Option<&mut Device> {
        self.table.get_mut(usize::from(index.0))?.as_mut()
    }

    /// Sets whether operations are carried out at once, which otherwise depends on the filesystem.
    #[cfg(test)]
    pub fn set_instant(&mut self, index: DeviceSlot, instant: bool) {
        if let Some(device) = self.get_mut(index) {
            device.instant = instant;
        }
    }

    /// Sets the state after a failed flush.
    #[cfg(test)]
    pub fn poison(&mut self, index: DeviceSlot, error: DeviceError) {
        if let Some(device) = self.get_mut(index) {
            device.poisoned = Some(error);
        }
    }

    /// Checks an operation and prepares it; `Err` is its completion.
    fn admit(&mut self, io: Io) -> Result<IoOp, IoDone> {
        let Io { id, device: index, kind, urgent } = io;
        let long = matches!(kind, IoKind::Zero { .. });
        let vectors = self.spare.pop().unwrap_or_default();
        let (kind, error) = match self.get_mut(index) {
            None => (kind, Some(DeviceError::Gone)),
            Some(device) => {
                let error = device.check(&kind);
                device.in_flight += usize::from(error.is_none());
                (kind, error)
            }
        };
        let kind = match (kind, error) {
            (IoKind::Read { buf, .. }, Some(error)) => return Err(IoDone { id, result: Err(error), buf: Some(buf) }),
            (_, Some(error)) => return Err(IoDone { id, result: Err(error), buf: None }),
            (IoKind::Read { offset, length, buf }, None) => IoOpKind::Read { offset, length, buf },
            (IoKind::Write { offset, pieces }, None) => IoOpKind::Write { offset, length: total(&pieces), pieces, vectors },
            (IoKind::Zero { offset, length }, None) if self.get(index).is_some_and(|device| device.writes_zeros) => {
                IoOpKind::Write { offset, length, pieces: self.zero_pieces(length), vectors }
            }
            (IoKind::Zero { offset, length }, None) => IoOpKind::Zero { offset, length },
            (IoKind::Flush, None) => IoOpKind::Flush,
            (IoKind::Discard { offset, length }, None) => IoOpKind::Discard { offset, length },
        };
        Ok(IoOp { id, device: index, kind, done: 0, stuck: 0, urgent, long })
    }

    /// Returns pieces with `length` bytes of zeros.
    fn zero_pieces(&self, length: u64) -> Vec<BufSlice> {
        let bytes = |left: u64| usize::try_from(left).unwrap_or(ZEROS).min(ZEROS);
        (0..length).step_by(ZEROS).map(|at| BufSlice::zeroes(Arc::clone(&self.zeros), 0..bytes(length - at))).collect()
    }

    /// If the host has no call for zeros, turns the operation into a write, and remembers that for
    /// the device.
    fn write_zeros_instead(&mut self, op: &mut IoOp, result: i32) -> bool {
        let IoOpKind::Zero { offset, length } = op.kind else { return false };
        let unknown = [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS].iter().any(|errno| result == -errno.raw_os_error());
        if unknown {
            self.get_mut(op.device).into_iter().for_each(|device| device.writes_zeros = true);
            op.kind = IoOpKind::Write { offset, length, pieces: self.zero_pieces(length), vectors: self.spare.pop().unwrap_or_default() };
        }
        unknown
    }

    /// Builds the request for the rest of an operation. `op` must be in its slot already: the
    /// request points into memory that it owns.
    fn entry(&self, op: &mut IoOp) -> Option<Entry> {
        let descriptor = self.get(op.device)?.descriptor;
        let done = op.done;
        Some(match &mut op.kind {
            IoOpKind::Read { offset, length, buf } => {
                let rest = buf.bytes_mut().get_mut(usize::try_from(done).ok()?..*length)?;
                let bytes = u32::try_from(rest.len().min(MAX_TRANSFER)).ok()?;
                let (target, at) = (rest.as_mut_ptr(), *offset + done);
                with_descriptor!(descriptor, fd => opcode::Read::new(fd, target, bytes).offset(at).build())
            }
            IoOpKind::Write { offset, pieces, vectors, .. } => {
                let at = *offset + done;
                fill_vectors(vectors, pieces, done);
                if let [only] = vectors.as_slice() {
                    let (source, bytes) = (only.iov_base.cast::<u8>(), u32::try_from(only.iov_len).ok()?);
                    with_descriptor!(descriptor, fd => opcode::Write::new(fd, source, bytes).offset(at).build())
                } else {
                    let (list, count) = (vectors.as_ptr(), u32::try_from(vectors.len()).ok()?);
                    with_descriptor!(descriptor, fd => opcode::Writev::new(fd, list, count).offset(at).build())
                }
            }
            IoOpKind::Zero { offset, length } => {
                with_descriptor!(descriptor, fd => opcode::Fallocate::new(fd, *length).offset(*offset).mode(WRITE_ZEROES).build())
            }
            IoOpKind::Flush => {
                with_descriptor!(descriptor, fd => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build())
            }
            IoOpKind::Discard { offset, length } => {
                let mode = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE).bits().cast_signed();
                with_descriptor!(descriptor, fd => opcode::Fallocate::new(fd, *length).offset(*offset).mode(mode).build())
            }
        })
    }

    /// Handles the result of a request. Returns the next request (the next part or another
    /// attempt), or `None` when the operation has ended.
    pub fn go_on(&mut self, op: &mut IoOp, result: i32) -> Option<Entry> {
        if self.write_zeros_instead(op, result) {
            return self.entry(op);
        }
        if self.advance(op, result) { self.entry(op) } else { None }
    }

    /// Handles the result of a request. True when another part or attempt follows.
    pub(super) fn advance(&self, op: &mut IoOp, result: i32) -> bool {
        let Some(device) = self.get(op.device) else { return false };
        let Ok(moved) = u64::try_from(result) else {
            let passing = matches!(Errno::from_raw_os_error(-result), Errno::INTR | Errno::AGAIN);
            op.stuck += 1;
            return passing && op.stuck < MAX_STUCK;
        };
        let length = match &op.kind {
            IoOpKind::Read { length, .. } => *length as u64,
            IoOpKind::Write { length, .. } => *length,
            IoOpKind::Zero { .. } | IoOpKind::Flush | IoOpKind::Discard { .. } => return false,
        };
        let reached = (op.done + moved).min(length);
        if reached == length {
            op.done = length;
            return false;
        }
        if let IoOpKind::Read { offset, buf, .. } = &mut op.kind
            && device.host.readable_end().is_ok_and(|end| *offset + reached >= end)
        {
            let rest = usize::try_from(reached).ok().zip(usize::try_from(length).ok());
            if let Some(rest) = rest.and_then(|(from, to)| buf.bytes_mut().get_mut(from..to)) {
                rest.fill(0);
            }
            op.done = length;
            return false;
        }
        // Direct I/O continues at whole pages; repeating a part is harmless.
        let resumed = if device.host.direct() { reached - reached % PAGE as u64 } else { reached };
        op.stuck = if resumed > op.done { 0 } else { op.stuck + 1 };
        op.done = resumed;
        op.stuck < MAX_STUCK
    }

    fn finish(&mut self, op: IoOp, result: i32) -> IoDone {
        let IoOp { id, device: index, kind, done, .. } = op;
        let mut outcome = if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
        let complete = match &kind {
            IoOpKind::Read { length, .. } => done == *length as u64,
            IoOpKind::Write { length, .. } => done == *length,
            IoOpKind::Zero { .. } | IoOpKind::Flush => true,
            IoOpKind::Discard { .. } => {
                // A host that cannot free space keeps it; a discard promises nothing about the
                // content.
                if outcome == Err(Errno::OPNOTSUPP) {
                    outcome = Ok(());
                }
                true
            }
        };
        if outcome.is_ok() && !complete {
            outcome = Err(Errno::IO);
        }
        let is_removed = || self.get(index).is_some_and(|device| device.host.is_removed());
        let result = outcome.map_err(|errno| if is_removed() { DeviceError::Gone } else { device_error(errno) });
        if let Some(device) = self.get_mut(index) {
            device.in_flight = device.in_flight.saturating_sub(1);
            if let (IoOpKind::Flush, Err(error)) = (&kind, result) {
                device.poisoned.get_or_insert(error);
            }
        }
        let buf = match kind {
            IoOpKind::Read { buf, .. } => Some(buf),
            IoOpKind::Write { mut vectors, .. } => {
                if self.spare.len() < KEPT_VECTORS {
                    vectors.clear();
                    self.spare.push(vectors);
                }
                None
            }
            IoOpKind::Zero { .. } | IoOpKind::Flush | IoOpKind::Discard { .. } => None,
        };
        IoDone { id, result, buf }
    }
}

impl Device {
    /// Returns the error of an operation that cannot be started.
    fn check(&self, kind: &IoKind) -> Option<DeviceError> {
        const INVALID: Option<DeviceError> = Some(DeviceError::Failed(Errno::INVAL.raw_os_error()));
        let inside = |offset: u64, length: u64| offset.checked_add(length).is_some_and(|end| end <= self.host.geometry().size);
        match kind {
            IoKind::Read { offset, length, buf } => {
                let fits = *length <= buf.size() && offset.checked_add(*length as u64).is_some_and(|end| i64::try_from(end).is_ok());
                if fits && *length > 0 { None } else { INVALID }
            }
            IoKind::Write { offset, pieces } => {
                let length = total(pieces);
                if length == 0 || !inside(*offset, length) { INVALID } else { self.poisoned }
            }
            IoKind::Flush => self.poisoned,
            IoKind::Zero { offset, length } | IoKind::Discard { offset, length } => {
                if *length == 0 || !inside(*offset, *length) {
                    INVALID
                } else {
                    self.poisoned
                }
            }
        }
    }
}

fn total(pieces: &[BufSlice]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Lists the rest of `pieces` after `done` bytes, as much as one request may carry.
fn fill_vectors(vectors: &mut Vec<libc::iovec>, pieces: &[BufSlice], done: u64) {
    vectors.clear();
    let mut skip = done;
    let mut room = MAX_TRANSFER;
    for piece in pieces {
        let length = piece.len() as u64;
        if skip >= length {
            skip -= length;
            continue;
        }
        let Some(rest) = usize::try_from(skip).ok().and_then(|skip| piece.bytes().get(skip..)) else { return };
        skip = 0;
        let length = rest.len().min(room);
        vectors.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: length });
        room -= length;
        if room == 0 || vectors.len() == MAX_VECTORS {
            return;
        }
    }
}

fn device_error(errno: Errno) -> DeviceError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => DeviceError::Full,
        Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM => DeviceError::Gone,
        other => DeviceError::Failed(other.raw_os_error()),
    }
}
