//! Files in memory: their operations are carried out when they are submitted.
//!
//! io_uring cannot know that a file in tmpfs never waits, so the kernel passes every operation to a
//! worker thread: two context switches around a copy of 4 KiB. A direct call only copies, and a
//! read needs no call at all ([`crate::mapping`]). Operations that may take long stay with the
//! ring: discarding or zeroing a segment, and very long transfers.

use std::io::IoSlice;

use rustix::io::Errno;

use super::device::Devices;
use super::slots::{IoOp, IoOpKind};

/// Maximum bytes of a transfer that this thread does itself: the longest batch of the log with its
/// header.
const MAX_TRANSFER: u64 = 2 << 20;
/// Longest read from the mapping. For longer ones the system call costs little compared with the
/// copy. Also, whole segments are copied with their holes: access to a hole in a mapping allocates
/// a page, a read call does not.
const MAX_MAPPED: usize = 128 << 10;
/// Maximum pieces of a write per call; the list of them is on the stack.
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

    /// Carries an operation out. Returns the last result as the ring would: bytes, or a negative
    /// errno.
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
