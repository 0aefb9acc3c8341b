//! Holds of a command on the snapshots that it reads.

use std::time::Duration;

use millpond_api::client::{Client, quoted};
use millpond_api::names::SnapshotName;
use millpond_api::{Hold, Snapshot, instant};

/// Time after which the holds of a command that was killed end.
const HOLD: Duration = Duration::from_secs(7 * 24 * 3600);

/// Snapshots that are held.
pub struct Held {
    tag: String,
    names: Vec<SnapshotName>,
}

impl Held {
    /// Holds the snapshots, so that none is destroyed before its turn. A pool that is read-only needs no
    /// holds, so a failure is only said.
    pub async fn hold(client: &Client, purpose: &str, names: Vec<SnapshotName>) -> Held {
        let tag = format!("{purpose}-{}-{}", instant::now().as_millisecond(), std::process::id());
        let mut held = Held { tag, names: Vec::new() };
        for name in names {
            let path = format!("/v1/snapshots/{}/{}/hold", name.of, name.snapshot);
            let until = instant::now().checked_add(HOLD).ok();
            match client.post::<_, Snapshot>(&path, &Hold { tag: Some(held.tag.clone()), until }).await {
                Ok(_) => held.names.push(name),
                Err(failure) => {
                    eprintln!("millpond: '{name}' is read without a hold: {failure}");
                    break;
                }
            }
        }
        held
    }

    /// Ends the holds; events report the snapshots that were `sent`, by the part of their names after
    /// `@`.
    pub async fn release(self, client: &Client, sent: &[String]) {
        for name in self.names {
            let path = format!(
                "/v1/snapshots/{}/{}/release?tag={}&sent={}",
                name.of,
                name.snapshot,
                quoted(&self.tag),
                sent.contains(&name.snapshot)
            );
            if let Err(failure) = client.post::<_, Snapshot>(&path, &()).await {
                eprintln!("millpond: '{name}' is held with tag '{}' for a week: {failure}", self.tag);
            }
        }
    }
}
