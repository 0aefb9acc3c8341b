//! Formats of disk images, by name and by magic bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millpond_api::failure::{Failure, Outcome};

/// Format of a disk image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Raw bytes of the disk, possibly sparse.
    Raw,
    /// QEMU.
    Qcow2,
    /// VMware.
    Vmdk,
    /// Hyper-V.
    Vhdx,
    /// VirtualBox.
    Vdi,
    /// Virtual PC and Azure; QEMU's name is vpc.
    Vhd,
    /// QEMU, before 2008.
    Qcow,
    /// QEMU, used for a short time.
    Qed,
    /// Parallels.
    Parallels,
}

/// Bytes at the start of a file that are searched for magic bytes.
const HEAD: usize = 1024;

impl Format {
    const ALL: [Format; 9] =
        [Format::Raw, Format::Qcow2, Format::Vmdk, Format::Vhdx, Format::Vdi, Format::Vhd, Format::Qcow, Format::Qed, Format::Parallels];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vhdx => "vhdx",
            Format::Vdi => "vdi",
            Format::Vhd => "vhd",
            Format::Qcow => "qcow",
            Format::Qed => "qed",
            Format::Parallels => "parallels",
        }
    }

    /// Name of QEMU's block driver.
    pub fn driver(self) -> &'static str {
        if self == Format::Vhd { "vpc" } else { self.name() }
    }

    /// Parses the name of a format, ours or QEMU's.
    ///
    /// # Errors
    /// Wrong usage if it is unknown.
    pub fn of_word(word: &str) -> Outcome<Format> {
        let found = Format::ALL.into_iter().find(|format| format.name() == word || format.driver() == word);
        let known = || Format::ALL.map(Format::name).join(", ");
        found.ok_or_else(|| Failure::usage(format!("'{word}' is not a format of images; choose from {}", known())))
    }

    /// Returns the format that the extension of a file name stands for.
    pub fn of_extension(path: &Path) -> Option<Format> {
        path.extension().and_then(|end| end.to_str()).and_then(|end| Format::of_word(end).ok())
    }

    /// Detects the format of a file by its first bytes; raw if no magic matches.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(file: &File, path: &Path) -> Outcome<Format> {
        let mut head = [0; HEAD];
        let mut filled = 0;
        while let Some(rest) = head.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(e) => return Err(Failure::failed(format!("cannot read {}: {e}; check the file", path.display()))),
            }
        }
        Ok(Format::of_head(&head))
    }

    /// Detects the format by the first bytes of a file; raw if no magic matches.
    pub fn of_head(head: &[u8]) -> Format {
        let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
        if at(0, b"QFI\xfb") {
            // version 1 of the magic is the older format qcow
            return if at(4, &[0, 0, 0, 1]) { Format::Qcow } else { Format::Qcow2 };
        }
        let marks: [(usize, &[u8], Format); 8] = [
            (0, b"KDMV", Format::Vmdk),
            (0, b"COWD", Format::Vmdk),
            (0, b"# Disk DescriptorFile", Format::Vmdk),
            (0, b"vhdxfile", Format::Vhdx),
            (64, &[0x7f, 0x10, 0xda, 0xbe], Format::Vdi),
            (0, b"conectix", Format::Vhd),
            (0, b"QED\0", Format::Qed),
            (0, b"WithouFreSpacExt", Format::Parallels),
        ];
        marks.into_iter().find(|(offset, magic, _)| at(*offset, magic)).map_or(Format::Raw, |(.., format)| format)
    }
}
