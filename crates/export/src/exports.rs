//! What is served under which name, as a protocol server asks for it.

use millpond_block::{Features, Geometry, Since};

/// Names an export towards the loop that serves it; a session hands it back unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u64);

/// One export, as a client is told about it during the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Handed back when a client chose this export.
    pub id: ExportId,
    /// The name that clients ask for; at most 4096 bytes.
    pub name: String,
    /// Text for people; may be empty; at most 4096 bytes.
    pub description: String,
    /// Size and sectors at this moment.
    pub geometry: Geometry,
    /// Writability and write cache.
    pub features: Features,
    /// Promise that a flush on one connection covers the writes acknowledged on every other, and that all see the same data.
    pub multi_conn: bool,
    /// This one is meant when a client gives the empty name.
    pub default: bool,
}

/// Looks exports up by name. The loop implements it over whatever it serves on one listening socket.
pub trait Exports {
    /// Calls `visit` once for each export, in the order in which clients shall see them.
    fn for_each(&self, visit: &mut dyn FnMut(&ExportInfo));

    /// The export called `name`. The empty name means an export of that name, else the one marked as default, else the only one.
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

    /// Calls `visit` for each older state that changes of `export` can be asked for since. Where there are very many, some may be left
    /// out: they are found by name all the same.
    fn for_each_state(&self, _export: ExportId, _visit: &mut dyn FnMut(&str, Since)) {}

    /// The older state of this name.
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
