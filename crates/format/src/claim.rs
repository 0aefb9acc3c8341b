//! Claims: which host has a pool in use.
//!
//! Each area of a device has a claim, [`CLAIM_OFFSET`] bytes from its start, in a physical sector
//! of its own. The claim in the second area names the host that took the pool. The claim in the
//! first area names a host that is about to take it; later the same host writes it again and again
//! to show that it is alive (`docs/decisions/0016-claims.md`).

use crate::codec::{Encoder, FormatError};
use crate::label::{SECTOR_BYTES, open, seal};
use crate::{PoolId, RING_OFFSET};

/// Offset of the claim within an area: between the label and the ring of roots.
pub const CLAIM_OFFSET: u64 = 32 << 10;

const CLAIM_MAGIC: &[u8; 8] = b"MPONDCLM";
const CLAIM_VERSION: u16 = 1;
const HOST_NAME_MAX: usize = 255;
/// Longest lease, in milliseconds: one hour. A host that takes over waits as long as the lease.
const MAX_LEASE: u32 = 3_600_000;
/// Flag: the pool was closed, and no host has it.
const RELEASED: u8 = 1;

const _: () = assert!(CLAIM_OFFSET >= SECTOR_BYTES as u64 && CLAIM_OFFSET + SECTOR_BYTES as u64 <= RING_OFFSET);

/// A host that takes a pool, and its session (one import).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Identity of the host: the same after each boot, different on every other host.
    pub host: [u8; 16],
    /// Name of the host for messages; at most 255 bytes are stored.
    pub name: String,
    /// Identity of the import: random bytes, new for each import.
    pub session: [u8; 16],
}

/// Which host has the pool, and until when it may write.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDCLM` |
/// | version | 2 | 1 |
/// | flags | 1 | bit 0: released, no host has the pool; the others are 0 |
/// | pool id | 16 | |
/// | host | 16 | identity of the host, the same after each boot |
/// | session | 16 | random, new with every import |
/// | term | 8 | one more than in any claim that this import found |
/// | beat | 8 | one more each time the host writes the claim again |
/// | time | 8 | time of that write: milliseconds since the Unix epoch |
/// | lease | 4 | milliseconds that the host may write after it saw its claim: at most an hour |
/// | host name | 2 + n | at most 255 bytes |
/// | checksum | 4 | CRC-32C of the sector before it; the last 4 bytes of the 4096 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The pool.
    pub pool: PoolId,
    /// The host and session that have it.
    pub holder: Holder,
    /// One more than in any claim that this import found; the claim with the higher term wins.
    pub term: u64,
    /// One more each time the host writes the claim again.
    pub heartbeat: u64,
    /// Time of that write: milliseconds since the Unix epoch.
    pub time: u64,
    /// Milliseconds that the host may write after it last saw its own claim on the devices.
    pub lease: u32,
    /// True when the pool was closed and no host has it.
    pub released: bool,
}

impl Claim {
    /// Returns the sector to write.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(CLAIM_MAGIC);
        e.u16(CLAIM_VERSION);
        e.u8(if self.released { RELEASED } else { 0 });
        e.raw(&self.pool.0);
        e.raw(&self.holder.host);
        e.raw(&self.holder.session);
        e.u64(self.term);
        e.u64(self.heartbeat);
        e.u64(self.time);
        e.u32(self.lease);
        e.string(cut(&self.holder.name));
        seal(e)
    }

    /// Decodes a sector.
    ///
    /// # Errors
    /// [`FormatError`] when the sector is not a claim, is damaged, has a newer version, or its
    /// numbers are out of range.
    pub fn decode(sector: &[u8]) -> Result<Claim, FormatError> {
        let mut d = open(sector, CLAIM_MAGIC, CLAIM_VERSION)?;
        let flags = d.u8()?;
        if flags & !RELEASED != 0 {
            return Err(FormatError::Field("flags"));
        }
        let (pool, host, session) = (PoolId(d.bytes()?), d.bytes()?, d.bytes()?);
        let (term, heartbeat, time, lease) = (d.counter("term")?, d.counter("beat")?, d.u64()?, d.u32()?);
        if lease > MAX_LEASE {
            return Err(FormatError::Field("lease"));
        }
        let name = d.string()?;
        if name.len() > HOST_NAME_MAX {
            return Err(FormatError::Field("host name"));
        }
        Ok(Claim { pool, holder: Holder { host, name, session }, term, heartbeat, time, lease, released: flags & RELEASED != 0 })
    }

    /// True when this claim is of another session than `other` and has the same term or a higher
    /// one.
    pub fn supersedes(&self, other: &Claim) -> bool {
        self.pool == other.pool && self.holder.session != other.holder.session && self.term >= other.term
    }
}

/// Returns the start of `name` that fits into [`HOST_NAME_MAX`] bytes.
pub(crate) fn cut(name: &str) -> &str {
    let mut end = name.len().min(HOST_NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Claim {
        let holder = Holder { host: [3; 16], name: name.into(), session: [4; 16] };
        Claim { pool: PoolId([5; 16]), holder, term: 6, heartbeat: 7, time: 8, lease: 9, released: false }
    }

    #[test]
    fn what_is_written_is_read_and_a_long_name_is_cut() {
        for released in [false, true] {
            let claim = Claim { released, ..claim("host") };
            assert_eq!(Claim::decode(&claim.encode()), Ok(claim));
        }
        let read = Claim::decode(&claim(&"ä".repeat(200)).encode()).expect("a claim");
        assert_eq!(read.holder.name, "ä".repeat(127), "254 bytes: no half of a character");
    }

    #[test]
    fn unknown_flags_and_endless_leases_are_refused() {
        let mut sector = claim("host").encode();
        sector[10] = 2;
        let sum = crate::crc32c(&sector[..SECTOR_BYTES - 4]).to_le_bytes();
        sector[SECTOR_BYTES - 4..].copy_from_slice(&sum);
        assert_eq!(Claim::decode(&sector), Err(FormatError::Field("flags")));
        let forever = Claim { lease: u32::MAX, ..claim("host") };
        assert_eq!(Claim::decode(&forever.encode()), Err(FormatError::Field("lease")));
        assert_eq!(Claim::decode(&[0; SECTOR_BYTES]), Err(FormatError::Magic));
    }

    #[test]
    fn the_later_of_two_imports_holds() {
        let (first, other) = (claim("host"), Holder { session: [9; 16], ..claim("host").holder });
        let later = Claim { holder: other.clone(), term: 7, ..first.clone() };
        assert!(later.supersedes(&first) && !first.supersedes(&later) && !first.supersedes(&first));
        let same = Claim { holder: other, ..first.clone() };
        assert!(same.supersedes(&first) && first.supersedes(&same), "two at a time: neither may go on");
        assert!(!Claim { pool: PoolId([0; 16]), ..later }.supersedes(&first), "of a pool that was here before");
    }
}
