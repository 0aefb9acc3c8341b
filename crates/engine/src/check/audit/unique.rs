//! INV-CAT-5: what a listed snapshot is said to hold alone is what no other version reaches, counted from the maps.
//!
//! Left out are snapshots that clones start from, for which nothing is said, and the last one of a line without a head, for which an estimate is told
//! where blocks are compressed.

use std::collections::BTreeMap;
use std::rc::Rc;

use millpond_format::{Node, SnapshotId, TreeRoot};

use super::{Auditor, children};
/// Snapshots and heads in all beyond which the maps are not walked for each: that would take longer than everything else.
const MOST_VERSIONS: usize = 64;

/// Who reaches a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    One(usize),
    Several,
}

impl Auditor<'_, '_> {
    /// Compares what snapshots are said to hold alone with what only they reach. To be called before the findings are taken.
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
            let told = self.core.catalog.units_alone(*id);
            if let Some(told) = told.filter(|told| *told != counted) {
                self.find(format!("snapshot {id} is said to hold {told} units alone, and holds {counted}"));
            }
        }
    }

    /// Notes the blocks of a version.
    fn hold(
        &mut self,
        root: &TreeRoot,
        number: usize,
        nodes: &mut BTreeMap<u64, Option<Rc<Node>>>,
        holders: &mut BTreeMap<u64, (u32, Holder)>,
    ) {
        let mut todo = vec![(root.addr, root.crc, root.height, 0u64)];
        while let Some((addr, crc, height, first)) = todo.pop() {
            if addr.is_hole() || height == 0 {
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
            // one that cannot be read is a finding of its own
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
