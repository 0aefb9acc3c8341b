//! Identities of snapshots: which snapshots of two pools have the same content, because one was
//! received from the other.
//!
//! A pool stores the identity of a received snapshot in brackets at the end of its description, so
//! the on-disk format has no field for it. Only a receive may write such an end.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

#[cfg(test)]
mod tests;

/// Name of the snapshot of an incomplete receive: everything up to a position was verified.
pub const RECEIVING: &str = "receiving";
/// Name of the snapshot that is to replace [`RECEIVING`], until it is verified.
pub const RECEIVING_NEXT: &str = "receiving-next";
/// Name of the snapshot that replaces [`RECEIVING`], once it is verified and until that is destroyed.
pub const RECEIVING_VERIFIED: &str = "receiving-verified";
/// Name of a received snapshot that is not verified yet.
pub const RECEIVED_UNVERIFIED: &str = "received-unverified";
/// Names that only a receive may use.
pub const RESERVED: [&str; 4] = [RECEIVING, RECEIVING_NEXT, RECEIVING_VERIFIED, RECEIVED_UNVERIFIED];
/// Start of the names of snapshots that keep what an interrupted receive wrote after its progress,
/// and what others wrote meanwhile. Such a state is of no instant.
pub const INTERRUPTED: &str = "interrupted-receive";

/// True for the name of a snapshot that only a receive may give.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with(INTERRUPTED)
}

/// Start of the name of a new volume that has no complete snapshot yet.
pub const RECEIVING_VOLUME: &str = "receiving-";

/// Most bytes of a description, as the engine limits it.
const MAX_DESCRIPTION: usize = 1024;
/// Hexadecimal digits of the id of a pool.
const POOL_DIGITS: usize = 32;
const RECEIVED_WORD: &str = "[received ";
/// Stands for the base of a receive into a new volume.
const NO_BASE: &str = "-";
const RECEIVING_WORD: &str = "[receiving ";

/// Identity of a snapshot in all pools. Written as `POOL:ID:EPOCH:MILLISECONDS`.
///
/// Ids and epochs are used again after a pool was imported at an earlier checkpoint; the time sets
/// such snapshots apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotIdentity {
    /// Id of the pool that took the snapshot: hexadecimal digits.
    pool: String,
    /// Its id there.
    id: u64,
    /// The epoch that it closed there.
    epoch: u64,
    /// When it was taken: milliseconds since the Unix epoch.
    millis: u64,
}

/// Text that is no identity of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the identity of a snapshot, POOL:ID:EPOCH:MILLISECONDS")]
pub struct NoIdentity;

impl SnapshotIdentity {
    /// Returns the identity of a snapshot that the pool of this id took. Dashes in the id do not
    /// count.
    pub fn new(pool: &str, id: u64, epoch: u64, millis: u64) -> SnapshotIdentity {
        let pool = pool.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect();
        SnapshotIdentity { pool, id, epoch, millis }
    }

    /// Id of the pool that took it: hexadecimal digits.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// True if the same pool took both.
    pub fn is_of_same_pool(&self, other: &SnapshotIdentity) -> bool {
        self.pool == other.pool
    }
}

impl fmt::Display for SnapshotIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.pool, self.id, self.epoch, self.millis)
    }
}

impl FromStr for SnapshotIdentity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<SnapshotIdentity, NoIdentity> {
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or(NoIdentity);
        let pool = next()?.to_owned();
        if pool.len() != POOL_DIGITS || !pool.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit)) {
            return Err(NoIdentity);
        }
        let mut number = || next()?.parse::<u64>().map_err(|_| NoIdentity);
        let (id, epoch, millis) = (number()?, number()?, number()?);
        let identity = SnapshotIdentity { pool, id, epoch, millis };
        // one identity has one text
        if identity.to_string() == text { Ok(identity) } else { Err(NoIdentity) }
    }
}

impl Serialize for SnapshotIdentity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SnapshotIdentity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotIdentity, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// State of an incomplete receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receiving {
    /// Identity of the snapshot that is being received.
    #[schema(value_type = String)]
    pub identity: SnapshotIdentity,
    /// Bytes from the start of the volume that are received.
    pub position: u64,
    /// Identity of the snapshot that the volume equalled before; none for a new volume.
    #[serde(default)]
    #[schema(value_type = String)]
    pub base: Option<SnapshotIdentity>,
}

impl Receiving {
    /// Returns the token with which the receive continues.
    pub fn token(&self) -> ResumeToken {
        ResumeToken { identity: self.identity.clone(), position: self.position }
    }
}

/// Where an interrupted receive continues. Written as the identity, a colon and the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// Identity of the snapshot that is being received.
    pub identity: SnapshotIdentity,
    /// Bytes from the start of the volume that are received.
    pub position: u64,
}

/// Text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the token of an interrupted receive; 'millpond receive POOL/VOL --token' prints one")]
pub struct NoToken;

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.identity, self.position)
    }
}

impl FromStr for ResumeToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<ResumeToken, NoToken> {
        let (identity, position) = text.rsplit_once(':').ok_or(NoToken)?;
        Ok(ResumeToken { identity: identity.parse().map_err(|_| NoToken)?, position: position.parse().map_err(|_| NoToken)? })
    }
}

/// Content of a snapshot that a receive takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotOrigin {
    /// Identity of the snapshot that is being received.
    #[schema(value_type = String)]
    pub identity: SnapshotIdentity,
    /// Bytes from the start of the volume that are received; none when all are.
    #[serde(default)]
    pub position: Option<u64>,
    /// Identity of the snapshot that the volume equalled before an incomplete receive.
    #[serde(default)]
    #[schema(value_type = String)]
    pub base: Option<SnapshotIdentity>,
}

impl SnapshotOrigin {
    /// Returns the description that the pool stores: `description`, cut where it is too long, and
    /// the origin.
    pub fn stored(&self, description: &str) -> String {
        let end = match self.position {
            None => format!("{RECEIVED_WORD}{}]", self.identity),
            Some(position) => {
                let base = self.base.as_ref().map_or_else(|| NO_BASE.to_owned(), ToString::to_string);
                format!("{RECEIVING_WORD}{} {position} {base}]", self.identity)
            }
        };
        let mut text = description.to_owned();
        while text.len() + 1 + end.len() > MAX_DESCRIPTION {
            text.pop();
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text + &end
    }

    /// Splits a stored description into the text for people and the origin.
    pub fn split(stored: &str) -> (&str, Option<SnapshotOrigin>) {
        let (text, end) = stored.rsplit_once('\n').unwrap_or(("", stored));
        match SnapshotOrigin::parse(end) {
            Some(origin) => (text, Some(origin)),
            None => (stored, None),
        }
    }

    fn parse(end: &str) -> Option<SnapshotOrigin> {
        let end = end.strip_suffix(']')?;
        if let Some(identity) = end.strip_prefix(RECEIVED_WORD) {
            return Some(SnapshotOrigin { identity: identity.parse().ok()?, position: None, base: None });
        }
        let (identity, rest) = end.strip_prefix(RECEIVING_WORD)?.split_once(' ')?;
        let (position, base) = rest.split_once(' ')?;
        let base = if base == NO_BASE { None } else { Some(base.parse().ok()?) };
        Some(SnapshotOrigin { identity: identity.parse().ok()?, position: Some(position.parse().ok()?), base })
    }
}

/// Returns the time of a snapshot with this identity; `None` where it is no valid time.
pub fn taken(identity: &SnapshotIdentity) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(identity.millis).ok()?).ok()
}

/// Start of the names of snapshots that begin a failover.
pub const FAILOVER: &str = "failover-";
/// Start of the names of the snapshots with which the work goes back.
pub const FAILBACK: &str = "failback-";
/// Their description.
pub const FAILBACK_MARK: &str = "failback";
/// Description of such a snapshot.
pub const FAILOVER_MARK: &str = "failover: the work goes on here";

/// True for a snapshot that began a failover: what the old source has since does not belong after it.
pub fn is_failover(snapshot: &crate::Snapshot) -> bool {
    let name = snapshot.name.rsplit_once('@').map_or("", |(_, name)| name);
    name.starts_with(FAILOVER) && snapshot.description == FAILOVER_MARK
}
