//! Attributes of nodes.

use super::node::Node;
use super::tree::{ImageInfo, Tree};
use super::wire::{Attr, S_IFDIR, S_IFREG};

/// Preferred I/O size that `stat` reports, in bytes.
const BLKSIZE: u32 = 4096;

/// Owner and permissions of all files and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permissions of writable files; only the read and write bits of the lower nine count.
    /// Read-only files keep the read bits. Users who may read files may also enter and list
    /// directories.
    pub mode: u16,
}

impl Owner {
    fn of_files(self, read_only: bool) -> u32 {
        u32::from(self.mode) & if read_only { 0o444 } else { 0o666 }
    }

    fn of_directories(self) -> u32 {
        let readers = self.of_files(true);
        // No user can create or remove files in directories. The owner's write bit is set because
        // users expect it.
        readers | readers >> 2 | 0o200 & u32::from(self.mode)
    }
}

/// Returns the attributes of a node; `None` if the node does not exist any more.
pub(super) fn attributes<T: Tree>(tree: &T, node: Node, owner: Owner) -> Option<Attr> {
    match node {
        Node::Root | Node::Snapshots => {}
        Node::SnapshotsOf(volume) => drop(tree.extent(super::tree::Image::Volume(volume))?),
        Node::Image(image) => return Some(of_image(tree, node, &tree.image(image)?, owner)),
    }
    let attr = Attr { mode: S_IFDIR | owner.of_directories(), nlink: 2, ..Attr::default() };
    Some(finish(attr, node, owner, tree.now()))
}

fn of_image<T: Tree>(tree: &T, node: Node, info: &ImageInfo, owner: Owner) -> Attr {
    let mode = S_IFREG | owner.of_files(info.read_only);
    let attr = Attr { size: info.size, blocks: info.allocated.div_ceil(512), mode, nlink: 1, ..Attr::default() };
    // A writable image may have changed at any moment, through any export. Tools that copy changed
    // files by their time of change must copy it.
    let changed = if info.read_only { info.created } else { tree.now() };
    finish(attr, node, owner, changed)
}

fn finish(attr: Attr, node: Node, owner: Owner, millis: u64) -> Attr {
    let (seconds, nanos) = (millis / 1000, (millis % 1000) as u32 * 1_000_000);
    Attr {
        ino: node.number(),
        atime: seconds,
        mtime: seconds,
        ctime: seconds,
        atimensec: nanos,
        mtimensec: nanos,
        ctimensec: nanos,
        uid: owner.uid,
        gid: owner.gid,
        blksize: BLKSIZE,
        ..attr
    }
}
