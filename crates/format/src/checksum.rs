//! CRC-32C (Castagnoli), the one checksum of the format.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A CRC-32C that is counted part by part.
#[derive(Clone, Debug)]
pub struct Running(Digest);

impl Default for Running {
    fn default() -> Self {
        Running(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Running {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes: that of [`crc32c`] over them together.
    pub fn finish(self) -> u32 {
        (self.0.finalize() & 0xffff_ffff) as u32
    }
}
