//! Filling a volume or a file from a backup or a publication.

use std::sync::Arc;

use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::VolumeName;
use millpond_api::{SetProperties, VolumeCache};
use millpond_backup::{BackupImage, Purpose, Record, Target};
use millpond_daemon::Signals;
use millpond_images::copy::{Target as Copied, Task, copy};

use super::target::{Place, failure};
use crate::command::image::{Incomplete, TransientExport, compared, copy_failure, with_progress, written};

/// A backup or publication, and the target that has it.
pub struct Filler<'a> {
    pub place: &'a Place,
    pub target: &'a Arc<Target>,
    pub record: &'a Record,
    /// Read both again afterwards, and compare.
    pub verify: bool,
}

impl Filler<'_> {
    /// Makes a volume, which gets its name when it is complete; with `restart` destroys an incomplete one
    /// first.
    ///
    /// # Errors
    /// Nothing was made, and why.
    pub async fn volume(&self, client: &Client, signals: &mut Signals, name: &VolumeName, restart: bool) -> Outcome {
        let volume = Incomplete::new(name);
        volume.free(client, restart).await?;
        let record = self.record;
        // it would lose acknowledged writes, which nobody asked for
        let cache = if record.cache == VolumeCache::Unsafe { None } else { Some(record.cache.clone()) };
        let properties = SetProperties { cache, compression: Some(record.compression.clone()), ..SetProperties::default() };
        volume.create(client, record.size, record.sector.clone(), properties).await?;
        let filled = match self.fill(client, signals, &volume).await {
            Ok(()) => volume.complete(client, None).await,
            Err(failure) => Err(failure),
        };
        match filled {
            Ok(()) => Ok(()),
            Err(failure) => Err(volume.remove(client, failure).await),
        }
    }

    async fn fill(&self, client: &Client, signals: &mut Signals, volume: &Incomplete<'_>) -> Outcome {
        let export = TransientExport::open(client, &volume.part.to_string(), false).await?;
        let to = Copied::Socket(export.socket().to_owned());
        let copied = self.copy(signals, to, volume.name.to_string()).await;
        let closed = export.close(client).await;
        copied.and(closed)
    }

    /// Copies everything, and compares it, if that is asked for.
    ///
    /// # Errors
    /// The copy is incomplete, or differs, and why.
    pub async fn copy(&self, signals: &mut Signals, to: Copied, name: String) -> Outcome {
        self.pass(signals, to.clone(), name.clone(), Task::Fill).await?;
        if self.verify { self.pass(signals, to, name, Task::Compare).await } else { Ok(()) }
    }

    async fn pass(&self, signals: &mut Signals, to: Copied, name: String, task: Task) -> Outcome {
        let (place, target, record) = (self.place.name().to_owned(), Arc::clone(self.target), self.record.clone());
        let verb = match (task, target.purpose()) {
            (Task::Compare, _) => "verify",
            (_, Purpose::Backups) => "restore",
            (_, Purpose::Publications) => "clone",
        };
        let came = if task == Task::Compare { compared as _ } else { written as _ };
        with_progress(format!("{verb} {name}"), (record.size, came), signals, move |progress| {
            let image = target
                .share(&progress.stop)
                .and_then(|lock| BackupImage::new(Arc::clone(&target), &record, &lock))
                .map_err(|error| failure(&place, &error))?;
            let source = format!("the {} of {}", target.purpose().one(), record.name);
            copy(&image, &to, task, progress).map_err(|e| copy_failure(e, &source, &name))
        })
        .await
    }
}
