//! Clones of publications whose blocks are fetched when they are read.
//!
//! A clone starts from the snapshot of a *base*, a read-only volume per publication and address. The pool
//! is noted in the target before the base is made, so that no `unpublish` deletes the publication meanwhile.
//! A base whose target has moved gets its new address by `Daemon::rebase`.

use millpond_api::names::{SnapshotName, VolumeName};
use millpond_api::{ApiError, BaseSource, ClonePublication, ClonedPublication, ErrorKind, EventKind, FoundPublication, VolumeCache};
use millpond_engine::{BASE_SNAPSHOT, BaseInfo, CatalogCommand, CommandError, NewBase, Reply, SnapshotId, VolumeInfo};
use millpond_format::BASES;

use super::fetch::process::{self, TargetPlace};
use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};
use super::volumes::{cache_mode, compression, sector_profile};

/// Digits of the id of a publication in the name of a base: as few as are free.
const DIGITS: [usize; 3] = [8, 16, 32];
/// Most bytes of an address, an option or a path.
const LONGEST: usize = 1024;

/// Reads the source of a base; `None` if it is of a newer version.
pub(super) fn source(text: &str) -> Option<BaseSource> {
    let source: BaseSource = serde_json::from_str(text).ok()?;
    (source.format == BaseSource::FORMAT && root(&source).is_some()).then_some(source)
}

/// Returns the name of the chunk with the list of all others.
pub(super) fn root(source: &BaseSource) -> Option<[u8; 32]> {
    let mut root = [0; 32];
    if source.root.len() != 64 || !source.root.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in root.iter_mut().enumerate() {
        *byte = u8::from_str_radix(source.root.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(root)
}

/// A base of the pool, and the snapshot that clones start from.
struct Base {
    name: String,
    snapshot: SnapshotId,
    /// It was made for this clone.
    made: Option<NewBase>,
}

impl Daemon {
    /// Creates a clone of a publication, and its base if the pool has none. Durable on return. With
    /// `dry_run`, only reports.
    ///
    /// # Errors
    /// When the pool lacks the feature, the target cannot be read, or the name is taken.
    pub async fn clone_publication(&self, request: &ClonePublication) -> Result<ClonedPublication, ApiError> {
        let new: VolumeName = request.name.parse()?;
        let during = format!("cannot clone '{}#{}' to '{new}'", request.target, request.publication);
        let place = checked(request).map_err(|e| e.during(&during))?;
        let shard = self.able(&new).await.map_err(|e| e.during(&during))?;
        let id = self.registry().pools.get(&new.pool).map(|entry| entry.record.id.clone()).unwrap_or_default();
        let pin = (!request.dry_run).then_some((id.as_str(), new.pool.as_str()));
        let unavailable = |why| ApiError::new(ErrorKind::Unavailable, why).during(&during);
        let found = process::find(&place, &request.publication, pin).await.map_err(unavailable)?;
        // of several clones of the same publication one makes the base
        let _pool = self.lock_pool(&new.pool).await?;
        let base = match find_base(&shard, &found.source).await.map_err(|e| e.during(&during))? {
            Ok(base) => base,
            Err(name) if request.dry_run => return Ok(cloned(&new, &found, &name, true)),
            Err(name) => make_base(&shard, name, &found).await.map_err(|e| e.during(&during))?,
        };
        if request.dry_run {
            return Ok(cloned(&new, &found, &base.name, false));
        }
        if let Err(error) = self.clone_base(&shard, &new, &base, &found).await {
            if let Some(made) = base.made {
                // the first error says more
                let _ = shard.command(CatalogCommand::DestroyVolume { volume: made.volume }).await;
            }
            return Err(error.during(during));
        }
        if base.made.is_some() {
            self.tell(EventKind::VolumeCreated, format!("{}/{}", new.pool, base.name));
        }
        self.tell(EventKind::VolumeCreated, new.to_string());
        Ok(cloned(&new, &found, &base.name, base.made.is_some()))
    }

    /// Returns the shard of a pool that can have such a clone.
    async fn able(&self, new: &VolumeName) -> Result<ShardHandle, ApiError> {
        let (shard, pool) = (self.shard(&new.pool)?, &new.pool);
        if !shard.status().await?.pool.features.has(&BASES) {
            let message = format!("pool '{pool}' lacks the feature '{}'; turn it on with 'millpond pool upgrade {pool}'", BASES.name);
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        }
        if shard.find_volume(&new.volume).await?.is_some() {
            return Err(ShardError::Command(CommandError::Exists(new.to_string())).into());
        }
        Ok(shard)
    }

    async fn clone_base(&self, shard: &ShardHandle, new: &VolumeName, base: &Base, found: &FoundPublication) -> Result<(), ApiError> {
        let reply = shard.command(CatalogCommand::Clone { snapshot: base.snapshot, name: new.volume.clone() }).await?;
        let Reply::Volume(volume) = reply else { return Err(ApiError::internal("the engine answers something else")) };
        // it would lose acknowledged writes, which nobody asked for
        if found.cache != VolumeCache::Unsafe {
            let cache = Some(cache_mode(&found.cache)?);
            shard.command(CatalogCommand::SetProperties { volume, cache, compression: None, read_only: None }).await?;
        }
        Ok(())
    }
}

/// Checks the words of a request, which become arguments of a process.
fn checked(request: &ClonePublication) -> Result<TargetPlace, ApiError> {
    let publication = &request.publication;
    let full = if publication.contains('/') { publication.clone() } else { format!("pool/{publication}") };
    full.parse::<SnapshotName>()?;
    place(&request.target, &request.options, request.credentials.as_ref())
}

/// Checks the address of a target, whose words become arguments of a process.
pub(super) fn place(target: &str, options: &[String], credentials: Option<&String>) -> Result<TargetPlace, ApiError> {
    if !target.starts_with('/') && !target.starts_with("s3://") {
        return Err(ApiError::usage("the target is no absolute directory and no s3://BUCKET/PREFIX"));
    }
    if credentials.is_some_and(|file| !file.starts_with('/')) {
        return Err(ApiError::usage("the file with the credentials has no absolute path"));
    }
    let words = options.iter().chain(credentials).map(String::as_str).chain([target]);
    if options.len() > 8 || words.into_iter().any(|word| word.len() > LONGEST || word.chars().any(char::is_control)) {
        return Err(ApiError::usage("a word is too long, or has a control character"));
    }
    // the process that finds the publication learns the id of the target
    Ok(TargetPlace { target: target.to_owned(), options: options.to_vec(), credentials: credentials.cloned(), id: String::new() })
}

/// Returns the base of a source, or a name for a new one.
async fn find_base(shard: &ShardHandle, wanted: &BaseSource) -> Result<Result<Base, String>, ApiError> {
    let volumes = shard.volumes().await?;
    let is_same =
        |volume: &&VolumeInfo| volume.base.as_ref().and_then(|base| source(&base.source)).is_some_and(|source| source.is_same(wanted));
    if let Some(volume) = volumes.iter().find(is_same) {
        let snapshot = shard.find_snapshot(volume.id, BASE_SNAPSHOT).await?;
        let snapshot = snapshot.ok_or_else(|| ApiError::internal("a base has no snapshot"))?.id;
        return Ok(Ok(Base { name: volume.name.clone(), snapshot, made: None }));
    }
    let names = DIGITS.iter().filter_map(|digits| Some(format!("publication-{}", wanted.publication.get(..*digits)?)));
    let mut free = names.filter(|name| volumes.iter().all(|volume| volume.name != *name));
    free.next().map(Err).ok_or_else(|| ApiError::new(ErrorKind::Exists, "all names for a base are taken; rename one of those volumes"))
}

async fn make_base(shard: &ShardHandle, name: String, found: &FoundPublication) -> Result<Base, ApiError> {
    let source = serde_json::to_string(&found.source).map_err(|error| ApiError::internal(error.to_string()))?;
    let reply = shard
        .command(CatalogCommand::CreateBase {
            name: name.clone(),
            size: found.size,
            sector: sector_profile(&found.sector)?,
            compression: compression(&found.compression)?,
            source: BaseInfo { unit: found.unit, source },
        })
        .await?;
    let Reply::Base(made) = reply else { return Err(ApiError::internal("the engine answers something else")) };
    Ok(Base { name, snapshot: made.snapshot, made: Some(made) })
}

fn cloned(new: &VolumeName, found: &FoundPublication, base: &str, new_base: bool) -> ClonedPublication {
    let base = format!("{}/{base}", new.pool);
    ClonedPublication { name: new.to_string(), size: found.size, base, new_base, source: found.source.clone() }
}
