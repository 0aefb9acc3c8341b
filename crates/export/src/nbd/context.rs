//! Metadata contexts, the subjects of block status requests.
//!
//! `base:allocation` reports holes and data. `qemu:dirty-bitmap:NAME` reports the blocks that may
//! have changed since the older state NAME.

use millpond_block::Since;

use crate::{ExportId, Exports};

use super::wire::extent_flag;

/// Maximum number of contexts that a client may select.
pub(super) const MAX_CONTEXTS: usize = 16;

const ALLOCATION: &str = "base:allocation";
const BITMAP: &str = "qemu:dirty-bitmap:";

/// A selected context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// Number of the context in replies to the client.
    pub(super) id: u32,
    /// The older state to compare with; `None` for `base:allocation`.
    pub(super) since: Option<Since>,
}

impl Context {
    /// Returns the flags of an extent. `set` is the result of the disk's query.
    pub(super) fn flags(self, set: bool) -> u32 {
        match (self.since, set) {
            (None, true) => 0,
            (None, false) => extent_flag::HOLE | extent_flag::ZERO,
            (Some(_), true) => extent_flag::DIRTY,
            (Some(_), false) => 0,
        }
    }
}

/// Calls `visit` once with the name of each context that one of `queries` matches; without queries,
/// with the names of all contexts.
pub(super) fn list(queries: &[&str], export: ExportId, exports: &dyn Exports, visit: &mut dyn FnMut(&str)) {
    let asked = |names: &[&str]| queries.is_empty() || queries.iter().any(|query| names.contains(query));
    if asked(&["base:", ALLOCATION]) {
        visit(ALLOCATION);
    }
    if asked(&["qemu:", BITMAP]) {
        return exports.for_each_state(export, &mut |name, _| visit(&format!("{BITMAP}{name}")));
    }
    for query in queries {
        if matches!(select(query, export, exports), Some(Some(_))) {
            visit(query);
        }
    }
}

/// Returns the context named `query`, in the form of [`Context::since`]; `None` if there is no such
/// context.
pub(super) fn select(query: &str, export: ExportId, exports: &dyn Exports) -> Option<Option<Since>> {
    if query == ALLOCATION {
        return Some(None);
    }
    exports.find_state(export, query.strip_prefix(BITMAP)?).map(Some)
}
