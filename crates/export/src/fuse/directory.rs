//! Lookups and listings of directories.
//!
//! A listing is sorted by id, and its offsets are ids. So it can be interrupted for any time while
//! volumes and snapshots are created and destroyed, and reports each entry that exists all the time
//! exactly once. READDIRPLUS is not offered: the attributes that it adds help only if the kernel
//! may cache them, and it may not, because they can change at any time.

use zerocopy::IntoBytes;

use super::node::Node;
use super::tree::{Image, Tree};
use super::wire::{Dirent, S_IFDIR, S_IFREG};

/// Directory of snapshots in the mount point. No volume has this name, because volume names do not
/// begin with a dot.
pub(super) const SNAPSHOTS: &str = ".snapshots";
/// Number of offsets before the first id: `.` and `..`, in the mount point also `.snapshots`.
const FIXED: u64 = 3;
/// Upper limit of one answer in bytes. A directory of many thousands of entries is sent in parts,
/// each of which takes about 100 microseconds.
const MOST_BYTES: usize = 16 << 10;
/// Number of entries taken from the tree at a time: as many as fit in an answer, with names of
/// medium length.
const STEP: usize = 128;

/// Returns the node of a name in a directory.
pub(super) fn lookup<T: Tree>(tree: &T, parent: Node, name: &str) -> Option<Node> {
    match parent {
        Node::Root if name == SNAPSHOTS => Some(Node::Snapshots),
        Node::Root => tree.volume_named(name).map(|id| Node::Image(Image::Volume(id))),
        Node::Snapshots => tree.volume_named(name).map(Node::SnapshotsOf),
        Node::SnapshotsOf(volume) => tree.snapshot_named(volume, name).map(|id| Node::Image(Image::Snapshot(id))),
        Node::Image(_) => None,
    }
}

/// Returns the entries of a directory from `offset` on, as many as fit in `size` bytes. The result
/// is empty at the end.
pub(super) fn list<T: Tree>(tree: &T, directory: Node, offset: u64, size: usize) -> Vec<u8> {
    let mut listing = Listing { bytes: Vec::new(), room: size.min(MOST_BYTES) };
    let above = match directory {
        Node::SnapshotsOf(_) => Node::Snapshots,
        _ => Node::Root,
    };
    let fixed = [(".", directory), ("..", above), (SNAPSHOTS, Node::Snapshots)];
    let count = if directory == Node::Root { 3 } else { 2 };
    for (place, (name, node)) in (0u64..).zip(fixed).take(count).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
        // offsets after the last fixed entry are ids
        let next = if place + 1 == count as u64 { FIXED } else { place + 1 };
        if !listing.push(node, next, name) {
            return listing.bytes;
        }
    }
    let mut after = offset.checked_sub(FIXED + 1);
    loop {
        let piece: Vec<(u64, Node, String)> = match directory {
            Node::SnapshotsOf(volume) => {
                let found = tree.snapshots(volume, after, STEP);
                found.into_iter().map(|(id, info)| (id, Node::Image(Image::Snapshot(id)), info.name)).collect()
            }
            Node::Root | Node::Snapshots => {
                let after = after.map(|id| u32::try_from(id).unwrap_or(u32::MAX));
                let node = |id| if directory == Node::Root { Node::Image(Image::Volume(id)) } else { Node::SnapshotsOf(id) };
                tree.volumes(after, STEP).into_iter().map(|(id, info)| (u64::from(id), node(id), info.name)).collect()
            }
            Node::Image(_) => Vec::new(),
        };
        if piece.is_empty() {
            return listing.bytes;
        }
        for (id, node, name) in piece {
            if !listing.push(node, id.saturating_add(FIXED + 1), &name) {
                return listing.bytes;
            }
            after = Some(id);
        }
    }
}

struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// Adds an entry; returns false if it does not fit.
    fn push(&mut self, node: Node, next: u64, name: &str) -> bool {
        let kind = if node.is_directory() { S_IFDIR } else { S_IFREG } >> 12;
        let entry = Dirent { ino: node.number(), off: next, namelen: name.len() as u32, kind };
        let length = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.room {
            return false;
        }
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(end, 0);
        true
    }
}
