//! [`DeviceNote`]: where a device was last seen, so that a user can find it.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{DeviceId, MAX_DEVICES};

#[cfg(test)]
mod tests;

/// Maximum bytes of a path and of a serial number; notes with longer ones are left out.
const TEXT_MAX: usize = 255;
/// Maximum notes in a label: one for each member, and one for each replacement.
const NOTES_MAX: usize = 2 * MAX_DEVICES;

/// Path, size and serial number of a device when the pool was last in service. For messages about
/// missing devices only: an import never decides by it.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | device id | 8 | |
/// | size | 8 | bytes |
/// | path | 2 + n | path that it was opened at; empty when unknown |
/// | serial | 2 + n | serial number of the disk; empty when it has none |
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNote {
    /// Identity of the device.
    pub device: DeviceId,
    /// Size in bytes.
    pub size: u64,
    /// Path that it was opened at; empty when unknown.
    pub path: String,
    /// Serial number of the disk; empty when it has none.
    pub serial: String,
}

impl DeviceNote {
    fn bytes(&self) -> usize {
        20 + self.path.len() + self.serial.len()
    }

    /// Returns as many notes as fit into `room` bytes, in order. A note that does not fit is
    /// skipped.
    pub(crate) fn fitting(notes: &[DeviceNote], room: usize) -> Vec<DeviceNote> {
        let mut left = room.saturating_sub(2);
        let fits = |note: &&DeviceNote| {
            let fits = note.bytes() <= left && note.path.len() <= TEXT_MAX && note.serial.len() <= TEXT_MAX;
            left -= if fits { note.bytes() } else { 0 };
            fits
        };
        notes.iter().filter(fits).take(NOTES_MAX).cloned().collect()
    }

    /// Appends notes. An empty list has no bytes, so such a label equals one from before notes
    /// existed.
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

    /// Decodes notes. Zeroes mean an empty list.
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
