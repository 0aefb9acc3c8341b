//! `failover`: makes a received volume usable after the loss of its source.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{FAILBACK, FAILBACK_MARK, FAILOVER, FAILOVER_MARK, is_failover};
use millpond_api::instant::{self, show_span};
use millpond_api::names::VolumeName;
use millpond_api::{CreateSnapshots, Created, Snapshot};
use millpond_images::stream::incomplete;

use super::candidates;
use super::receive::{give_up_changes, incomplete_name, snapshots_of};
use crate::output::write_out;

/// Make a received volume usable, after the loss of the volume that was sent
///
/// Gives up an incomplete receive, so that the volume has the newest complete snapshot, and takes a snapshot 'failover-TIME'. From
/// then on the volume takes nothing more from its old source; 'millpond failback' there brings the work back.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond failover -n tank/vm1        which instant it would have, and what would be given up
  millpond failover tank/vm1
  millpond export nbd tank/vm1 --unix /run/vm1.sock")]
pub struct Failover {
    /// POOL/VOL
    #[arg(add = candidates::volumes())]
    name: String,
    /// Only report what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Failover {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        self.fail_over(client, &name).await.map_err(|failure| failure.during(format!("cannot fail over '{name}'")))
    }

    async fn fail_over(&self, client: &Client, name: &VolumeName) -> Outcome {
        let Some(snapshots) = snapshots_of(client, name).await? else {
            let arriving = snapshots_of(client, &incomplete_name(name)).await?.is_some();
            let why = if arriving {
                "its first snapshot did not arrive completely, so there is no usable state"
            } else {
                "there is no such volume"
            };
            return Err(Failure::failed(format!("{why}; see 'millpond list {}'", name.pool)));
        };
        let newest = newest_received(&snapshots)?;
        let would = if self.dry_run { "would be" } else { "is" };
        if let Some(receiving) = incomplete(&snapshots) {
            if !self.dry_run {
                give_up_changes(client, name, None).await?;
            }
            line(&format!("the incomplete receive of {} {would} given up", receiving.identity))?;
        }
        let begun = format!("{name}@{}", instant::now().strftime(&format!("{FAILOVER}%Y%m%dT%H%M%S%3fZ")));
        if !self.dry_run {
            let request =
                CreateSnapshots { names: vec![begun.clone()], description: FAILOVER_MARK.to_owned(), ..CreateSnapshots::default() };
            client.post::<_, Created>("/v1/snapshots", &request).await?;
        }
        let age = instant::now().duration_since(newest.created).as_secs();
        let age = show_span(u64::try_from(age).unwrap_or(0));
        line(&format!("{name} has the state of {}, {age} old ('{}')", newest.created.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"), newest.name))?;
        if self.dry_run { Ok(()) } else { line(&format!("the work goes on after {begun}")) }
    }
}

fn line(text: &str) -> Outcome {
    write_out(&format!("{text}\n"))
}

/// Returns the newest complete snapshot that both sides have.
///
/// # Errors
/// There is none, or the volume was failed over since.
fn newest_received(snapshots: &[Snapshot]) -> Outcome<&Snapshot> {
    // the last snapshot of a failback is at both sides, and ends the failover before it
    let is_failback = |snapshot: &Snapshot| {
        let name = snapshot.name.rsplit_once('@').map_or("", |(_, name)| name);
        name.starts_with(FAILBACK) && snapshot.description == FAILBACK_MARK
    };
    let newest = snapshots.iter().rposition(|snapshot| snapshot.received && snapshot.receiving.is_none() || is_failback(snapshot));
    let (at, newest) = newest
        .and_then(|at| Some((at, snapshots.get(at)?)))
        .ok_or_else(|| Failure::failed("it has no received snapshot, so it is the source itself; use it as it is"))?;
    match snapshots.iter().skip(at + 1).find(|snapshot| is_failover(snapshot)) {
        Some(begun) => Err(Failure::failed(format!("it was failed over already ('{}'); use it as it is", begun.name))),
        None => Ok(newest),
    }
}
