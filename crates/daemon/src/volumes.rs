//! Volumes: creating, listing, changing.

use futures_util::future::join_all;
use millpond_api::identity::RECEIVED_UNVERIFIED;
use millpond_api::instant;
use millpond_api::names::{Name, VolumeName};
use millpond_api::size::{Size, SizeChange};
use millpond_api::{
    ApiError, CreateVolume, ErrorKind, EventKind, Rename, Resize, Resized, SetProperties, SetSector, Volume, VolumeCache,
    VolumeCompression, VolumeSector,
};
use millpond_block::{CacheMode, SectorProfile, UnknownCacheMode, UnknownSectorProfile};
use millpond_engine::{CatalogCommand, Command, CommandError, Compression, Target, VolumeId, VolumeInfo, VolumeOptions};

use super::attached::{self, Clients};
use super::bases;
use super::events::Happened;
use super::options;
use super::receiving;
use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};
use super::snapshots::unused_name;

/// Sizes of volumes are multiples of this many bytes.
const GRAIN: u64 = 4096;

impl Daemon {
    /// Returns the volumes of every pool in service that answers, or of one pool.
    ///
    /// # Errors
    /// When the pool named does not exist or is not in service.
    pub async fn volumes(&self, pool: Option<&str>) -> Result<Vec<Volume>, ApiError> {
        let shards = match pool {
            Some(pool) => vec![(pool.to_owned(), self.shard(pool)?)],
            None => self.answering().await,
        };
        let mut volumes = Vec::new();
        let listed = join_all(shards.iter().map(|(_, shard)| shard.volumes())).await;
        for ((pool, _), of_pool) in shards.into_iter().zip(listed) {
            let mut of_pool = of_pool?;
            of_pool.sort_by(|a, b| a.name.cmp(&b.name));
            volumes.extend(of_pool.into_iter().map(|volume| view(&pool, volume)));
        }
        Ok(volumes)
    }

    /// Returns one volume.
    ///
    /// # Errors
    /// When there is no volume of this name.
    pub async fn volume(&self, name: &VolumeName) -> Result<Volume, ApiError> {
        let (shard, volume) = self.find_volume(name).await?;
        let receiving = receiving::incomplete::into(&name.pool, &shard, &volume).await?;
        Ok(Volume { receiving, ..view(&name.pool, volume) })
    }

    /// Creates a volume. Durable on return.
    ///
    /// # Errors
    /// When a value is not acceptable, or the engine refuses.
    pub async fn create_volume(&self, request: CreateVolume) -> Result<Volume, ApiError> {
        let name: VolumeName = request.name.parse()?;
        let shard = self.shard(&name.pool)?;
        let during = format!("cannot create '{name}'");
        let size = whole_blocks(request.size).map_err(|e| e.during(&during))?;
        let sector = request.sector.as_ref().map(sector_profile).transpose()?.unwrap_or_default();
        let properties = Properties::read(&request.properties)?;
        let options = options::changed(VolumeOptions::default(), &request.properties).map_err(|e| e.during(&during))?;
        let command = Command::Catalog(CatalogCommand::CreateVolume {
            name: name.volume.clone(),
            size,
            sector,
            cache: properties.cache.unwrap_or_default(),
            compression: properties.compression.unwrap_or_default(),
        });
        shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        if properties.read_only == Some(true) {
            let (shard, volume) = self.find_volume(&name).await?;
            shard.command(Properties { cache: None, compression: None, ..properties }.command(&volume)).await?;
        }
        if let Some(options) = options {
            let (shard, volume) = self.find_volume(&name).await?;
            if let Err(error) = shard.command(CatalogCommand::SetOptions { volume: volume.id, options }).await {
                let error = refused(error, &shard, volume.id, options.reservation).await;
                // it would not be as requested; when it cannot be destroyed either, the first error
                // is the better one
                let _ = shard.command(CatalogCommand::DestroyVolume { volume: volume.id }).await;
                return Err(error.during(&during));
            }
        }
        self.tell(EventKind::VolumeCreated, name.to_string());
        self.volume(&name).await
    }

    /// Changes properties of a volume. Durable on return.
    ///
    /// # Errors
    /// When a value is not acceptable, or the engine refuses.
    pub async fn set_properties(&self, name: &VolumeName, request: &SetProperties) -> Result<Volume, ApiError> {
        let properties = Properties::read(request)?;
        // no other change may undo these options, and no export of the volume may begin while a
        // promise is being kept
        let _pool = self.lock_pool(&name.pool).await?;
        let during = format!("cannot change '{name}'");
        let (shard, volume) = self.find_volume(name).await?;
        let options = options::changed(volume.options, request).map_err(|e| e.during(&during))?;
        if properties.read_only == Some(true) && !volume.read_only && !request.force {
            let writers = attached::to(&shard, Clients::Writers(Target::Head(volume.id))).await?;
            attached::refuse(&writers, "shut the guest down").map_err(|e| e.during(&during))?;
        }
        if let Some(options) = options
            && let Err(error) = shard.command(CatalogCommand::SetOptions { volume: volume.id, options }).await
        {
            return Err(refused(error, &shard, volume.id, options.reservation).await.during(&during));
        }
        if volume.cache.every_write_durable() && properties.cache.is_some_and(|cache| !cache.every_write_durable()) {
            self.keep_promises(&name.pool, &shard, Target::Head(volume.id)).await.map_err(|e| e.during(&during))?;
        }
        if !properties.is_empty() {
            shard.command(properties.command(&volume)).await.map_err(|e| ApiError::from(e).during(&during))?;
        }
        let message = format!("volume changed: {name} {}", words_of(request));
        self.report(Happened::to_pool(EventKind::VolumeChanged, &name.pool, message).about(name.to_string()));
        self.volume(name).await
    }

    /// Changes the size. Durable on return. A snapshot keeps the volume as it was before it
    /// shrinks, unless the request has `no_snapshot`.
    ///
    /// # Errors
    /// When it would shrink without `allow_shrink`, or under connected clients without `force`; or
    /// the engine refuses.
    pub async fn resize(&self, name: &VolumeName, request: &Resize) -> Result<Resized, ApiError> {
        let (shard, volume) = self.find_volume(name).await?;
        let during = format!("cannot resize '{name}'");
        let _step = self.lock_step((request.export, false), &name.pool, volume.id).await.map_err(|e| e.during(&during))?;
        let change: SizeChange = request.size.parse().map_err(|e: millpond_api::size::SizeError| ApiError::usage(e.to_string()))?;
        let size = change.apply(volume.size).ok_or_else(|| {
            ApiError::invalid(format!("'{}' from {} is below zero or too large; give another size", request.size, Size(volume.size)))
        });
        let size = size.and_then(whole_blocks).map_err(|e| e.during(&during))?;
        if size < volume.size && !request.allow_shrink {
            let lost = Size(volume.size - size);
            let message = format!(
                "{} is smaller than {}, the last {lost} would be lost; give --allow-shrink to agree",
                Size(size),
                Size(volume.size)
            );
            return Err(ApiError::busy(message).during(&during));
        }
        let target = Target::Head(volume.id);
        let mut resized =
            Resized { old_size: volume.size, size, kept_as: None, connected: attached::to(&shard, Clients::Target(target)).await? };
        let shrinks = size < volume.size;
        if shrinks && !request.no_snapshot {
            // the kept state would be of no instant
            receiving::refuse(&shard, name, volume.id).await.map_err(|e| e.during(&during))?;
        }
        let keep_as = if shrinks && !request.no_snapshot { Some(unused_name(&shard, volume.id, "pre-shrink").await?) } else { None };
        resized.kept_as = keep_as.as_ref().map(|keep_as| format!("{name}@{keep_as}"));
        if request.dry_run {
            return Ok(resized);
        }
        if size == volume.size {
            // the size may be of an earlier request, which did not ask clients to connect again
            if request.reconnect {
                shard.hang_up(target).await.map_err(|e| ApiError::from(e).during(&during))?;
            }
            return Ok(resized);
        }
        if shrinks && !request.force {
            attached::refuse(&resized.connected, "shut the guest down").map_err(|e| e.during(&during))?;
        }
        if let Some(keep_as) = keep_as {
            let description = format!("before it shrank to {}", Size(size));
            let command = Command::Catalog(CatalogCommand::Snapshot {
                targets: vec![(volume.id, keep_as)],
                description,
                expires: None,
                lock_millis: None,
            });
            shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        }
        shard.command(CatalogCommand::ResizeVolume { volume: volume.id, size }).await.map_err(|e| ApiError::from(e).during(&during))?;
        if request.reconnect {
            shard.hang_up(target).await.map_err(|e| ApiError::from(e).during(&during))?;
        }
        let message = format!("volume resized: {name} from {} to {} bytes", volume.size, size);
        self.report(Happened::to_pool(EventKind::VolumeResized, &name.pool, message).about(name.to_string()));
        Ok(resized)
    }

    /// Changes the sector sizes that guests see. Durable on return.
    ///
    /// # Errors
    /// When the volume is exported or open in a mount, whose users saw other sizes; when the word
    /// is unknown or the engine refuses.
    pub async fn set_sector(&self, name: &VolumeName, request: &SetSector) -> Result<Volume, ApiError> {
        let during = format!("cannot change the sectors of '{name}'");
        let sector = sector_profile(&request.sector).map_err(|e| e.during(&during))?;
        let _pool = self.lock_pool(&name.pool).await?;
        let (shard, volume) = self.find_volume(name).await?;
        let target = Target::Head(volume.id);
        if let Some(id) = self.serves(&name.pool, target) {
            return Err(ApiError::busy(format!("it is exported; run 'millpond unexport {id}' first")).during(during));
        }
        if let Some(file) = shard.open_files().await?.iter().find(|file| file.target == target) {
            let message = format!("it is open in the mount of export {}, process {} opened it; end that first", file.export, file.pid);
            return Err(ApiError::busy(message).during(during));
        }
        shard.command(CatalogCommand::SetSector { volume: volume.id, sector }).await.map_err(|e| ApiError::from(e).during(&during))?;
        let message = format!("volume changed: {name} sector={}", request.sector);
        self.report(Happened::to_pool(EventKind::VolumeChanged, &name.pool, message).about(name.to_string()));
        self.volume(name).await
    }

    /// Renames a volume or a snapshot. Durable on return.
    ///
    /// # Errors
    /// When the new name is taken, or names another pool or another snapshot's volume.
    pub async fn rename(&self, old: &Name, request: &Rename) -> Result<(), ApiError> {
        let new: Name = request.name.parse()?;
        let during = format!("cannot rename '{old}' to '{new}'");
        // an export that begins meanwhile would keep the old name
        let _pool = self.lock_pool(old.pool()).await?;
        let shard = self.shard(old.pool())?;
        let command = match (old, &new) {
            (Name::Volume(from), Name::Volume(to)) if from.pool == to.pool => {
                let (shard, volume) = self.find_volume(from).await?;
                if request.receive {
                    self.check_step(request.export, &from.pool, volume.id).map_err(|e| e.during(&during))?;
                }
                // a receive would go on in another volume of the old name
                receiving::refuse(&shard, from, volume.id).await.map_err(|e| e.during(&during))?;
                Command::Catalog(CatalogCommand::RenameVolume { volume: volume.id, name: to.volume.clone() })
            }
            (Name::Snapshot(from), Name::Snapshot(to)) if from.of == to.of => {
                let (_, _, snapshot) = self.find_snapshot(from).await?;
                if request.receive {
                    self.check_step(request.export, &from.of.pool, snapshot.volume).map_err(|e| e.during(&during))?;
                }
                receiving::check_rename(&snapshot, to, request.receive).map_err(|e| e.during(&during))?;
                Command::Catalog(CatalogCommand::RenameSnapshot { snapshot: snapshot.id, name: to.snapshot.clone() })
            }
            (Name::Volume(_), Name::Volume(_)) => {
                return Err(ApiError::invalid("a volume cannot move to another pool; name the same pool").during(during));
            }
            _ => return Err(ApiError::invalid("a snapshot cannot move to another volume; change only the part after '@'").during(during)),
        };
        shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        self.snapshots_changed();
        self.rename_exports(old, &new)?;
        match old {
            // the last step of a receive
            Name::Snapshot(from) if request.receive && from.snapshot == RECEIVED_UNVERIFIED => {
                self.tell(EventKind::SnapshotReceived, new.to_string());
            }
            _ => self.tell(EventKind::Renamed, format!("{old} {new}")),
        }
        Ok(())
    }
}

/// Returns the properties that a request sets, as `NAME=VALUE`, for the record of changes.
fn words_of(request: &SetProperties) -> String {
    let fields = serde_json::to_value(request).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    let word = |(name, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(format!("{name}={text}")),
        value => Some(format!("{name}={value}")),
    };
    fields.iter().filter_map(word).collect::<Vec<_>>().join(" ")
}

/// Explains a refusal of options: when a reservation is too large, with the bytes that could be
/// kept.
async fn refused(error: ShardError, shard: &ShardHandle, volume: VolumeId, reservation: u64) -> ApiError {
    if !matches!(error, ShardError::Command(CommandError::NoSpace)) || reservation == 0 {
        return error.into();
    }
    let (Ok(status), Ok(volumes)) = (shard.status().await, shard.volumes().await) else { return error.into() };
    let left = promisable(status.pool.free, &volumes, volume);
    let message = format!(
        "reservation={} does not fit: about {} can be promised; give less, destroy snapshots, or add a device",
        Size(reservation),
        Size(left)
    );
    ApiError::new(ErrorKind::NoSpace, message)
}

/// Returns how many bytes a volume's reservation may have: those that it holds already, and those
/// that are free and not kept for others.
fn promisable(free: u64, volumes: &[VolumeInfo], volume: VolumeId) -> u64 {
    let kept = |other: &VolumeInfo| other.options.reservation.saturating_sub(other.unique_bytes);
    let others: u64 = volumes.iter().filter(|other| other.id != volume).map(kept).sum();
    let own = volumes.iter().find(|own| own.id == volume).map_or(0, |own| own.unique_bytes);
    own + free.saturating_sub(others)
}

fn whole_blocks(size: u64) -> Result<u64, ApiError> {
    if size > 0 && size.is_multiple_of(GRAIN) {
        return Ok(size);
    }
    let up = size.max(1).div_ceil(GRAIN).saturating_mul(GRAIN);
    Err(ApiError::usage(format!("{size} bytes is not a positive multiple of {GRAIN}; give for example {up}")))
}

/// Parsed values of properties.
#[derive(Clone, Copy, Debug)]
struct Properties {
    cache: Option<CacheMode>,
    compression: Option<Compression>,
    read_only: Option<bool>,
}

impl Properties {
    fn read(words: &SetProperties) -> Result<Properties, ApiError> {
        Ok(Properties {
            cache: words.cache.as_ref().map(cache_mode).transpose()?,
            compression: words.compression.as_ref().map(compression).transpose()?,
            read_only: words.readonly,
        })
    }

    fn is_empty(self) -> bool {
        self.cache.is_none() && self.compression.is_none() && self.read_only.is_none()
    }

    fn command(self, volume: &VolumeInfo) -> Command {
        Command::Catalog(CatalogCommand::SetProperties {
            volume: volume.id,
            cache: self.cache,
            compression: self.compression,
            read_only: self.read_only,
        })
    }
}

pub(super) fn sector_profile(sector: &VolumeSector) -> Result<SectorProfile, ApiError> {
    match sector {
        VolumeSector::S512n => Ok(SectorProfile::S512n),
        VolumeSector::S512e => Ok(SectorProfile::S512e),
        VolumeSector::S4kn => Ok(SectorProfile::S4kn),
        VolumeSector::Other(word) => Err(ApiError::usage(UnknownSectorProfile(word.clone()).to_string())),
    }
}

pub(super) fn cache_mode(cache: &VolumeCache) -> Result<CacheMode, ApiError> {
    match cache {
        VolumeCache::None => Ok(CacheMode::None),
        VolumeCache::Directsync => Ok(CacheMode::Directsync),
        VolumeCache::Writethrough => Ok(CacheMode::Writethrough),
        VolumeCache::Writeback => Ok(CacheMode::Writeback),
        VolumeCache::Unsafe => Ok(CacheMode::Unsafe),
        VolumeCache::Other(word) => Err(ApiError::usage(UnknownCacheMode(word.clone()).to_string())),
    }
}

pub(super) fn compression(compression: &VolumeCompression) -> Result<Compression, ApiError> {
    match compression {
        VolumeCompression::Off => Ok(Compression::Off),
        VolumeCompression::Lz4 => Ok(Compression::Lz4),
        VolumeCompression::Zstd => Ok(Compression::Zstd),
        VolumeCompression::Other(word) => Err(ApiError::usage(format!("'{word}' is not a compression; give off, lz4 or zstd"))),
    }
}

fn compression_word(compression: Compression) -> VolumeCompression {
    match compression {
        Compression::Off => VolumeCompression::Off,
        Compression::Lz4 => VolumeCompression::Lz4,
        Compression::Zstd => VolumeCompression::Zstd,
    }
}

fn view(pool: &str, volume: VolumeInfo) -> Volume {
    Volume {
        name: format!("{pool}/{}", volume.name),
        id: volume.id.0,
        size: volume.size,
        sector: volume.sector.into(),
        cache: volume.cache.into(),
        compression: compression_word(volume.compression),
        readonly: volume.read_only,
        reservation: volume.options.reservation,
        special_small_blocks: volume.options.special_small_blocks,
        read_cache: volume.options.read_cache,
        read_cache_hits: volume.read_cache.hits,
        read_cache_misses: volume.read_cache.misses,
        limits: options::words(&volume.options),
        referenced_bytes: volume.referenced_bytes,
        unique_bytes: volume.unique_bytes,
        snapshots: volume.snapshots,
        origin: volume.origin.map(|origin| format!("{pool}/{origin}")),
        created: instant::from_millis(volume.created.0),
        base: volume.base.and_then(|base| bases::source(&base.source)),
        receiving: None,
    }
}
