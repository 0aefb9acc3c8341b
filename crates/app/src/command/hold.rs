//! `hold` and `release`: a held snapshot cannot be destroyed.

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::{now, parse_time};
use millpond_api::names::SnapshotName;
use millpond_api::{self, Snapshot};

use super::candidates;
use super::globs::{Wanted, expand};

/// Protect snapshots from being destroyed
///
/// A hold with a tag is released with that tag only. Holds without a tag are counted: each release without --tag removes one.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond hold tank/vm1@audit --tag legal --until 2027-01-31
  millpond hold 'tank/*@nightly-*' --tag backup
  millpond show tank/vm1@audit                             lists the holds")]
pub struct Hold {
    /// POOL/VOL@SNAP, one or more, or quoted patterns
    #[arg(required = true, value_name = "POOL/VOL@SNAP", add = candidates::snapshots())]
    names: Vec<String>,
    /// Tag of the hold; a snapshot has at most one hold with each tag
    #[arg(long)]
    tag: Option<String>,
    /// Time at which the hold ends: 2027-01-31T12:00:00Z, 2027-01-31, or 24h (from now)
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Hold {
    pub async fn run(self, client: &Client) -> Outcome {
        let until = self.until.as_deref().map(|text| parse_time(text, now())).transpose()?;
        let names = snapshots(client, &self.names).await?;
        // check all snapshots first, so that nothing changes if one of them would fail
        if let (Some(tag), true) = (&self.tag, names.len() > 1) {
            for name in &names {
                if get(client, name).await?.hold_tags.contains(tag) {
                    return Err(Failure::failed(format!(
                        "cannot hold '{name}': it is held with tag '{tag}' already; choose another tag, or release that one first"
                    )));
                }
            }
        }
        for name in names {
            let path = format!("/v1/snapshots/{}/{}/hold", name.of, name.snapshot);
            client.post::<_, Snapshot>(&path, &millpond_api::Hold { tag: self.tag.clone(), until }).await?;
        }
        Ok(())
    }
}

/// Release one hold of each snapshot
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond release tank/vm1@audit --tag legal\n  millpond release tank/vm1@audit      a hold without a tag"
)]
pub struct Release {
    /// POOL/VOL@SNAP, one or more, or quoted patterns
    #[arg(required = true, value_name = "POOL/VOL@SNAP", add = candidates::snapshots())]
    names: Vec<String>,
    /// Tag of the hold; without --tag, a hold without a tag is released
    #[arg(long)]
    tag: Option<String>,
}

impl Release {
    pub async fn run(self, client: &Client) -> Outcome {
        let names = snapshots(client, &self.names).await?;
        if names.len() > 1 {
            for name in &names {
                let has = get(client, name).await?.hold_list.iter().any(|hold| hold.tag == self.tag && !hold.locked);
                if !has {
                    let what = self.tag.as_ref().map_or_else(|| "hold without a tag".to_owned(), |tag| format!("hold with tag '{tag}'"));
                    let line = format!("cannot release '{name}': it has no {what} that can be released; see 'millpond show {name}'");
                    return Err(Failure::failed(line));
                }
            }
        }
        let of = self.tag.as_deref().map(|tag| format!("?tag={}", quoted(tag))).unwrap_or_default();
        for name in names {
            client.post::<_, Snapshot>(&format!("/v1/snapshots/{}/{}/release{of}", name.of, name.snapshot), &()).await?;
        }
        Ok(())
    }
}

async fn snapshots(client: &Client, words: &[String]) -> Outcome<Vec<SnapshotName>> {
    let names = expand(client, words, Wanted::Snapshots).await?;
    names.iter().map(|name| Ok(name.parse()?)).collect()
}

async fn get(client: &Client, name: &SnapshotName) -> Outcome<Snapshot> {
    client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await
}
