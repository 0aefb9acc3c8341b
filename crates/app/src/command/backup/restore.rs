//! `backup restore`: makes a volume or a file from a backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::path::absolute;
use millpond_api::{SetProperties, VolumeCache};
use millpond_backup::{BackupImage, Record, Target};
use millpond_daemon::Signals;
use millpond_images::copy::{Target as Copied, Task, copy};

use super::target::{Empty, Place, blocking, failure, named};
use crate::command::candidates;
use crate::command::image::{
    Incomplete, TransientExport, Unfinished, compared, copy_failure, create, free, publish, with_ending, with_progress, written,
};

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
        let target = self.place.open(Empty::Refuse).await?;
        let record = self.find(&target).await?;
        let mut signals = Signals::catch()?;
        if let Some(path) = &self.to {
            return self.to_file(&mut signals, &target, &record, &absolute(path)).await;
        }
        let name: VolumeName = match &self.new {
            Some(new) => new.parse()?,
            None => record.name.parse::<SnapshotName>()?.of,
        };
        let volume = Incomplete::new(&name);
        volume.free(client, self.restart).await?;
        // it would lose acknowledged writes, which nobody asked for
        let cache = if record.cache == VolumeCache::Unsafe { None } else { Some(record.cache.clone()) };
        let properties = SetProperties { cache, compression: Some(record.compression.clone()), ..SetProperties::default() };
        volume.create(client, record.size, record.sector.clone(), properties).await?;
        let filled = match self.fill(client, &mut signals, &target, &record, &volume).await {
            Ok(()) => volume.complete(client, None).await,
            Err(failure) => Err(failure),
        };
        match filled {
            Ok(()) => Ok(()),
            Err(failure) => Err(volume.remove(client, failure).await),
        }
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

    async fn fill(
        &self,
        client: &Client,
        signals: &mut Signals,
        target: &Arc<Target>,
        record: &Record,
        volume: &Incomplete<'_>,
    ) -> Outcome {
        let export = TransientExport::open(client, &volume.part.to_string(), false).await?;
        let to = Copied::Socket(export.socket().to_owned());
        let copied = self.copy(signals, target, record, to, volume.name.to_string(), Task::Fill).await;
        let copied = match copied {
            Ok(()) if self.verify => {
                let to = Copied::Socket(export.socket().to_owned());
                self.copy(signals, target, record, to, volume.name.to_string(), Task::Compare).await
            }
            other => other,
        };
        let closed = export.close(client).await;
        copied.and(closed)
    }

    async fn copy(&self, signals: &mut Signals, target: &Arc<Target>, record: &Record, to: Copied, name: String, task: Task) -> Outcome {
        let (place, target, record) = (self.place.name().to_owned(), Arc::clone(target), record.clone());
        let (verb, came) = if task == Task::Compare { ("verify", compared as _) } else { ("restore", written as _) };
        with_progress(format!("{verb} {name}"), (record.size, came), signals, move |progress| {
            let image = target
                .share(&progress.stop)
                .and_then(|lock| BackupImage::new(Arc::clone(&target), &record, &lock))
                .map_err(|error| failure(&place, &error))?;
            copy(&image, &to, task, progress).map_err(|e| copy_failure(e, &format!("the backup of {}", record.name), &name))
        })
        .await
    }

    /// Writes a raw image, which appears when it is complete and durable.
    async fn to_file(&self, signals: &mut Signals, target: &Arc<Target>, record: &Record, path: &Path) -> Outcome {
        free(path, false)?;
        let part = with_ending(path, ".part");
        let unfinished = Unfinished(vec![part.clone()]);
        let made = create(&part).and_then(|file| file.set_len(record.size).map(|()| file));
        let made = made.map_err(|e| Failure::failed(format!("cannot make {}: {e}; give another path", path.display())))?;
        let shown = path.display().to_string();
        let to = Copied::File(Arc::new(made), record.size);
        self.copy(signals, target, record, to.clone(), shown.clone(), Task::Fill).await?;
        if self.verify {
            self.copy(signals, target, record, to, shown, Task::Compare).await?;
        }
        publish(&part, path)?;
        drop(unfinished);
        Ok(())
    }
}
