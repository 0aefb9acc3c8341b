//! Exports by name, as a protocol server looks them up.

use millpond_block::{Features, Geometry, Since};

/// Id of an export, chosen by the loop that serves it. A session returns it unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u64);

/// One export, as it is described to a client during the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Returned when a client chooses this export.
    pub id: ExportId,
    /// Name that clients request; at most 4096 bytes.
    pub name: String,
    /// Description for people; may be empty; at most 4096 bytes.
    pub description: String,
    /// Current size and sectors.
    pub geometry: Geometry,
    /// Writability and write cache.
    pub features: Features,
    /// True if a flush on one connection covers the writes acknowledged on every other connection,
    /// and all connections see the same data.
    pub multi_conn: bool,
    /// True if a client that gives the empty name gets this export.
    pub default: bool,
}

/// Lookup of exports by name. The loop implements it for the exports of one listening socket.
pub trait Exports {
    /// Calls `visit` once for each export, in the order in which clients see the exports.
    fn for_each(&self, visit: &mut dyn FnMut(&ExportInfo));

    /// Returns the export called `name`. For the empty name, returns the export of that name, else
    /// the default export, else the only one.
    fn find(&self, name: &str) -> Option<ExportInfo> {
        let (mut exact, mut default, mut only, mut count) = (None, None, None, 0usize);
        self.for_each(&mut |info| {
            count += 1;
            if exact.is_none() && info.name == name {
                exact = Some(info.clone());
            }
            if name.is_empty() && default.is_none() && info.default {
                default = Some(info.clone());
            }
            if name.is_empty() && count == 1 {
                only = Some(info.clone());
            }
        });
        if count != 1 {
            only = None;
        }
        exact.or(default).or(only)
    }

    /// Calls `visit` for each older state of `export` to which changes can be compared. If there
    /// are very many, some may be left out; [`Exports::find_state`] still finds them.
    fn for_each_state(&self, _export: ExportId, _visit: &mut dyn FnMut(&str, Since)) {}

    /// Returns the older state of this name.
    fn find_state(&self, _export: ExportId, _name: &str) -> Option<Since> {
        None
    }
}

impl Exports for [ExportInfo] {
    fn for_each(&self, visit: &mut dyn FnMut(&ExportInfo)) {
        self.iter().for_each(visit);
    }
}

impl Exports for Vec<ExportInfo> {
    fn for_each(&self, visit: &mut dyn FnMut(&ExportInfo)) {
        self.iter().for_each(visit);
    }
}

#[cfg(test)]
mod tests;
