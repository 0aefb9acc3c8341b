//! `backup restore`: makes a volume or a file from a backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::path::absolute;
use millpond_backup::{Purpose, Record, Target};
use millpond_daemon::Signals;
use millpond_images::copy::Target as Copied;

use super::fill::Filler;
use super::target::{Empty, Place, blocking, named};
use crate::command::candidates;
use crate::command::image::{Unfinished, create, free, publish, with_ending};

/// Make a volume or a file from a backup
///
/// POOL/VOL stands for its newest backup. The new volume has the sector profile, the compression and the cache mode of the one that was
/// backed up.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup restore /mnt/nas/backup tank/vm1                        as tank/vm1, which must not exist
  millpond backup restore /mnt/nas/backup tank/vm1@monday tank/vm1-monday
  millpond backup restore /mnt/nas/backup tank/vm1 --to vm1.raw           a raw image; needs no daemon

All data is compared with its checksum when it is read. Until it is complete, the volume is called importing-VOL.")]
pub struct Restore {
    #[command(flatten)]
    place: Place,
    /// POOL/VOL or POOL/VOL@SNAP: the backup
    #[arg(value_name = "words")]
    words: String,
    /// POOL/VOL to create [default: the name that was backed up]
    #[arg(value_name = "NEW", conflicts_with = "to", add = candidates::new_volumes())]
    new: Option<String>,
    /// Raw image to create instead of a volume
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    to: Option<PathBuf>,
    /// Read both again afterwards, and compare
    #[arg(long)]
    verify: bool,
    /// Destroy what a restore that was killed has left, and start again
    #[arg(long, conflicts_with = "to")]
    restart: bool,
}

impl Restore {
    pub async fn run(self, client: &Client) -> Outcome {
        let target = self.place.open(Purpose::Backups, Empty::Refuse).await?;
        let record = self.find(&target).await?;
        let mut signals = Signals::catch()?;
        let filler = Filler { place: &self.place, target: &target, record: &record, verify: self.verify };
        if let Some(path) = &self.to {
            return to_file(&filler, &mut signals, &absolute(path)).await;
        }
        let name: VolumeName = match &self.new {
            Some(new) => new.parse()?,
            None => record.name.parse::<SnapshotName>()?.of,
        };
        filler.volume(client, &mut signals, &name, self.restart).await
    }

    /// Returns the backup: the one that is named, or the newest of the volume.
    async fn find(&self, target: &Arc<Target>) -> Outcome<Record> {
        self.words.parse::<Name>()?;
        let names = named(&self.place, target, std::slice::from_ref(&self.words)).await?;
        let place = self.place.name().to_owned();
        let records = blocking(&self.place, target, move |target| target.records(&names).into_iter().collect::<Result<Vec<_>, _>>());
        let unread = |failure: Failure| failure.during(format!("cannot restore '{}'; give another one as POOL/VOL@SNAP", self.words));
        let records = records.await.map_err(unread)?;
        if records.iter().any(|record| records.iter().any(|other| record.identity.pool() != other.identity.pool())) {
            let next = "'millpond backup list --format json' shows the host of each; give POOL/VOL@SNAP";
            return Err(Failure::failed(format!("{place}: backups of '{}' are of volumes of two pools; {next}", self.words)));
        }
        let newest = records.into_iter().max_by_key(|record| record.created);
        newest.ok_or_else(|| Failure::failed(format!("{place}: no backup of '{}'; 'millpond backup list' shows all", self.words)))
    }
}

/// Writes a raw image, which appears when it is complete and durable.
async fn to_file(filler: &Filler<'_>, signals: &mut Signals, path: &Path) -> Outcome {
    free(path, false)?;
    let part = with_ending(path, ".part");
    let unfinished = Unfinished(vec![part.clone()]);
    let size = filler.record.size;
    let made = create(&part).and_then(|file| file.set_len(size).map(|()| file));
    let made = made.map_err(|e| Failure::failed(format!("cannot make {}: {e}; give another path", path.display())))?;
    filler.copy(signals, Copied::File(Arc::new(made), size), path.display().to_string()).await?;
    publish(&part, path)?;
    drop(unfinished);
    Ok(())
}
