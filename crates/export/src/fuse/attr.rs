//! Attributes of nodes.

use super::node::Node;
use super::tree::{ImageInfo, Tree};
use super::wire::{Attr, S_IFDIR, S_IFREG};

/// What `stat` names as the best size of a request, in bytes.
const BLKSIZE: u32 = 4096;

/// To whom everything belongs, and what they and others may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions of files that can be written, of the lower nine bits those for reading and writing. Others have those for reading; who may read a
    /// file may enter and list directories.
    pub mode: u16,
}

impl Owner {
    fn of_files(self, read_only: bool) -> u32 {
        u32::from(self.mode) & if read_only { 0o444 } else { 0o666 }
    }

    fn of_directories(self) -> u32 {
        let readers = self.of_files(true);
        // Nothing is made or removed in them, whoever asks; the owner's bit is what people expect to see.
        readers | readers >> 2 | 0o200 & u32::from(self.mode)
    }
}

/// What is known of a node; `None` when it is gone.
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
    // What can be written may have changed at any moment, through whichever export: whoever copies by time of change must copy it.
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
