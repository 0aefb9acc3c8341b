//! [`DeviceNote`]: by what a user finds a device, as it was last seen.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{DeviceId, MAX_DEVICES};

#[cfg(test)]
mod tests;

/// Bytes of a path, and of a serial number, at most: what is longer is left out.
const TEXT_MAX: usize = 255;
/// Notes in a label at most: each member, and the device that takes its place.
const NOTES_MAX: usize = 2 * MAX_DEVICES;

/// How a device looked where the pool was last in service. It decides nothing: it names a device that is missing to whoever looks for it.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | device id | 8 | |
/// | size | 8 | bytes |
/// | path | 2 + n | where it was open; empty when that is not known |
/// | serial | 2 + n | serial number of the disk; empty when it has none |
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNote {
    /// Which device.
    pub device: DeviceId,
    /// Bytes.
    pub size: u64,
    /// Where it was open; empty when that is not known.
    pub path: String,
    /// Serial number of the disk; empty when it has none.
    pub serial: String,
}

impl DeviceNote {
    fn bytes(&self) -> usize {
        20 + self.path.len() + self.serial.len()
    }

    /// As many of some notes as a label has room for, in their order: a long one makes way for those after it.
    pub(crate) fn fitting(notes: &[DeviceNote], room: usize) -> Vec<DeviceNote> {
        let mut left = room.saturating_sub(2);
        let fits = |note: &&DeviceNote| {
            let fits = note.bytes() <= left && note.path.len() <= TEXT_MAX && note.serial.len() <= TEXT_MAX;
            left -= if fits { note.bytes() } else { 0 };
            fits
        };
        notes.iter().filter(fits).take(NOTES_MAX).cloned().collect()
    }

    /// Appends notes. None are no bytes at all: labels without them are as they were before there were any.
    pub(crate) fn encode_all(notes: &[DeviceNote], e: &mut Encoder) {
        if notes.is_empty() {
            return;
        }
        e.u16(u16::try_from(notes.len()).unwrap_or(u16::MAX));
        for note in notes {
            e.u64(note.device.0);
            e.u64(note.size);
            e.string(&note.path);
            e.string(&note.serial);
        }
    }

    /// Reads them: zeroes are none.
    ///
    /// # Errors
    /// [`FormatError`] when they are cut off or out of range.
    pub(crate) fn decode_all(d: &mut Decoder<'_>) -> Result<Vec<DeviceNote>, FormatError> {
        if d.remaining() < 2 {
            return Ok(Vec::new());
        }
        let count = usize::from(d.u16()?);
        if count > NOTES_MAX {
            return Err(FormatError::Field("notes"));
        }
        let note = |d: &mut Decoder<'_>| {
            let note = DeviceNote { device: DeviceId(d.u64()?), size: d.u64()?, path: d.string()?, serial: d.string()? };
            if note.path.len().max(note.serial.len()) > TEXT_MAX { Err(FormatError::Field("notes")) } else { Ok(note) }
        };
        (0..count).map(|_| note(d)).collect()
    }
}
