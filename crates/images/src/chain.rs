//! The backing chain of an image: the image, its backing file, and so on down to the base. A file
//! that an image names is opened only after its location and kind were checked: a hostile image
//! could name any file that the importing user may read.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use millpond_api::failure::{Failure, Outcome};

use super::format::Format;
use super::qcow2::Header;
use super::raw::open_file;
use super::whole;

/// Maximum number of layers. QEMU opens no more than a few hundred either.
const MAX_LAYERS: usize = 200;

/// One file of a backing chain.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// qcow2 header; `None` for other formats.
    pub header: Option<Header>,
    /// External data file of a qcow2 image.
    pub data_file: Option<PathBuf>,
}

/// Returns the layers of an image, the base first. `follow` allows files outside the image's
/// directory.
///
/// # Errors
/// When a file is missing, invalid, occurs twice in the chain, or lies outside the image's
/// directory without `follow`.
pub fn walk(path: &Path, format: Option<Format>, follow: bool) -> Outcome<Vec<Layer>> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut seen = BTreeSet::new();
    let home = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let mut next = Some((path.to_owned(), format));
    while let Some((path, format)) = next.take() {
        let file = open_file(&path)?;
        let meta = file.metadata().map_err(|e| Failure::failed(format!("cannot open {}: {e}", path.display())))?;
        if !seen.insert((meta.dev(), meta.ino())) {
            return Err(refused(&path, "its backing files form a cycle; give an image with a correct chain"));
        }
        if layers.len() >= MAX_LAYERS {
            return Err(refused(&path, &format!("its backing chain has more than {MAX_LAYERS} images; merge some with 'qemu-img commit'")));
        }
        let layer = look(path, &file, format, &home, follow)?;
        if let Some(name) = layer.header.as_ref().and_then(|header| header.backing.clone()) {
            let below = beside(&layer.path, &name, &home, follow)?;
            let format = layer.header.as_ref().and_then(|header| header.backing_format.as_deref());
            let format = format.map(Format::of_word).transpose();
            let format =
                format.map_err(|_| refused(&layer.path, "the format of its backing file is not known; see 'qemu-img rebase -u -F'"))?;
            next = Some((below, format));
        }
        layers.push(layer);
    }
    layers.reverse();
    Ok(layers)
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::failed(format!("cannot import {}: {why}", path.display()))
}

fn look(path: PathBuf, file: &File, given: Option<Format>, home: &Path, follow: bool) -> Outcome<Layer> {
    let format = match given {
        Some(format) => format,
        None => Format::of_file(file, &path)?,
    };
    let mut layer = Layer { path, format, header: None, data_file: None };
    let cut = |e| refused(&layer.path, &format!("{e}; copy all of it"));
    if format != Format::Qcow2 {
        whole::check(file, format).map_err(cut)?;
    }
    if format == Format::Vmdk {
        extents(&layer.path, file, home, follow)?;
    }
    if matches!(format, Format::Qcow | Format::Qed) {
        // Their backing file could be any file, and the formats are obsolete.
        let why = format!("{} is read by QEMU alone; convert it with 'qemu-img convert -O qcow2' first", format.name());
        return Err(refused(&layer.path, &why));
    }
    if format != Format::Qcow2 {
        return Ok(layer);
    }
    let found = Format::of_file(file, &layer.path)?;
    if found != Format::Qcow2 {
        return Err(refused(&layer.path, &format!("it is not qcow2 but looks {}; give its format with -f", found.name())));
    }
    let header = Header::read(file).map_err(|e| refused(&layer.path, &format!("{e}; check it with 'qemu-img check'")))?;
    whole::check(file, format).map_err(|e| refused(&layer.path, &format!("{e}; copy all of it")))?;
    if header.encrypted {
        return Err(refused(&layer.path, "it is encrypted; decrypt it with 'qemu-img convert' first"));
    }
    if let Some(name) = &header.data_file {
        if name.is_empty() {
            return Err(refused(
                &layer.path,
                "its data is in another file that it does not name; convert it with 'qemu-img convert' first",
            ));
        }
        let data = beside(&layer.path, name, home, follow)?;
        open_file(&data)?;
        layer.data_file = Some(data);
    }
    layer.header = Some(header);
    Ok(layer)
}

/// Resolves a file name from an image, relative to the image. The file must lie in or below the
/// directory of the imported image.
fn beside(image: &Path, name: &str, home: &Path, follow: bool) -> Outcome<PathBuf> {
    let name = name.strip_prefix("file:").unwrap_or(name);
    let scheme = name.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
    let dir = image.parent().unwrap_or(Path::new("."));
    let path = dir.join(name);
    if scheme && !path.exists() {
        return Err(refused(image, &format!("its backing file '{name}' is not a file; copy it with 'qemu-img convert' first")));
    }
    if !path.exists() {
        // Proxmox VE activates the logical volumes of a chain only while its guest runs.
        let lvm = "activate the logical volumes of the chain with 'lvchange -ay'";
        let next = if path.starts_with("/dev") { lvm } else { "copy that file too" };
        return Err(refused(image, &format!("its backing file {} is missing; {next}", path.display())));
    }
    if follow || lies_in(&path, home, is_device) {
        return Ok(path);
    }
    let why = format!("its backing file {} is outside its own directory; give --follow if you trust the image", path.display());
    Err(refused(image, &why))
}

/// Whether a file lies in a directory or below it. Symbolic links are resolved, except links to
/// devices inside a directory of devices: logical volumes are `/dev/VG/LV -> ../dm-N`, and only
/// root creates links there.
fn lies_in(path: &Path, home: &Path, is_device: impl Fn(&Path) -> bool) -> bool {
    let (Ok(real), Ok(real_home)) = (path.canonicalize(), home.canonicalize()) else { return false };
    if real.starts_with(&real_home) {
        return true;
    }
    // the link itself lies in the directory, under a plain name
    let (Some(dir), Some(Component::Normal(_))) = (path.parent(), path.components().next_back()) else { return false };
    let link_is_there = dir.canonicalize().is_ok_and(|dir| dir == real_home);
    link_is_there && is_device(&real_home) && is_device(&real)
}

/// Whether a resolved path is a block device or directory below `/dev`.
fn is_device(real: &Path) -> bool {
    let kind = real.metadata().map(|meta| meta.file_type());
    real.starts_with("/dev") && kind.is_ok_and(|kind| kind.is_block_device() || kind.is_dir())
}

/// Checks the files that a VMDK descriptor in the first 64 KiB names. As with backing files, a
/// hostile descriptor could name any file.
fn extents(path: &Path, file: &File, home: &Path, follow: bool) -> Outcome {
    use std::os::unix::fs::FileExt;
    let mut head = vec![0; 64 << 10];
    let length = file.read_at(&mut head, 0).map_err(|e| refused(path, &e.to_string()))?;
    head.truncate(length);
    // The descriptor of a sparse extent with data describes the extent itself, maybe by an old
    // name; its names are ignored.
    let described = !head.starts_with(b"KDMV") || head.get(12..20) == Some(&[0; 8]);
    let text = String::from_utf8_lossy(&head);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let sectors = words.get(1).and_then(|word| word.parse::<u64>().ok());
        let sectors = sectors.filter(|_| described && matches!(words.first(), Some(&("RW" | "RDONLY"))));
        let parent = line.trim_start().starts_with("parentFileNameHint");
        let Some(name) = line.split('"').nth(1).filter(|name| (sectors.is_some() || parent) && !name.is_empty()) else { continue };
        if parent {
            return Err(refused(path, "it has a parent VMDK; merge them with 'qemu-img convert' first"));
        }
        let found = beside(path, name, home, follow)?;
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !plain && !follow {
            return Err(refused(path, &format!("it names {}; give --follow if you trust the image", found.display())));
        }
        let cut = |e| refused(path, &format!("{e}; copy all of it"));
        let part = open_file(&found)?;
        match words.get(2) {
            Some(&"FLAT") => {
                let skipped = words.last().and_then(|word| word.parse().ok()).unwrap_or(0);
                whole::part(&part, sectors.unwrap_or(0), skipped).map_err(cut)?;
            }
            _ => whole::check(&part, Format::Vmdk).map_err(cut)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
