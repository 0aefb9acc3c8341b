//! What a node number means. It follows from what it names, so that there is nothing to remember and nothing to forget.

use super::tree::Image;
use super::wire::ROOT;

/// Something in the mounted tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The mount point: one file per volume, and `.snapshots`.
    Root,
    /// `.snapshots`: one directory per volume.
    Snapshots,
    /// `.snapshots/VOL`: one file per snapshot.
    SnapshotsOf(u32),
    /// A volume or snapshot.
    Image(Image),
}

const SNAPSHOTS: u64 = 2;
/// Kinds of numbered nodes, in the low two bits; above them the id and 1, so that 1 to 3 stay free for the fixed nodes.
const VOLUME: u64 = 0;
const DIRECTORY: u64 = 1;
const SNAPSHOT: u64 = 2;

impl Node {
    /// The node of this number.
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

    /// Its number. Ids of volumes and snapshots are never used again, so neither are these.
    pub fn number(self) -> u64 {
        // ids of snapshots are counted from 1: none comes near 2^62
        let numbered = |id: u64, kind: u64| (id.wrapping_add(1) << 2) | kind;
        match self {
            Node::Root => ROOT,
            Node::Snapshots => SNAPSHOTS,
            Node::SnapshotsOf(volume) => numbered(u64::from(volume), DIRECTORY),
            Node::Image(Image::Volume(volume)) => numbered(u64::from(volume), VOLUME),
            Node::Image(Image::Snapshot(snapshot)) => numbered(snapshot, SNAPSHOT),
        }
    }

    /// Whether it is a directory.
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
