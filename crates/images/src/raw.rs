//! Raw images: files, possibly sparse, and block devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use millpond_api::failure::{Failure, Outcome};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::source::{Image, Kind, Run, Source};

/// Opens an image for reading and checks its type. The open does not block, because a pipe might
/// never have a writer.
///
/// # Errors
/// When it is neither a file nor a block device, or cannot be opened.
pub fn open_file(path: &Path) -> Outcome<File> {
    let wrong = |e: io::Error| Failure::failed(format!("cannot open {}: {e}; check the path", path.display()));
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(wrong)?;
    let kind = file.metadata().map_err(wrong)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::failed(format!("{} is neither a file nor a block device; give an image", path.display())));
    }
    Ok(file)
}

/// A raw image.
pub struct RawImage {
    /// Shared by readers, which use positioned reads only.
    file: Arc<File>,
    size: u64,
}

impl RawImage {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(path: &Path) -> Outcome<RawImage> {
        let file = open_file(path)?;
        // The metadata of a block device has no size.
        let size = seek(&file, SeekFrom::End(0)).map_err(|e| Failure::failed(format!("cannot measure {}: {e}", path.display())))?;
        Ok(RawImage { file: Arc::new(file), size })
    }
}

impl Image for RawImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(RawSource { file: Arc::clone(&self.file), size: self.size }))
    }
}

struct RawSource {
    file: Arc<File>,
    size: u64,
}

impl Source for RawSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let data = match seek(&*self.file, SeekFrom::Data(offset)) {
            Ok(data) => data.clamp(offset, offset + length),
            // no data between `offset` and the end
            Err(Errno::NXIO) => offset + length,
            // `SEEK_DATA` is not supported: a device, or a file system without holes
            Err(_) => return Ok(vec![Run { offset, length, kind: Kind::Data }]),
        };
        if data > offset {
            return Ok(vec![Run { offset, length: data - offset, kind: Kind::Zero }]);
        }
        let end = seek(&*self.file, SeekFrom::Hole(offset)).unwrap_or(offset + length).clamp(offset + 1, offset + length);
        Ok(vec![Run { offset, length: end - offset, kind: Kind::Data }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}
