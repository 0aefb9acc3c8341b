//! Properties of a disk that its guest sees.

use std::fmt;
use std::str::FromStr;

/// Logical and physical sector sizes as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SectorProfile {
    /// 512-byte logical, 512-byte physical.
    S512n,
    /// 512-byte logical, 4096-byte physical.
    #[default]
    S512e,
    /// 4096-byte logical and physical.
    S4kn,
}

impl SectorProfile {
    /// All profiles.
    pub const ALL: [SectorProfile; 3] = [SectorProfile::S512n, SectorProfile::S512e, SectorProfile::S4kn];

    /// Logical sector size in bytes: requests are multiples of it.
    pub fn logical(self) -> u32 {
        match self {
            SectorProfile::S512n | SectorProfile::S512e => 512,
            SectorProfile::S4kn => 4096,
        }
    }

    /// Physical sector size in bytes: the unit that is never torn and needs no read-modify-write.
    pub fn physical(self) -> u32 {
        match self {
            SectorProfile::S512n => 512,
            SectorProfile::S512e | SectorProfile::S4kn => 4096,
        }
    }

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            SectorProfile::S512n => "512n",
            SectorProfile::S512e => "512e",
            SectorProfile::S4kn => "4kn",
        }
    }
}

impl fmt::Display for SectorProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: the word is not a sector profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a sector profile (512n, 512e, 4kn)")]
pub struct UnknownSectorProfile(pub String);

impl FromStr for SectorProfile {
    type Err = UnknownSectorProfile;
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name() == word).ok_or_else(|| UnknownSectorProfile(word.to_owned()))
    }
}

/// Size and sectors of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of the logical sector.
    pub size: u64,
    /// Sector sizes announced to the guest.
    pub sector: SectorProfile,
}

/// Features of a disk besides reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// True when writes, discards and zeroing are refused.
    pub read_only: bool,
    /// True when the guest must flush to make acknowledged writes durable; false when every write
    /// is durable when acknowledged.
    pub write_cache: bool,
}
