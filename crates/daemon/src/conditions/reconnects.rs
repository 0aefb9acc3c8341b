//! Clients that connect to an export again and again: a network or a hypervisor in trouble.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::{ConditionKind, Export};

use super::Found;

/// Time that is looked back on.
const WINDOW: Duration = Duration::from_secs(600);
/// So many looks of the window with a new client are too many. Virtual machines that start together
/// connect in a few looks.
const MANY: usize = 20;

/// Looks at which each export had a new client.
#[derive(Debug, Default)]
pub struct Reconnects {
    last: Option<Timestamp>,
    exports: BTreeMap<u64, Connected>,
}

#[derive(Debug, Default)]
struct Connected {
    name: String,
    peer: String,
    looks: VecDeque<Instant>,
}

impl Reconnects {
    /// Notes the exports whose clients have connected since the last look. A client that connects
    /// several times between two looks counts once.
    pub(super) fn look(&mut self, exports: &[Export], time: Timestamp, now: Instant) {
        self.exports.retain(|id, _| exports.iter().any(|export| export.id == *id));
        let last = self.last.replace(time);
        for export in exports {
            let known = self.exports.entry(export.id).or_default();
            known.name.clone_from(&export.name);
            let fresh = export.connections.iter().find(|client| last.is_some_and(|last| client.since > last));
            if let Some(client) = fresh {
                known.peer.clone_from(&client.peer);
                known.looks.push_back(now);
            }
            while known.looks.front().is_some_and(|at| now.saturating_duration_since(*at) > WINDOW) {
                known.looks.pop_front();
            }
        }
    }

    pub(super) fn conditions(&self) -> Vec<Found> {
        let many = self.exports.iter().filter(|(_, known)| known.looks.len() >= MANY);
        let found = |(id, known): (&u64, &Connected)| {
            let Connected { name, peer, looks } = known;
            let minutes = WINDOW.as_secs() / 60;
            let cause = format!(
                "clients of export {id} ({name}) have connected at least {} times in the last {minutes} minutes, the last one from {peer}",
                looks.len()
            );
            let pool = name.split(['/', '@']).next().map(str::to_owned);
            let found = Found::new(
                ConditionKind::ExportReconnects,
                &format!("{id} {name}"),
                cause,
                "see the messages of the client and of its network; 'millpond exports' lists the clients",
            );
            Found { pool, ..found }
        };
        many.map(found).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Many connections over some time are a condition; many at once are not.
    use millpond_api::instant::from_millis;
    use millpond_api::sample::export;

    use super::*;

    fn connected(since: &[u64]) -> Export {
        let client = |since: &u64| serde_json::json!({ "peer": "10.0.0.7", "since": from_millis(*since), "tls": null, "io": millpond_api::GuestIo::default() });
        let clients = since.iter().map(|since| serde_json::from_value(client(since)).expect("a client")).collect();
        Export { connections: clients, ..export("online") }
    }

    #[test]
    fn a_client_that_connects_again_and_again_is_noticed() {
        let begun = Instant::now();
        let mut watch = Reconnects::default();
        let mut look = |seconds: u64, clients: &[u64]| {
            watch.look(&[connected(clients)], from_millis(seconds * 1000), begun + Duration::from_secs(seconds));
            watch.conditions()
        };
        // a hundred at once, which stay
        let all: Vec<u64> = (1..101).map(|at| 6_000 + at).collect();
        assert_eq!(look(5, &[]), []);
        for at in 2..40 {
            assert_eq!(look(5 * at, &all), []);
        }
        for at in 40..58 {
            assert_eq!(look(5 * at, &[5_000 * at - 10]), [], "{at}");
        }
        let found = look(5 * 58, &[5_000 * 58 - 10]);
        assert!(
            found.first().is_some_and(|found| found.cause.contains("at least 20 times") && found.cause.contains("10.0.0.7")),
            "{found:?}"
        );
        assert_eq!(look(5 * 58 + 601, &[5_000 * 58 - 10]), [], "it is forgotten");
    }
}
