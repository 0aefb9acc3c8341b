//! Publications as words of the command line: `TARGET#VOL@SNAP` or `TARGET#POOL/VOL@SNAP`.

use std::sync::Arc;

use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind, SnapshotName};
use millpond_backup::{Purpose, Target};

use super::backup::target::{Empty, Place, blocking};
use super::store::StoreOptions;

/// Character between a target and the name of a publication. No name has it.
const BORDER: char = '#';

/// A publication that a user named.
pub struct Published {
    /// The target.
    pub place: Place,
    /// `VOL@SNAP` or `POOL/VOL@SNAP`.
    pub name: String,
}

impl Published {
    /// True if a word names a publication, and no snapshot of a pool.
    pub fn is(word: &str) -> bool {
        word.contains(BORDER)
    }

    /// Splits the word at its last border: the path of a directory may have others.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn parse(word: &str, store: StoreOptions) -> Outcome<Published> {
        let usage = || Failure::usage(format!("'{word}' names no publication; give TARGET#VOL@SNAP or TARGET#POOL/VOL@SNAP"));
        let (target, name) = word.rsplit_once(BORDER).filter(|(target, _)| !target.is_empty()).ok_or_else(usage)?;
        if name.contains('/') {
            name.parse::<SnapshotName>()?;
        } else {
            let (volume, snapshot) = name.split_once('@').ok_or_else(usage)?;
            names::check(Kind::Volume, volume)?;
            names::check(Kind::Snapshot, snapshot)?;
        }
        Ok(Published { place: Place::new(target, store), name: name.to_owned() })
    }

    /// Opens the target, and finds the publication.
    ///
    /// # Errors
    /// The target's; there is none of this name, or several.
    pub async fn find(&self) -> Outcome<(Arc<Target>, SnapshotName)> {
        let target = self.place.open(Purpose::Publications, Empty::Refuse).await?;
        let mut names = blocking(&self.place, &target, Target::names).await?;
        names.retain(|name| name.to_string() == self.name || format!("{}@{}", name.of.volume, name.snapshot) == self.name);
        let place = self.place.name();
        if names.len() > 1 {
            let all: Vec<String> = names.iter().map(|name| format!("{place}{BORDER}{name}")).collect();
            return Err(Failure::failed(format!("{place}: several publications are '{}'; give {}", self.name, all.join(" or "))));
        }
        let lister = Purpose::Publications.lister();
        let found = names.pop();
        let found =
            found.ok_or_else(|| Failure::failed(format!("{place}: no publication '{}'; '{lister} {place}' shows all", self.name)))?;
        Ok((target, found))
    }
}
