//! INV-CAT-5: the number of units that the catalog reports as unique to a listed snapshot equals
//! the units that no other version reaches, counted from the maps.
//!
//! Not checked: snapshots that clones start from, for which nothing is reported, and the last
//! snapshot of a lineage without a head, for which the report is an estimate when blocks are
//! compressed.

use std::collections::BTreeMap;
use std::rc::Rc;

use millpond_format::{Node, SnapshotId, TreeRoot};

use super::{Auditor, children};
/// Maximum number of snapshots and heads for which the maps are walked; with more, that would take
/// longer than the rest of the audit.
const MOST_VERSIONS: usize = 64;

/// Versions that reach a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    One(usize),
    Several,
}

impl Auditor<'_, '_> {
    /// Compares the reported unique units of snapshots with those that only they reach. To be
    /// called before the findings are taken.
    pub(super) fn compare_unique(&mut self) {
        let catalog = &self.core.catalog;
        let heads = catalog.lineages.values().filter_map(|line| Some((None, line.head?.root)));
        let versions: Vec<(Option<SnapshotId>, TreeRoot)> =
            catalog.snapshots.iter().map(|(id, snapshot)| (Some(*id), snapshot.root)).chain(heads).collect();
        if versions.len() > MOST_VERSIONS {
            return;
        }
        let mut holders: BTreeMap<u64, (u32, Holder)> = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for (number, (_, root)) in versions.iter().enumerate() {
            self.hold(root, number, &mut nodes, &mut holders);
        }
        let mut alone = vec![0u64; versions.len()];
        for (units, holder) in holders.values() {
            if let Holder::One(number) = holder
                && let Some(sum) = alone.get_mut(*number)
            {
                *sum += u64::from(*units);
            }
        }
        for ((id, _), counted) in versions.iter().zip(alone) {
            let Some(id) = id else { continue };
            let listed = self.core.catalog.units_alone(*id);
            if let Some(listed) = listed.filter(|listed| *listed != counted) {
                self.find(format!("snapshot {id} is said to hold {listed} units alone, and holds {counted}"));
            }
        }
    }

    /// Records the blocks of a version.
    fn hold(
        &mut self,
        root: &TreeRoot,
        number: usize,
        nodes: &mut BTreeMap<u64, Option<Rc<Node>>>,
        holders: &mut BTreeMap<u64, (u32, Holder)>,
    ) {
        let mut todo = vec![(root.addr, root.crc, root.height, 0u64)];
        while let Some((addr, crc, height, first)) = todo.pop() {
            if !addr.is_some() || height == 0 {
                continue;
            }
            let level = height - 1;
            let span = 512u64.pow(u32::from(height));
            let node = match nodes.get(&addr.identity()) {
                Some(node) => node.clone(),
                None => {
                    let node = self.node(addr, crc, level, first).map(Rc::new);
                    nodes.insert(addr.identity(), node.clone());
                    node
                }
            };
            // a node that cannot be read is reported elsewhere
            let Some(node) = node else { continue };
            for (child, crc, at) in children(&node, first, span) {
                if level > 0 {
                    todo.push((child, crc, level, at));
                    continue;
                }
                let (_, holder) = holders.entry(child.identity()).or_insert((child.units(), Holder::One(number)));
                if *holder != Holder::One(number) {
                    *holder = Holder::Several;
                }
            }
        }
    }
}
