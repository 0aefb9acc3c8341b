//! Node numbers. A number is computed from the id of its volume or snapshot, so that no table is
//! needed.

use super::tree::Image;
use super::wire::ROOT;

/// Node of the mounted tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The mount point: one file per volume, and `.snapshots`.
    Root,
    /// `.snapshots`: one directory per volume.
    Snapshots,
    /// `.snapshots/VOL`: one file per snapshot of this volume.
    SnapshotsOf(u32),
    /// A volume or snapshot.
    Image(Image),
}

const SNAPSHOTS: u64 = 2;
/// Kinds of numbered nodes, in the low two bits of a number. The bits above hold the id plus 1, so
/// that the numbers 1 to 3 stay free for the fixed nodes.
const VOLUME: u64 = 0;
const DIRECTORY: u64 = 1;
const SNAPSHOT: u64 = 2;

impl Node {
    /// Returns the node of this number.
    pub fn of(number: u64) -> Option<Node> {
        match number {
            ROOT => return Some(Node::Root),
            SNAPSHOTS => return Some(Node::Snapshots),
            _ => {}
        }
        let id = (number >> 2).checked_sub(1)?;
        match number & 3 {
            VOLUME => Some(Node::Image(Image::Volume(u32::try_from(id).ok()?))),
            DIRECTORY => Some(Node::SnapshotsOf(u32::try_from(id).ok()?)),
            SNAPSHOT => Some(Node::Image(Image::Snapshot(id))),
            _ => None,
        }
    }

    /// Returns the node's number. Ids of volumes and snapshots are never reused, so numbers are not
    /// reused either.
    pub fn number(self) -> u64 {
        // ids of snapshots are counted from 1, and none comes near 2^62
        let numbered = |id: u64, kind: u64| (id.wrapping_add(1) << 2) | kind;
        match self {
            Node::Root => ROOT,
            Node::Snapshots => SNAPSHOTS,
            Node::SnapshotsOf(volume) => numbered(u64::from(volume), DIRECTORY),
            Node::Image(Image::Volume(volume)) => numbered(u64::from(volume), VOLUME),
            Node::Image(Image::Snapshot(snapshot)) => numbered(snapshot, SNAPSHOT),
        }
    }

    /// Returns true for a directory.
    pub fn is_directory(self) -> bool {
        !matches!(self, Node::Image(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_nodes() {
        let images = [Image::Volume(0), Image::Volume(u32::MAX), Image::Snapshot(0), Image::Snapshot(1 << 50)].map(Node::Image);
        let nodes = [Node::Root, Node::Snapshots, Node::SnapshotsOf(0), Node::SnapshotsOf(7)].into_iter().chain(images);
        let mut seen = std::collections::BTreeSet::new();
        for node in nodes {
            assert_eq!(Node::of(node.number()), Some(node));
            assert!(seen.insert(node.number()));
        }
        for number in [0, 3, 7, (u64::from(u32::MAX) + 2) << 2] {
            assert_eq!(Node::of(number), None, "{number}");
        }
    }
}
