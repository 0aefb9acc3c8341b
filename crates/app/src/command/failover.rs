//! `failover`: makes a received volume usable after the loss of its source.

use clap::Args;
use millpond_api::Snapshot;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{FAILBACK, FAILBACK_MARK, FAILOVER, FAILOVER_MARK, SnapshotIdentity, is_failover};
use millpond_api::instant::{self, show_span};
use millpond_api::names::VolumeName;
use millpond_images::stream::{Target, abandon, incomplete, settle};

use super::candidates;
use super::receive::{LiveTarget, incomplete_name, say_kept, snapshots_of};
use crate::output::write_out;

/// Make a received volume usable, after the loss of the volume that was sent
///
/// Ends a receive that is under way, and gives up an incomplete one, so that the volume has the newest complete snapshot; then takes a
/// snapshot 'failover-TIME'. From then on the volume takes nothing more from its old source; 'millpond failback' there brings the work
/// back.
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
        if self.dry_run {
            let newest = newest_received(&snapshots)?;
            if let Some(receiving) = incomplete(&snapshots) {
                line(&format!("the incomplete receive of {} would be given up", receiving.identity))?;
            }
            return line(&has_state(name, newest));
        }
        newest_received(&snapshots)?;
        let (there, handle, of) = (client.clone(), tokio::runtime::Handle::current(), name.clone());
        let done = tokio::task::spawn_blocking(move || {
            let mut target = LiveTarget::taken_over(there, handle, of)?;
            let done = FailedOver::carry_out(&mut target);
            let closed = target.close();
            done.and_then(|done| closed.map(|()| done))
        });
        let done = done.await.map_err(|e| Failure::failed(format!("the work failed: {e}; run the command again")))??;
        if let Some(given_up) = &done.given_up {
            line(&format!("the incomplete receive of {given_up} is given up"))?;
        }
        say_kept(name, done.kept.as_deref());
        line(&has_state(name, &done.newest))?;
        line(&format!("the work goes on after {name}@{}", done.begun))
    }
}

/// Result of a failover.
struct FailedOver {
    /// Snapshot of the incomplete receive that was given up.
    given_up: Option<SnapshotIdentity>,
    /// Snapshot that keeps what else was written.
    kept: Option<String>,
    /// The newest complete snapshot.
    newest: Snapshot,
    /// Snapshot with which the work begins.
    begun: String,
}

impl FailedOver {
    /// Makes the volume usable. No snapshot of an older send can appear after that:
    ///
    /// - The receives that were under way are ended ([`LiveTarget::taken_over`]), before the look at
    ///   the snapshots here. The daemon refuses their later steps.
    /// - While this runs, its export keeps new receives away.
    /// - A receive that begins later looks at the snapshots after it has made its export, and sees the
    ///   snapshot of the failover, which is durable when its request is answered. If this command is
    ///   killed before, it has not returned, and nothing was promised.
    fn carry_out(target: &mut LiveTarget) -> Outcome<FailedOver> {
        settle(target)?;
        let snapshots = target.snapshots()?;
        let newest = newest_received(&snapshots)?.clone();
        let given_up = incomplete(&snapshots).map(|receiving| receiving.identity.clone());
        if given_up.is_some() {
            target.check_unused()?;
        }
        let kept = abandon(target, None)?;
        let begun = instant::now().strftime(&format!("{FAILOVER}%Y%m%dT%H%M%S%3fZ")).to_string();
        target.snapshot(&begun, FAILOVER_MARK)?;
        Ok(FailedOver { given_up, kept, newest, begun })
    }
}

fn has_state(name: &VolumeName, newest: &Snapshot) -> String {
    let age = instant::now().duration_since(newest.created).as_secs();
    let age = show_span(u64::try_from(age).unwrap_or(0));
    format!("{name} has the state of {}, {age} old ('{}')", newest.created.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"), newest.name)
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
