//! A directory of images in memory.

use std::collections::BTreeMap;

use millpond_block::{Answer, Completion, Disk, Payload, Query, Request, SectorProfile, Tag};

use super::MemoryDisk;
use crate::fuse::{Image, ImageInfo, Space, Tree};

/// Volumes and snapshots in memory, which tests can add and remove.
#[derive(Default)]
pub struct MemoryTree {
    /// Volumes by id.
    pub volumes: BTreeMap<u32, (String, MemoryDisk)>,
    /// Snapshots by id, with the id of their volume.
    pub snapshots: BTreeMap<u64, (u32, String, MemoryDisk)>,
    /// Time of the clock in milliseconds.
    pub now: u64,
}

/// Makes a disk for [`MemoryTree`].
fn disk(size: usize) -> MemoryDisk {
    MemoryDisk::new(size, SectorProfile::S512e).with_bytes()
}

impl MemoryTree {
    /// Adds a volume of zeroes.
    pub fn add_volume(&mut self, id: u32, name: &str, size: usize) -> &mut MemoryDisk {
        self.volumes.insert(id, (name.to_owned(), disk(size)));
        &mut self.volumes.get_mut(&id).expect("just put there").1
    }

    /// Adds a snapshot with the present content of a volume.
    pub fn add_snapshot(&mut self, id: u64, volume: u32, name: &str) {
        let bytes = self.volumes.get(&volume).map(|(_, disk)| disk.bytes().to_vec()).unwrap_or_default();
        let disk = disk(bytes.len()).with_content(bytes).with_read_only(true);
        self.snapshots.insert(id, (volume, name.to_owned(), disk));
    }

    /// Returns the disk of an image.
    pub fn disk(&self, image: Image) -> Option<&MemoryDisk> {
        match image {
            Image::Volume(id) => self.volumes.get(&id).map(|(_, disk)| disk),
            Image::Snapshot(id) => self.snapshots.get(&id).map(|(_, _, disk)| disk),
        }
    }

    fn disk_mut(&mut self, image: Image) -> &mut MemoryDisk {
        let found = match image {
            Image::Volume(id) => self.volumes.get_mut(&id).map(|(_, disk)| disk),
            Image::Snapshot(id) => self.snapshots.get_mut(&id).map(|(_, _, disk)| disk),
        };
        found.expect("only what is there is asked")
    }

    fn disks(&mut self) -> impl Iterator<Item = &mut MemoryDisk> {
        self.volumes.values_mut().map(|(_, disk)| disk).chain(self.snapshots.values_mut().map(|(_, _, disk)| disk))
    }

    /// Takes the next answer to a request.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        self.disks().find_map(MemoryDisk::pop_completion)
    }

    /// Takes the next answer to a query.
    pub fn pop_answer(&mut self) -> Option<Answer> {
        self.disks().find_map(MemoryDisk::pop_answer)
    }

    fn info(name: &str, disk: &MemoryDisk) -> ImageInfo {
        let allocated = 4096 * disk.bytes().chunks(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count() as u64;
        let (size, read_only) = (disk.geometry().size, disk.features().read_only);
        ImageInfo { name: name.to_owned(), size, allocated, created: 5_000, read_only }
    }
}

impl Tree for MemoryTree {
    fn now(&self) -> u64 {
        self.now
    }

    fn nanos(&self) -> u64 {
        self.now * 1_000_000
    }

    fn space(&self) -> Space {
        Space { size: 1 << 30, free: 1 << 29 }
    }

    fn volume_named(&self, name: &str) -> Option<u32> {
        self.volumes.iter().find(|(_, (known, _))| known == name).map(|(id, _)| *id)
    }

    fn snapshot_named(&self, volume: u32, name: &str) -> Option<u64> {
        self.snapshots.iter().find(|(_, (of, known, _))| *of == volume && known == name).map(|(id, _)| *id)
    }

    fn image(&self, image: Image) -> Option<ImageInfo> {
        match image {
            Image::Volume(id) => self.volumes.get(&id).map(|(name, disk)| MemoryTree::info(name, disk)),
            Image::Snapshot(id) => self.snapshots.get(&id).map(|(_, name, disk)| MemoryTree::info(name, disk)),
        }
    }

    fn extent(&self, image: Image) -> Option<(u64, bool)> {
        self.disk(image).map(|disk| (disk.geometry().size, disk.features().read_only))
    }

    fn volumes(&self, after: Option<u32>, most: usize) -> Vec<(u32, ImageInfo)> {
        let later = self.volumes.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        later.take(most).map(|(id, (name, disk))| (*id, MemoryTree::info(name, disk))).collect()
    }

    fn snapshots(&self, volume: u32, after: Option<u64>, most: usize) -> Vec<(u64, ImageInfo)> {
        let later = self.snapshots.iter().filter(|(id, (of, _, _))| *of == volume && after.is_none_or(|after| **id > after));
        later.take(most).map(|(id, (_, name, disk))| (*id, MemoryTree::info(name, disk))).collect()
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        self.disks().next().is_none_or(|disk| disk.take_room(bytes))
    }

    fn submit(&mut self, image: Image, tag: Tag, request: Request, payload: Payload<'_>) {
        self.disk_mut(image).submit(tag, request, payload);
    }

    fn query(&mut self, image: Image, tag: Tag, query: Query) {
        self.disk_mut(image).query(tag, query);
    }
}
