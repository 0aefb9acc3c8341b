//! Comparisons of two snapshots: a comparison applied to the older one must give the newer one.

use millpond_engine::{DiffExtent, SnapshotId};

use super::history::{Value, ZERO};
use super::{Oracle, Verdict, broken};

impl Oracle {
    /// Judges a comparison of `newer` with `older`, or with an empty volume.
    ///
    /// # Errors
    /// If a difference is missing, or an extent is wrong.
    pub fn judge_diff(&self, older: Option<SnapshotId>, newer: SnapshotId, extents: &[DiffExtent]) -> Verdict {
        let Some(new) = self.snapshots.get(&newer) else { return Ok(()) };
        let old = older.and_then(|id| self.snapshots.get(&id));
        let mut covered: Vec<Option<bool>> = vec![None; new.cells.len()];
        for extent in extents {
            let (first, count) = (self.grid.at(extent.offset) as usize, self.grid.cells(extent.length) as usize);
            let Some(range) = covered.get_mut(first..first.saturating_add(count)) else {
                return broken(format!("difference of {newer}: {extent:?} is beyond the end, {} bytes", new.size()));
            };
            for slot in range {
                if slot.replace(extent.data).is_some() {
                    return broken(format!("difference of {newer}: {extent:?} overlaps another"));
                }
            }
        }
        for (cell, cover) in covered.iter().enumerate() {
            let Some(value) = new.value(cell) else { continue };
            let at = self.grid.start(cell as u64);
            let before: Option<Value> = match old {
                Some(old) if cell < old.cells.len() => old.value(cell),
                _ => Some(ZERO),
            };
            if *cover == Some(false) && value != ZERO {
                return broken(format!("difference of {newer} to {older:?}: byte {at} is called zero and is op {value}"));
            }
            if cover.is_none() && before.is_some_and(|before| before != value) {
                return broken(format!(
                    "difference of {newer} to {older:?}: byte {at} differs (op {before:?}, now op {value}) and is not in it"
                ));
            }
        }
        Ok(())
    }
}
