//! Counters for live charts, and the pools behind ids. The counters are those of metrics: the thread
//! of a pool answers one look and lists its volumes in parts.

use millpond_api::names::{Name, VolumeName};
use millpond_api::{ApiError, DeviceLoad, PoolLoad, RequestLoad, VolumeSector, instant};

use super::connect::{Lines, lines};
use super::metrics::sum_of;
use super::service::Daemon;
use super::shard::{FIRST_MICROS, LATENCY_CLASSES, Load, Timed};

impl Daemon {
    /// Returns the counters of a pool, and those of one of its volumes if `volume` names one.
    ///
    /// # Errors
    /// When there is no such pool in service, or no such volume.
    pub async fn load(&self, pool: &str, volume: Option<&str>) -> Result<PoolLoad, ApiError> {
        let view = self.pool(pool).await?;
        let shard = self.shard(pool)?;
        let (volumes, rest) = shard.volume_uses().await?;
        let one = volume.map(|wanted| {
            let found = volumes.iter().find(|volume| volume.info.name == wanted);
            found.map(|volume| request_load(&volume.load)).ok_or_else(|| {
                let name = VolumeName { pool: pool.to_owned(), volume: wanted.to_owned() };
                ApiError::not_found(format!("no volume '{name}'; see 'millpond list {pool}'"))
            })
        });
        let time = instant::now();
        Ok(PoolLoad {
            time,
            imported: view.imported.unwrap_or(time),
            guests: request_load(&sum_of(volumes.iter().map(|volume| &*volume.load).chain([&*rest]))),
            volume: one.transpose()?,
            devices: view.devices.into_iter().map(|device| DeviceLoad { id: device.id, path: device.path, io: device.io }).collect(),
        })
    }

    /// Returns the lines with which programs use an export.
    ///
    /// # Errors
    /// When there is no such export, or it is a mount.
    pub async fn lines_of(&self, id: u64) -> Result<Lines, ApiError> {
        let export = self.exports().await?.into_iter().find(|export| export.id == id);
        let export = export.ok_or_else(|| ApiError::not_found(format!("no export {id}; see 'millpond exports'")))?;
        let sector = match export.name.parse() {
            Ok(Name::Volume(name) | Name::Snapshot(millpond_api::names::SnapshotName { of: name, .. })) => self.volume(&name).await?.sector,
            Err(_) => VolumeSector::S512e,
        };
        lines(&export, &sector).ok_or_else(|| ApiError::invalid(format!("export {id} is a mount: use its files in {}", export.address)))
    }

    /// Returns the pool of an export, by its id in text; none if there is no such export.
    pub(crate) fn pool_of_export(&self, id: &[String]) -> Vec<String> {
        let registry = self.registry();
        let ids = id.iter().filter_map(|id| id.parse::<u64>().ok());
        ids.filter_map(|id| registry.exports.get(&id)).map(|entry| entry.record.pool.clone()).collect()
    }

    /// Returns the pool that a full copy writes to, by the copy's id in text; none if there is no such
    /// copy.
    pub(crate) fn pools_of_copy(&self, id: &[String]) -> Vec<String> {
        let copies = id.iter().filter_map(|id| id.parse().ok()).filter_map(|id| self.full_copy(id).ok());
        copies.filter_map(|copy| copy.name.split('/').next().map(str::to_owned)).collect()
    }
}

fn request_load(load: &Load) -> RequestLoad {
    let times = |timed: Timed| load.times.get(timed as usize).map(|times| times.counts.to_vec()).unwrap_or_default();
    RequestLoad {
        io: load.io,
        ends_micros: (0..LATENCY_CLASSES - 1).map(|class| FIRST_MICROS << class).collect(),
        read_times: times(Timed::Read),
        write_times: times(Timed::Write),
        flush_times: times(Timed::Flush),
    }
}
