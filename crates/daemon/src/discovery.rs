//! Finds the restore points of a pool on its devices, in service or not. Reads only, and takes no
//! lock.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use millpond_api::{ApiError, Checkpoint, ErrorKind, ListCheckpoints, Verified};
use millpond_block::{DeviceError, DeviceGeometry, Io, IoDone, IoKind};
use millpond_engine::{Aim, RestorePoint, RestorePointScan, Surveyed, Tuning, Whole};

use super::import::Search;
use super::labels::{self, Labelled};
use super::scan::{Scan, check_readable};
use super::service::Daemon;
use crate::hint;
use millpond_api::instant;

/// Reason why a checkpoint is not whole without the log after it.
const REUSED: &str = "segments of it were used again since";
/// Milliseconds between two heartbeats of the host that holds a pool.
const HEARTBEAT_MILLIS: u64 = 2_000;
/// EIO, for a failed read without an error number.
const UNREADABLE: i32 = 5;

impl Daemon {
    /// Returns the restore points of a pool, newest first.
    ///
    /// # Errors
    /// When the pool is not found, or its devices cannot be read, or not by this version.
    pub async fn checkpoints(&self, request: ListCheckpoints) -> Result<Vec<Checkpoint>, ApiError> {
        let during = format!("cannot list the checkpoints of '{}'", request.name);
        let known = self.registry().pools.get(&request.name).map(|entry| (entry.record.clone(), entry.shard.clone()));
        let one = |scan: Scan, wanted: &str| match scan.newer(wanted) {
            Some(error) => Err(error),
            None => Search::one(scan.pools, wanted),
        };
        let (found, shard) = match known {
            Some((record, shard)) if request.search.is_empty() => {
                let scan = self.scan(record.paths().cloned().collect()).await;
                (one(scan, &record.id).map_err(|e| e.during(&during))?, shard.ok())
            }
            _ => (one(self.search(&request.search).await, &request.name)?, None),
        };
        // a pool in service goes on without a device of a later version, wherever that is found
        if shard.is_none() {
            check_readable(&found).map_err(|e| e.during(&during))?;
        }
        let surveyed = self.survey(found.devices(), Aim::Newest).await.map_err(|e| e.during(during))?;
        let written = match shard {
            Some(shard) => shard.status().await.ok().map(|status| status.metrics.written_bytes),
            None => None,
        };
        let now = written.map(|_| instant::to_millis(instant::now()));
        let end = End::of(&surveyed, written, now.or(last_use(&found)));
        let start = surveyed.points.iter().find(|point| point.is_start()).map(|point| point.id);
        let checkpoint = |point: &RestorePoint| {
            let rewound = (Some(point.id) == start).then(|| end.after_replay(point, &surveyed));
            Checkpoint { lost_by_rewind: rewound.and_then(|rewound| rewound.lost_bytes), ..end.lost_to(point) }
        };
        // a point that an import wrote repeats an earlier one
        Ok(surveyed.points.iter().filter(|point| !point.again).map(checkpoint).collect())
    }

    /// Finds the restore points on devices.
    async fn survey(&self, devices: Vec<PathBuf>, aim: Aim) -> Result<Surveyed, ApiError> {
        let tuning = Tuning { aim, ..self.options.tuning.clone() };
        let surveyed = tokio::task::spawn_blocking(move || survey(&devices, tuning)).await;
        let surveyed = surveyed.map_err(|e| ApiError::internal(e.to_string()))?;
        surveyed.map_err(|why| ApiError::new(ErrorKind::Unavailable, why))
    }

    /// Returns the checkpoint that an import goes back to, with the loss: the requested one, or the
    /// newest that is whole.
    pub(super) async fn destination(&self, pool: &Labelled, aim: Aim) -> Result<Checkpoint, ApiError> {
        let surveyed = self.survey(pool.devices(), aim).await?;
        let see = "see 'millpond pool checkpoints'";
        let end = End::of(&surveyed, None, last_use(pool));
        let Aim::To(id) = aim else {
            let point = surveyed.points.iter().find(|point| point.is_start());
            let point = point.ok_or_else(|| ApiError::busy(format!("no checkpoint is whole; {see}, or bring missing devices back")))?;
            return Ok(end.after_replay(point, &surveyed));
        };
        let point = surveyed.points.iter().find(|point| point.id == id);
        let point = point.ok_or_else(|| ApiError::not_found(format!("checkpoint {id} is not on the devices; {see}")))?;
        match &point.whole {
            Whole::No(why) => Err(ApiError::busy(format!("checkpoint {id} is not whole: {why}; choose another, {see}"))),
            Whole::WithLog(_) => Err(ApiError::busy(format!("checkpoint {id} is not whole: {REUSED}; choose another, {see}"))),
            Whole::Yes | Whole::Unknown(_) => Ok(end.lost_to(point)),
        }
    }
}

/// Returns the end of use of a pool that was not closed: its host writes a heartbeat every two
/// seconds.
fn last_use(pool: &Labelled) -> Option<u64> {
    pool.seen.map(|seen| seen + HEARTBEAT_MILLIS)
}

/// Newest known state of a pool.
struct End {
    /// Bytes that guests had written in all.
    written: Option<u64>,
    time: u64,
}

impl End {
    /// Returns the newest state: of a pool in service from its counter `written`, else from the
    /// devices. `seen` is the last use of a pool that was not closed.
    fn of(surveyed: &Surveyed, written: Option<u64>, seen: Option<u64>) -> End {
        let newest = surveyed.points.iter().filter_map(|point| point.written).max();
        let on_devices = surveyed.points.iter().find(|p| p.is_start()).and_then(|p| p.written).map(|written| written + surveyed.after);
        let time = surveyed.points.iter().map(|point| point.time.0).max().unwrap_or(0);
        End { written: written.or(on_devices.max(newest)), time: time.max(seen.unwrap_or(0)) }
    }

    fn lost_to(&self, point: &RestorePoint) -> Checkpoint {
        let (verified, reason) = match &point.whole {
            Whole::Yes => (Verified::Yes, None),
            Whole::No(why) => (Verified::No, Some(why.clone())),
            Whole::WithLog(_) => (Verified::No, Some(REUSED.to_owned())),
            Whole::Unknown(why) => (Verified::Unknown, Some(why.clone())),
        };
        let lost_bytes = self.written.zip(point.written).map(|(end, then)| end.saturating_sub(then));
        // time in which nothing was written is not lost
        let lost_millis = if lost_bytes == Some(0) { 0 } else { self.time.saturating_sub(point.time.0) };
        Checkpoint {
            id: point.id,
            time: instant::from_millis(point.time.0),
            lsn: point.lsn.0,
            copies: point.copies,
            verified,
            reason,
            lost_millis,
            lost_bytes,
            lost_by_rewind: None,
        }
    }

    /// Returns the loss when the intact part of the log after the newest whole point is replayed.
    fn after_replay(&self, point: &RestorePoint, surveyed: &Surveyed) -> Checkpoint {
        let before = self.lost_to(point);
        let lost = before.lost_bytes.map(|lost| lost.saturating_sub(surveyed.after)).filter(|_| !surveyed.log_damaged);
        let lost_millis = if lost == Some(0) { 0 } else { before.lost_millis };
        Checkpoint { lost_bytes: lost, lost_millis, lost_by_rewind: lost, ..before }
    }
}

/// Runs the search for restore points to its end.
fn survey(paths: &[PathBuf], tuning: Tuning) -> Result<Surveyed, String> {
    let open = |path: &PathBuf| labels::open(path).map_err(|e| format!("{} cannot be read ({e}); check the path", path.display()));
    let devices = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let geometry = |(_, size): &(File, u64)| DeviceGeometry { size: *size, logical_sector: 512, physical_sector: 4096 };
    let mut survey = RestorePointScan::new(devices.iter().map(geometry).collect(), tuning);
    loop {
        if let Some(found) = survey.turn() {
            return found.map_err(|error| hint::open(&error));
        }
        while let Some(io) = survey.pop_io() {
            survey.io_done(read(&devices, io));
        }
    }
}

/// Carries out one read.
fn read(devices: &[(File, u64)], io: Io) -> IoDone {
    let IoKind::Read { offset, length, mut buf } = io.kind else {
        return IoDone { id: io.id, result: Err(DeviceError::Gone), buf: None };
    };
    let device = devices.get(usize::from(io.device.0)).map(|(file, _)| file);
    let result = match (device, buf.bytes_mut().get_mut(..length)) {
        (Some(file), Some(to)) => file.read_exact_at(to, offset).map_err(|e| DeviceError::Failed(e.raw_os_error().unwrap_or(UNREADABLE))),
        _ => Err(DeviceError::Gone),
    };
    IoDone { id: io.id, result, buf: Some(buf) }
}
