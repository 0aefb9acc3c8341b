//! Devices in memory: their operations are carried out when they are submitted.
//!
//! The kernel cannot tell io_uring that a file of tmpfs never waits, so it hands every operation to a worker thread: two changes of context
//! around a copy of 4 KiB. Called directly the copy is all there is, and a read needs no call at all ([`crate::mapping`]). What may take long
//! stays with the ring: giving back the pages of a segment, making it zeros, and very long transfers.

use std::io::IoSlice;

use rustix::io::Errno;

use super::device::Devices;
use super::slots::{IoOp, IoOpKind};

/// Bytes of one transfer that the thread does itself at most: the longest batch of the log and its header.
const MAX_TRANSFER: u64 = 2 << 20;
/// Longest read from the mapping. For longer ones the call is little beside the copy, and what copies whole segments reads the holes among
/// them, too: touching a hole takes a page for it, reading it by a call does not.
const MAX_MAPPED: usize = 128 << 10;
/// Pieces of a write per call; they are listed on the stack.
const VECTORS: usize = 64;

impl Devices {
    /// True when an operation is to be carried out at once.
    pub(super) fn is_instant(&self, op: &IoOp) -> bool {
        let short = match &op.kind {
            IoOpKind::Read { length, .. } => *length as u64 <= MAX_TRANSFER,
            IoOpKind::Write { length, .. } => *length <= MAX_TRANSFER && !op.long,
            IoOpKind::Flush => true,
            IoOpKind::Zero { .. } | IoOpKind::Discard { .. } => false,
        };
        short && self.get(op.device).is_some_and(|device| device.instant)
    }

    /// Carries an operation out; gives the last result as the ring would: bytes, or an errno below zero.
    pub(super) fn carry_out(&self, op: &mut IoOp) -> i32 {
        loop {
            let result = match self.attempt(op) {
                Ok(moved) => i32::try_from(moved).unwrap_or(i32::MAX),
                Err(errno) => -errno.raw_os_error(),
            };
            if !self.advance(op, result) {
                return result;
            }
        }
    }

    fn attempt(&self, op: &mut IoOp) -> Result<usize, Errno> {
        let device = self.get(op.device).ok_or(Errno::BADF)?;
        let file = &device.host;
        let done = op.done;
        match &mut op.kind {
            IoOpKind::Read { offset, length, buf } => {
                let from = usize::try_from(done).map_err(|_| Errno::INVAL)?;
                let rest = buf.bytes_mut().get_mut(from..*length).ok_or(Errno::INVAL)?;
                let at = *offset + done;
                if rest.len() <= MAX_MAPPED && device.mapping.as_ref().is_some_and(|mapping| mapping.read(at, rest)) {
                    return Ok(rest.len());
                }
                rustix::io::pread(file, rest, at)
            }
            IoOpKind::Write { offset, pieces, .. } => {
                let mut vectors = [IoSlice::new(&[]); VECTORS];
                let mut listed = 0;
                let mut skip = done;
                for piece in pieces.iter() {
                    let length = piece.len() as u64;
                    if skip >= length {
                        skip -= length;
                        continue;
                    }
                    let Some(vector) = vectors.get_mut(listed) else { break };
                    let from = usize::try_from(skip).map_err(|_| Errno::INVAL)?;
                    *vector = IoSlice::new(piece.bytes().get(from..).ok_or(Errno::INVAL)?);
                    listed += 1;
                    skip = 0;
                }
                rustix::io::pwritev(file, vectors.get(..listed).unwrap_or_default(), *offset + done)
            }
            IoOpKind::Flush => rustix::fs::fdatasync(file).map(|()| 0),
            IoOpKind::Zero { .. } | IoOpKind::Discard { .. } => Err(Errno::INVAL),
        }
    }
}
