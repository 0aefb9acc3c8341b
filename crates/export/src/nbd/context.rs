//! Metadata contexts: what block status is asked about.
//!
//! `base:allocation` tells holes from data. `qemu:dirty-bitmap:NAME` tells what may have changed since the older state NAME.

use millpond_block::Since;

use crate::{ExportId, Exports};

use super::wire::extent_flag;

/// Most contexts that a client may select.
pub(super) const MAX_CONTEXTS: usize = 16;

const ALLOCATION: &str = "base:allocation";
const BITMAP: &str = "qemu:dirty-bitmap:";

/// A selected context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// What it is called towards the client.
    pub(super) id: u32,
    /// `None` for `base:allocation`.
    pub(super) since: Option<Since>,
}

impl Context {
    /// Flags of an extent.
    pub(super) fn flags(self, set: bool) -> u32 {
        match (self.since, set) {
            (None, true) => 0,
            (None, false) => extent_flag::HOLE | extent_flag::ZERO,
            (Some(_), true) => extent_flag::DIRTY,
            (Some(_), false) => 0,
        }
    }
}

/// Calls `visit` once with the name of each context that one of `queries` finds; without any, of all of them.
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

/// The one context that `query` names, as [`Context::since`]; `None` when there is none of that name.
pub(super) fn select(query: &str, export: ExportId, exports: &dyn Exports) -> Option<Option<Since>> {
    if query == ALLOCATION {
        return Some(None);
    }
    exports.find_state(export, query.strip_prefix(BITMAP)?).map(Some)
}
