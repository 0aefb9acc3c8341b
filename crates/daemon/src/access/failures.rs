//! Wrong credentials by address: so many are answered as such, later ones only with the time to wait.
//!
//! A right credential is never refused because of wrong ones from the same address: all users of a
//! host share the address of a proxy or of loopback, and secrets of 256 bits cannot be guessed at any
//! rate. The limit keeps the log and the processor free.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

/// Wrong credentials that an address may give at once.
const BURST: u32 = 10;
/// Seconds after which it may give one more.
const EVERY: i64 = 6;
/// Most addresses that are remembered; the oldest one is forgotten for a new one.
const MOST: usize = 1024;

/// Answer to a wrong credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Say that it is wrong.
    Wrong,
    /// Say to wait for so many seconds.
    Wait {
        /// Seconds until the next wrong one is answered.
        seconds: i64,
        /// This is the first one over the limit: report it.
        first: bool,
    },
}

#[derive(Debug)]
struct Record {
    /// Wrong credentials that count against the limit.
    count: u32,
    last: Timestamp,
    /// The limit was reached since it was last empty.
    over: bool,
}

/// Wrong credentials, by address.
#[derive(Debug, Default)]
pub struct Failures {
    by_address: BTreeMap<IpAddr, Record>,
}

/// An IPv6 host has a whole network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none() => IpAddr::V6((u128::from(v6) & !u128::from(u64::MAX)).into()),
        other => other.to_canonical(),
    }
}

impl Failures {
    /// Counts a wrong credential.
    pub fn count(&mut self, address: IpAddr, now: Timestamp) -> Verdict {
        let address = network(address);
        if !self.by_address.contains_key(&address)
            && self.by_address.len() >= MOST
            && let Some(oldest) = self.by_address.iter().min_by_key(|(_, record)| record.last).map(|(address, _)| *address)
        {
            self.by_address.remove(&oldest);
        }
        let record = self.by_address.entry(address).or_insert(Record { count: 0, last: now, over: false });
        let again = u32::try_from((now.as_second() - record.last.as_second()).max(0) / EVERY).unwrap_or(u32::MAX);
        if again > 0 {
            record.count = record.count.saturating_sub(again);
            record.last = now;
        }
        record.over &= record.count > 0;
        if record.count < BURST {
            record.count += 1;
            return Verdict::Wrong;
        }
        let seconds = (EVERY - (now.as_second() - record.last.as_second())).clamp(1, EVERY);
        Verdict::Wait { seconds, first: !std::mem::replace(&mut record.over, true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn so_many_are_answered_and_then_one_at_a_time() {
        let mut failures = Failures::default();
        let [here, there]: [IpAddr; 2] = ["127.0.0.1", "10.0.0.1"].map(|text| text.parse().expect("an address"));
        for _ in 0..10 {
            assert_eq!(failures.count(here, at(100)), Verdict::Wrong);
        }
        assert_eq!(failures.count(here, at(100)), Verdict::Wait { seconds: 6, first: true });
        assert_eq!(failures.count(here, at(104)), Verdict::Wait { seconds: 2, first: false });
        assert_eq!(failures.count(there, at(104)), Verdict::Wrong, "of another address");
        assert_eq!(failures.count(here, at(106)), Verdict::Wrong);
        assert_eq!(failures.count(here, at(107)), Verdict::Wait { seconds: 5, first: false });
        assert_eq!(failures.count(here, at(1000)), Verdict::Wrong);
    }

    #[test]
    fn memory_is_bounded_and_a_network_counts_as_one() {
        let mut failures = Failures::default();
        for host in 0..5000_u32 {
            failures.count(IpAddr::V4(host.into()), at(i64::from(host)));
        }
        assert_eq!(failures.by_address.len(), MOST);
        for host in 0..10_u128 {
            failures.count(IpAddr::V6((0x2001 << 112 | host).into()), at(9000));
        }
        assert!(matches!(failures.count(IpAddr::V6((0x2001 << 112 | 77).into()), at(9000)), Verdict::Wait { .. }));
    }
}
