//! `history`: the changes of a pool, a volume or a snapshot, and the users who made them.

use std::collections::BTreeSet;

use clap::Args;
use jiff::Timestamp;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::instant;
use millpond_api::names::Name;
use millpond_api::{Event, EventKind, Severity};

use super::candidates;
use super::columns::HISTORY;
use super::events::stored;
use crate::output::{Listing, print};

#[cfg(test)]
mod tests;

/// List the changes of a pool, volume or snapshot, with the user and the process that made each
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond history tank/vm1
  millpond history tank --since 7d
  millpond history tank/vm1@monday --format json

BY is the user and process at the control socket, the token of a client over TCP, or a user of the web console; '-' is the daemon itself, for example for an expired snapshot.
A volume's history has its snapshots and earlier names. It goes back as far as the stored events: see 'millpond events'.")]
pub struct History {
    /// Pool, volume or snapshot
    #[arg(add = candidates::scopes())]
    name: String,
    /// Only changes since then: a time, a date, or a duration before now such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    #[command(flatten)]
    how: Listing,
}

impl History {
    pub async fn run(self, client: &Client) -> Outcome {
        let since = self.since.as_deref().map(|text| instant::parse_past(text, instant::now())).transpose()?;
        if self.name.contains(['/', '@']) {
            self.name.parse::<Name>()?;
        }
        let events = stored(client, Timestamp::default(), Severity::Info).await?;
        let mut changes = of(&self.name, events);
        changes.retain(|event| since.is_none_or(|since| event.time >= since));
        print(&changes, HISTORY, &self.how)
    }
}

/// Returns the events about a pool, about a volume with its snapshots, or about a snapshot, under
/// their present and earlier names. `events` are oldest first, and so is the result.
fn of(name: &str, events: Vec<Event>) -> Vec<Event> {
    let mut names = BTreeSet::from([name.to_owned()]);
    let mut found = Vec::new();
    for event in events.into_iter().rev() {
        let about = match event.subject.split_once(' ').filter(|_| event.event == EventKind::Renamed) {
            Some((old, new)) => {
                let about = names.iter().any(|name| covers(name, new) || covers(new, name));
                names = names.iter().map(|name| if covers(new, name) { name.replacen(new, old, 1) } else { name.clone() }).collect();
                about
            }
            None => names.iter().any(|name| is_about(name, &event)),
        };
        if about {
            found.push(event);
        }
    }
    found.reverse();
    found
}

/// True if an event is about `name`, or about a part of it.
fn is_about(name: &str, event: &Event) -> bool {
    if !name.contains(['/', '@']) {
        return event.pool.as_deref() == Some(name);
    }
    // an export's subject is its id and the name
    event.subject.split(' ').any(|word| covers(name, word))
}

/// True if `other` is `name`, or a snapshot of it; of a pool, anything in it.
fn covers(name: &str, other: &str) -> bool {
    other.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('@') || (!name.contains('/') && rest.starts_with('/')))
}
