//! Bases whose target has moved: their blocks are fetched from another address.
//!
//! The old target is not asked. The new one must have the same publication with the same chunks, so a
//! chunk from there has the bytes that one from the old target would have had (INV-BASE-3).

use millpond_api::names::VolumeName;
use millpond_api::{ApiError, BaseSource, ErrorKind, EventKind, FoundPublication, Rebase, Rebased};
use millpond_engine::{BaseInfo, CatalogCommand, CommandError, Invalid, VolumeInfo};

use super::bases;
use super::events::Happened;
use super::fetch::process::{self, TargetPlace};
use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};

/// A base as it is now.
struct Base {
    shard: ShardHandle,
    volume: VolumeInfo,
    info: BaseInfo,
    source: BaseSource,
}

impl Daemon {
    /// Makes a base fetch its blocks from another address, where the same publication is. Durable on
    /// return; reads that wait for the old target go on with the new one. With `dry_run`, only checks
    /// and reports.
    ///
    /// # Errors
    /// When the volume is no base, the target cannot be read, or it lacks the publication.
    pub async fn rebase(&self, request: &Rebase) -> Result<Rebased, ApiError> {
        let name: VolumeName = request.name.parse()?;
        self.rebase_to(&name, request).await.map_err(|e| e.during(format!("cannot change the target of '{name}'")))
    }

    async fn rebase_to(&self, name: &VolumeName, request: &Rebase) -> Result<Rebased, ApiError> {
        let place = bases::place(&request.target, &request.options, request.credentials.as_ref())?;
        let before = self.base(name).await?;
        let found = before.find(&place, None).await?;
        if request.dry_run {
            return Ok(Rebased { name: name.to_string(), before: before.source, source: found.source });
        }
        // the note comes first, so that no `unpublish` deletes the publication meanwhile
        let id = self.registry().pools.get(&name.pool).map(|entry| entry.record.id.clone()).unwrap_or_default();
        let found = before.find(&place, Some((&id, &name.pool))).await?;
        let source = serde_json::to_string(&found.source).map_err(|error| ApiError::internal(error.to_string()))?;
        let _pool = self.lock_pool(&name.pool).await?;
        // the name may be that of another volume by now
        let base = self.base(name).await?;
        base.require_same(&found)?;
        base.shard.command(CatalogCommand::MoveBase { volume: base.volume.id, source }).await?;
        self.fetching.moved(&name.pool, base.info.source);
        let message = format!("volume changed: {name} base={}", found.source.words());
        self.report(Happened::to_pool(EventKind::VolumeChanged, &name.pool, message).about(name.to_string()));
        Ok(Rebased { name: name.to_string(), before: base.source, source: found.source })
    }

    async fn base(&self, name: &VolumeName) -> Result<Base, ApiError> {
        let (shard, volume) = self.find_volume(name).await?;
        let info = volume.base.clone().ok_or(ShardError::Command(CommandError::Invalid(Invalid::NotBase)))?;
        let newer = || ApiError::new(ErrorKind::NotSupported, "its address was written by a newer version");
        let source = bases::source(&info.source).ok_or_else(newer)?;
        Ok(Base { shard, volume, info, source })
    }
}

impl Base {
    /// Finds the publication at a place; with a `pin`, notes the pool there, as [`process::find`] does.
    async fn find(&self, place: &TargetPlace, pin: Option<(&str, &str)>) -> Result<FoundPublication, ApiError> {
        let found = process::find(place, &self.source.name, pin).await;
        let found = found.map_err(|why| ApiError::new(ErrorKind::Unavailable, why))?;
        self.require_same(&found)?;
        Ok(found)
    }

    /// Refuses a publication whose chunks are not those of the base.
    fn require_same(&self, found: &FoundPublication) -> Result<(), ApiError> {
        let (old, new) = (&self.source, &found.source);
        let is_same = (&old.publication, &old.root) == (&new.publication, &new.root);
        if is_same && (self.info.unit, self.volume.size) == (found.unit, found.size) {
            return Ok(());
        }
        let message = format!(
            "{} is another publication than that of {}: its id is {}, not {}; give the address of the target that moved, or of a copy of it",
            new.words(),
            old.target,
            new.publication,
            old.publication
        );
        Err(ApiError::invalid(message))
    }
}
