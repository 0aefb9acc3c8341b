//! A device in memory, for tests: executes operations at once, and tests can inspect its bytes.

use std::collections::BTreeMap;

use millpond_block::{DeviceError, DeviceGeometry, Io, IoDone, IoKind, PAGE};

/// Grain of the map of written bytes.
const GRAIN: u64 = PAGE as u64;
/// The errno of invalid arguments (EINVAL).
const INVALID: i32 = 22;

/// A sparse device of a fixed size. Bytes that were never written, or were discarded, read as
/// zeroes and take no memory.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    geometry: DeviceGeometry,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl MemoryDevice {
    /// Creates an empty device of `size` bytes, rounded down to 4096, with 512-byte logical
    /// sectors.
    pub fn new(size: u64) -> MemoryDevice {
        let geometry = DeviceGeometry { size: size / GRAIN * GRAIN, logical_sector: 512, physical_sector: 4096 };
        MemoryDevice { geometry, pages: BTreeMap::new() }
    }

    /// Size and sectors.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// Executes an operation as a ring would: reads past the end return zeroes, writes and discards
    /// there fail. The device index in the operation is ignored.
    pub fn execute(&mut self, io: Io) -> IoDone {
        let Io { id, kind, .. } = io;
        match kind {
            IoKind::Read { offset, length, mut buf } => {
                let result = match buf.bytes_mut().get_mut(..length).filter(|_| length > 0) {
                    Some(target) => {
                        self.read(offset, target);
                        Ok(())
                    }
                    None => Err(DeviceError::Failed(INVALID)),
                };
                IoDone { id, result, buf: Some(buf) }
            }
            IoKind::Write { offset, pieces } => {
                let length = pieces.iter().map(|piece| piece.len() as u64).sum();
                let result = self.check(offset, length).map(|()| {
                    let mut at = offset;
                    for piece in &pieces {
                        self.write(at, piece.bytes());
                        at += piece.len() as u64;
                    }
                });
                IoDone { id, result, buf: None }
            }
            IoKind::Zero { offset, length } => {
                let zeros = |length: u64| vec![0; usize::try_from(length).unwrap_or(0)];
                let result = self.check(offset, length).map(|()| self.write(offset, &zeros(length)));
                IoDone { id, result, buf: None }
            }
            IoKind::Flush => IoDone { id, result: Ok(()), buf: None },
            IoKind::Discard { offset, length } => {
                let result = self.check(offset, length).map(|()| self.discard(offset, length));
                IoDone { id, result, buf: None }
            }
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.geometry.size);
        if inside && length > 0 { Ok(()) } else { Err(DeviceError::Failed(INVALID)) }
    }

    /// Reads bytes at any position; zeroes where nothing was written.
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        target.fill(0);
        let end = offset.saturating_add(target.len() as u64);
        for (&page, bytes) in self.pages.range(offset / GRAIN..end.div_ceil(GRAIN)) {
            let start = page * GRAIN;
            let from = offset.saturating_sub(start) as usize;
            let at = start.saturating_sub(offset) as usize;
            if let (Some(target), Some(source)) = (target.get_mut(at..), bytes.get(from..)) {
                let length = target.len().min(source.len());
                if let (Some(target), Some(source)) = (target.get_mut(..length), source.get(..length)) {
                    target.copy_from_slice(source);
                }
            }
        }
    }

    /// Writes bytes at any position, also to damage the content on purpose. Bytes beyond the end
    /// are dropped.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() && at < self.geometry.size {
            let from = (at % GRAIN) as usize;
            let (now, later) = rest.split_at(rest.len().min(PAGE - from));
            let page = self.pages.entry(at / GRAIN).or_insert_with(|| Box::new([0; PAGE]));
            if let Some(target) = page.get_mut(from..from + now.len()) {
                target.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    fn discard(&mut self, offset: u64, length: u64) {
        let (first, end) = (offset.div_ceil(GRAIN), (offset + length) / GRAIN);
        if first < end {
            let mut tail = self.pages.split_off(&first);
            self.pages.append(&mut tail.split_off(&end));
        }
    }

    /// Bytes of memory that the content takes.
    pub fn resident(&self) -> u64 {
        self.pages.len() as u64 * GRAIN
    }
}

#[cfg(test)]
mod tests;
