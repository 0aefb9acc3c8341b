//! Replacing one device by another: a new one, or a spare of the pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_api::{ApiError, DeviceNamed, EventKind, JobKind, Pool, ReplaceDevice, Replacement};
use millpond_block::{DeviceGeometry, DeviceSlot, MemberId};
use millpond_device::HostDevice;
use millpond_engine::{Busy, Class, Command, CommandError, DeviceChange, DeviceCommand, GroupSpec, Layout, NewDevice, Reply};
use tokio::time::{sleep, timeout};

use super::host_calls::PATIENCE;
use super::pools::{all_vacant, open_rehearsed, rehearse};
use super::service::Daemon;
use super::shard::{HostDeviceInfo, ShardError, ShardHandle};

/// Time between two looks at a spare that leaves its place.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for labels that are being written before a change of devices is refused, and the
/// time between two tries.
const SETTLE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(20);

/// A device that the pool has open already.
struct Own {
    member: MemberId,
    class: Class,
    /// It is no replacement in progress, and has none.
    idle: bool,
    slot: DeviceSlot,
    host: HostDeviceInfo,
    named: DeviceNamed,
}

impl Own {
    fn geometry(&self) -> DeviceGeometry {
        self.host.geometry
    }
}

impl Daemon {
    /// Begins to replace a device by another; with `dry_run`, only checks that this is possible.
    /// The copying has begun on return, and continues after a restart.
    ///
    /// # Errors
    /// When there is no such pool or device, the new one cannot be used or holds something, or the
    /// engine refuses. A dry run has the same errors.
    pub async fn replace_device(self: &Arc<Daemon>, name: &str, request: ReplaceDevice) -> Result<Replacement, ApiError> {
        let _pool = self.lock_pool(name).await?;
        let during = format!("cannot replace {} of pool '{name}'", request.old);
        let shard = self.shard(name)?;
        let member = self.member(name, &shard, &request.old).await?;
        let old = self.device_named(name, &shard, member).await?;
        let _devices = self.reserve_devices([request.new.path.as_str()].into_iter()).map_err(|e| e.during(&during))?;
        if let Some(own) = self.own_device(name, &shard, &request.new.path).await? {
            let new = own.named.clone();
            self.replace_by_spare(name, &shard, (member, own), request.dry_run).await.map_err(|e| e.during(&during))?;
            return Ok(Replacement { pool: self.pool(name).await?, old, new, spare: true });
        }
        let io = self.io_mode(name);
        let fresh = all_vacant(&self.calls, std::slice::from_ref(&request.new), request.force).await.map_err(|e| e.during(&during))?;
        let mut opened = rehearse(&self.calls, std::slice::from_ref(&request.new), io).await.map_err(|e| e.during(&during))?;
        let Some(found) = opened.pop() else { return Err(ApiError::internal("no device was looked at").during(during)) };
        let new = named(&request.new.path, &found);
        let change = DeviceChange::Replace { member, device: found.geometry() };
        settled(&shard, Command::Devices(DeviceCommand::CheckDevices(change))).await.map_err(|e| ApiError::from(e).during(&during))?;
        // a spare may have taken the place of the device meanwhile
        if self.device_named(name, &shard, member).await?.id != old.id {
            return Err(ApiError::busy("its devices have just changed; see 'pool status' and try again").during(&during));
        }
        let warnings = self.placement_warnings(std::slice::from_ref(&request.new)).await;
        if !request.dry_run {
            let path = PathBuf::from(&request.new.path);
            let device = shard.add_device(open_rehearsed(&self.calls, found, &request.new, io).await?).await?;
            self.expect_devices(name, std::slice::from_ref(&path))?;
            if let Err(error) = shard.command(DeviceCommand::Replace { member, device }).await {
                return Err(self.not_taken(name, &shard, &[device], &fresh, &[path], error).await.during(&during));
            }
            self.tell(EventKind::PoolReplacing, name);
            self.follow(name, Some((JobKind::Replace, member)));
        }
        Ok(Replacement { pool: Pool { warnings, ..self.pool(name).await? }, old, new, spare: false })
    }

    /// Returns the device of the pool that is open at a path, or at the target of a link.
    async fn own_device(&self, name: &str, shard: &ShardHandle, path: &str) -> Result<Option<Own>, ApiError> {
        let status = shard.status().await?;
        let open: Vec<(DeviceSlot, HostDeviceInfo)> = status.hosts().map(|(slot, host)| (slot, host.clone())).collect();
        let same = move |path: &Path| {
            let real = path.canonicalize();
            let is = |host: &HostDeviceInfo| {
                host.path == path || host.path.canonicalize().is_ok_and(|at| real.as_ref().is_ok_and(|real| at == *real))
            };
            open.into_iter().find(|(_, host)| is(host))
        };
        // a path that does not answer is refused when it is opened
        let Some((slot, host)) = self.calls.call(Path::new(path), PATIENCE, same).await.ok().flatten() else { return Ok(None) };
        let holds = |device: &&millpond_engine::DeviceInfo| device.slot == Some(slot) || device.replacement == Some(slot);
        let Some(device) = status.pool.devices.iter().find(holds) else { return Ok(None) };
        let replacement = device.replacement == Some(slot);
        let id = self.device_names(name, &status).get(device.member, replacement).map(|named| named.id.clone()).unwrap_or_default();
        let named =
            DeviceNamed { id, path: host.path.display().to_string(), was: None, serial: host.serial.clone(), size: host.geometry.size };
        Ok(Some(Own { member: device.member, class: device.class, idle: !replacement && device.replacement.is_none(), slot, host, named }))
    }

    /// Puts a spare of the pool in the place of a member. The spare, which holds no data, first
    /// leaves its own place. It stays open.
    async fn replace_by_spare(
        self: &Arc<Daemon>,
        name: &str,
        shard: &ShardHandle,
        (member, spare): (MemberId, Own),
        dry_run: bool,
    ) -> Result<(), ApiError> {
        if spare.class != Class::Spare || !spare.idle || spare.member == member {
            let message = format!(
                "{} is a device of pool '{name}' already, and no spare of it; give another device, or a spare that 'pool status' shows",
                spare.named
            );
            return Err(ApiError::busy(message));
        }
        settled(shard, Command::Devices(DeviceCommand::CheckDevices(DeviceChange::Replace { member, device: spare.geometry() }))).await?;
        if dry_run {
            return Ok(());
        }
        let path = spare.host.path.clone();
        // from here on, the next import finds the device, whatever happens
        self.expect_devices(name, std::slice::from_ref(&path))?;
        shard.command(DeviceCommand::Remove { member: spare.member, dry_run: false }).await?;
        let device = NewDevice { slot: spare.slot, geometry: spare.geometry() };
        let taken = timeout(self.options.deadlines.command, take(shard, member, device)).await;
        match taken {
            Ok(Ok(())) => {}
            // the pool was given up: the next import finds its devices
            Ok(Err(ShardError::Gone)) => return Err(ShardError::Gone.into()),
            failed => {
                let error = match failed {
                    Ok(Err(error)) => ApiError::from(error),
                    _ => ApiError::busy("the pool did not release the spare in time"),
                };
                let groups = vec![GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: Some(1) }];
                let back = shard.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).await;
                let back = back.err().map(|e| format!("; the spare {} is none any more ({e}), add it again", path.display()));
                self.follow_devices(name);
                return Err(ApiError { message: format!("{}{}", error.message, back.unwrap_or_default()), ..error });
            }
        }
        self.tell(EventKind::PoolReplacing, name);
        self.follow(name, Some((JobKind::Replace, member)));
        Ok(())
    }
}

/// Carries out a command that checks a change of the devices of a pool. A pool refuses it while
/// labels are being written, for instance just after a replacement has ended: the command is
/// repeated until they are durable, for at most [`SETTLE`].
///
/// # Errors
/// Those of the command.
pub(super) async fn settled(shard: &ShardHandle, command: Command) -> Result<Reply, ShardError> {
    let end = Instant::now() + SETTLE;
    loop {
        let answer = shard.command(command.clone()).await;
        if !matches!(answer, Err(ShardError::Command(CommandError::Busy(Busy::Relabeling)))) || Instant::now() >= end {
            return answer;
        }
        sleep(RETRY).await;
    }
}

/// Waits until a spare has left its place, and gives it the place of `member`.
async fn take(shard: &ShardHandle, member: MemberId, device: NewDevice) -> Result<(), ShardError> {
    loop {
        let status = shard.status().await?;
        if !status.pool.devices.iter().any(|listed| listed.slot == Some(device.slot)) {
            match shard.command(DeviceCommand::Replace { member, device }).await {
                Err(ShardError::Command(CommandError::Busy(_))) => {}
                outcome => return outcome.map(drop),
            }
        }
        sleep(LOOK).await;
    }
}

/// Names a device that does not belong to the pool yet.
fn named(path: &str, device: &HostDevice) -> DeviceNamed {
    let (serial, size) = (device.serial().map(str::to_owned), device.geometry().size);
    DeviceNamed { id: String::new(), path: path.to_owned(), was: None, serial, size }
}
