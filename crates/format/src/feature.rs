//! Features of the format: changes that programs before a version do not know.
//!
//! A label has three sets of bits. They are within the label's checksum, and are known before
//! anything else of the pool is read. A program that does not know a bit of `incompat` does not use
//! the pool, one that does not know a bit of `ro_compat` only reads it, and one that does not know
//! a bit of `compat` uses the pool and keeps the bit.

use std::cmp::Reverse;
use std::fmt;

#[cfg(test)]
mod tests;

/// Kind of a feature: how a program that lacks it may use a pool that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeatureKind {
    /// Everything; it keeps the bit.
    Compat,
    /// Read it.
    RoCompat,
    /// Nothing.
    Incompat,
}

impl fmt::Display for FeatureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FeatureKind::Compat => "compat",
            FeatureKind::RoCompat => "ro_compat",
            FeatureKind::Incompat => "incompat",
        })
    }
}

/// A feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name: lower-case letters, digits and `-`, at most 24.
    pub name: &'static str,
    /// Set of bits that it belongs to.
    pub kind: FeatureKind,
    /// Number of its bit, 0 to 31.
    pub bit: u8,
    /// First version that knows it.
    pub since: &'static str,
    /// True when the bit follows from the shape, so that no upgrade turns it on.
    pub automatic: bool,
    /// The feature in one sentence.
    pub meaning: &'static str,
    /// The loss for older versions, in one sentence.
    pub closes: &'static str,
}

impl Feature {
    /// Returns the numbers of the first version that knows it, in the order of versions.
    fn version(&self) -> Vec<u32> {
        self.since.split('.').map(|number| number.parse().unwrap_or(0)).collect()
    }
}

/// Maps may read as a base, see [`Addr::base`](crate::Addr::base).
pub const BASES: Feature = Feature {
    name: "bases",
    kind: FeatureKind::Incompat,
    bit: 2,
    since: "0.2.0",
    automatic: false,
    meaning: "The pool can have clones of publications.",
    closes: "Versions without it cannot import the pool any more.",
};

/// Chunks may have forwards, see [`ChunkRecord`](crate::ChunkRecord).
pub const FORWARDS: Feature = Feature {
    name: "forwards",
    kind: FeatureKind::Incompat,
    bit: 3,
    since: "0.2.0",
    automatic: false,
    meaning: "Blocks that snapshots share can be written next to each other again.",
    closes: "Versions without it cannot import the pool any more.",
};

/// Segments may be objects of a bucket, see [`Layout::Bucket`](crate::Layout::Bucket). It has a name
/// in the label although it follows from the shape, because no version before it knows the bit.
pub const BUCKET: Feature = Feature {
    name: "bucket",
    kind: FeatureKind::Incompat,
    bit: 4,
    since: "0.2.0",
    automatic: true,
    meaning: "The pool has its data in a bucket.",
    closes: "Versions without it cannot import the pool.",
};

/// All features that this version knows. `docs/format.md` has the same table (a test compares
/// them). A bit that was released never gets another meaning.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "cache",
        kind: FeatureKind::Incompat,
        bit: 0,
        since: "0.1.0",
        automatic: true,
        meaning: "The pool has devices of class cache.",
        closes: "Versions without it cannot import the pool until its cache devices are removed.",
    },
    Feature {
        name: "spare",
        kind: FeatureKind::Incompat,
        bit: 1,
        since: "0.1.0",
        automatic: true,
        meaning: "The pool has devices of class spare.",
        closes: "Versions without it cannot import the pool until its spares are removed.",
    },
    BASES,
    FORWARDS,
    BUCKET,
];

/// Blocks may be encrypted, see [`Mark`](crate::Mark), and devices have a key table, see
/// [`KeyPage`](crate::KeyPage). Not one of [`FEATURES`]: no command gives it to a pool, and a pool that has
/// it is refused, until the engine encrypts.
pub const ENCRYPTION: Feature = Feature {
    name: "encryption",
    kind: FeatureKind::Incompat,
    bit: 5,
    since: "0.2.0",
    automatic: false,
    meaning: "Volumes can be encrypted.",
    closes: "Versions without it cannot import the pool any more.",
};

/// The three sets of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet {
    /// Bits that programs may ignore.
    pub compat: u32,
    /// Bits that a program has to know to write.
    pub ro_compat: u32,
    /// Bits that a program has to know to read.
    pub incompat: u32,
}

impl FeatureSet {
    /// Returns the bits of features.
    pub fn of<'a>(features: impl IntoIterator<Item = &'a Feature>) -> FeatureSet {
        features.into_iter().fold(FeatureSet::default(), |mut set, feature| {
            let bit = 1u32.checked_shl(u32::from(feature.bit)).unwrap_or(0);
            match feature.kind {
                FeatureKind::Compat => set.compat |= bit,
                FeatureKind::RoCompat => set.ro_compat |= bit,
                FeatureKind::Incompat => set.incompat |= bit,
            }
            set
        })
    }

    /// Returns whether a feature is in the set.
    pub fn has(self, feature: &Feature) -> bool {
        FeatureSet::of([feature]).without(self).is_empty()
    }

    /// Returns the bits that are in either set.
    #[must_use]
    pub fn with(self, other: FeatureSet) -> FeatureSet {
        FeatureSet {
            compat: self.compat | other.compat,
            ro_compat: self.ro_compat | other.ro_compat,
            incompat: self.incompat | other.incompat,
        }
    }

    /// Returns the bits that are not in the other set.
    #[must_use]
    pub fn without(self, other: FeatureSet) -> FeatureSet {
        FeatureSet {
            compat: self.compat & !other.compat,
            ro_compat: self.ro_compat & !other.ro_compat,
            incompat: self.incompat & !other.incompat,
        }
    }

    /// Returns whether no bit is set.
    pub fn is_empty(self) -> bool {
        self == FeatureSet::default()
    }
}

/// Names and versions of features, as a label has them for programs that do not know the bits:
/// `trees (since 0.5.0), dedup (since 0.4.0)`, newest first. Empty if there are none. Those that do
/// not fit are left out: old ones, which most programs know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FeatureNames([u8; FeatureNames::BYTES]);

impl Default for FeatureNames {
    fn default() -> Self {
        FeatureNames([0; FeatureNames::BYTES])
    }
}

impl fmt::Debug for FeatureNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FeatureNames({:?})", self.text())
    }
}

impl FeatureNames {
    /// Bytes in a label; unused ones at the end are 0.
    pub const BYTES: usize = 64;

    /// Returns the names of those features that some programs may have to know, newest first: of
    /// features of one version, the last of `features` first.
    pub fn of<'a>(features: impl IntoIterator<Item = &'a Feature>) -> FeatureNames {
        let mut named: Vec<&Feature> = features.into_iter().filter(|feature| feature.kind != FeatureKind::Compat).collect();
        named.reverse();
        named.sort_by_key(|feature| Reverse(feature.version()));
        FeatureNames::fitting(named.iter().map(|feature| format!("{} (since {})", feature.name, feature.since)))
    }

    /// Returns as many of these entries as fit: all before the first one that does not.
    fn fitting(entries: impl Iterator<Item = String>) -> FeatureNames {
        let mut text = String::new();
        for entry in entries {
            let gap = if text.is_empty() { "" } else { ", " };
            if text.len() + gap.len() + entry.len() > FeatureNames::BYTES {
                break;
            }
            text = text + gap + &entry;
        }
        FeatureNames::read(text.as_bytes())
    }

    /// Returns the names without those of features that a program knows.
    #[must_use]
    pub fn unknown_to(&self, known: &[Feature]) -> FeatureNames {
        let is_known = |entry: &str| known.iter().any(|feature| entry.split(' ').next() == Some(feature.name));
        FeatureNames::fitting(self.entries().filter(|entry| !is_known(entry)).map(str::to_owned))
    }

    /// Returns the names with their versions.
    fn entries(&self) -> impl Iterator<Item = &str> {
        self.text().split(", ").filter(|entry| !entry.is_empty())
    }

    /// Takes the bytes of a label.
    pub fn read(bytes: &[u8]) -> FeatureNames {
        let mut names = FeatureNames::default();
        names.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        names
    }

    /// Returns the bytes of a label.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text; empty when it has other characters than such names have.
    pub fn text(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(FeatureNames::BYTES);
        let text = self.0.get(..end).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        let usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " ,.()-".contains(c);
        if text.chars().all(usual) { text } else { "" }
    }
}

/// Features of a pool that this program does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Their bits in the set that refuses the use.
    pub bits: u32,
    /// Number of features that this program would have to know to write to the pool.
    pub count: u32,
    /// Their names in the label, as far as these fit there.
    pub names: FeatureNames,
}

impl Unknown {
    /// Returns the features of `kind` in a label with these bits and names that a program does not
    /// know; `None` if it knows all of them. Names are those of all features that it would have to
    /// know to write, since the label does not say which name belongs to which set.
    pub fn of(on: FeatureSet, names: &FeatureNames, kind: FeatureKind, known: &[Feature]) -> Option<Unknown> {
        let unknown = on.without(FeatureSet::of(known));
        let bits = match kind {
            FeatureKind::Compat => unknown.compat,
            FeatureKind::RoCompat => unknown.ro_compat,
            FeatureKind::Incompat => unknown.incompat,
        };
        let count = unknown.ro_compat.count_ones() + unknown.incompat.count_ones();
        (bits != 0).then(|| Unknown { bits, count, names: names.unknown_to(known) })
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.names.entries().count();
        if named == 0 {
            return write!(f, "features {:#x} that this program does not have", self.bits);
        }
        write!(f, "features that this program does not have: {}", self.names.text())?;
        match usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(named) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}
