//! Starts a shard: a thread that makes the engine, which never leaves it, and then runs the loop.

use std::io;
use std::sync::mpsc;
use std::thread;

use millpond_block::{DeviceGeometry, DeviceSlot};
use millpond_device::{HostDevice, Ring, entropy};
use millpond_engine::{CommandError, Engine, Invalid, PoolSpec, PoolState, Time, Tuning};
use tokio::sync::watch;

use super::clock::Clock;
use super::error::ShardError;
use super::fall::Fall;
use super::handle::ShardHandle;
use super::pool::Pool;
use super::serve::need_descriptors;
use super::shard::Shard;

/// Blocks that the engine decompresses, or compresses a quarter of, in its turns: a single small
/// request is not worth another thread. The rest is done by helpers and between turns.
const CODEC_AT_ONCE: usize = 16;
/// Bytes that are read ahead of a guest that reads in order. At 64 KiB at a time these are 32
/// reads: enough to keep an SSD busy, and 10 ms of a hard disk.
const READ_AHEAD: u64 = 2 << 20;
/// Descriptors of a pool beside its devices: the ring and its waker.
const POOL_DESCRIPTORS: u64 = 2;

/// Formats the devices and takes the new pool into service; it is `Opening` until
/// [`ShardHandle::opened`] returns.
///
/// # Errors
/// [`ShardError::Command`] when the engine refuses the devices or the specification,
/// [`ShardError::Start`].
pub fn create(spec: PoolSpec, devices: Vec<HostDevice>, tuning: Tuning) -> Result<ShardHandle, ShardError> {
    let tuning = for_shard(tuning)?;
    spawn(devices, move |geometries, now| Engine::create(spec, geometries, tuning, now))
}

/// Takes the pool on the devices into service; it is `Opening` until [`ShardHandle::opened`]
/// returns.
///
/// # Errors
/// [`ShardError::Start`]. Problems of the pool itself show in its state.
pub fn import(devices: Vec<HostDevice>, tuning: Tuning) -> Result<ShardHandle, ShardError> {
    let tuning = for_shard(tuning)?;
    spawn(devices, move |geometries, now| Ok(Engine::import(geometries, tuning, now)))
}

/// Gives this import of a pool a random session, which distinguishes it from every other import,
/// lets the engine leave compression to its shard, and lets it read ahead: devices are opened past
/// the kernel's read-ahead.
fn for_shard(mut tuning: Tuning) -> Result<Tuning, ShardError> {
    if let Some(holder) = &mut tuning.holder {
        holder.session = entropy().map_err(ShardError::Start)?;
    }
    tuning.codec_at_once = CODEC_AT_ONCE;
    tuning.read_ahead = READ_AHEAD;
    Ok(tuning)
}

/// Runs a shard on its own thread. `make` is called there.
pub(super) fn spawn<P: Pool>(
    devices: Vec<HostDevice>,
    make: impl FnOnce(Vec<DeviceGeometry>, Time) -> Result<P, CommandError> + Send + 'static,
) -> Result<ShardHandle, ShardError> {
    spawn_by(Clock::default(), devices, make)
}

/// Like [`spawn`], with a clock of the caller's.
pub(super) fn spawn_by<P: Pool>(
    clock: Clock,
    devices: Vec<HostDevice>,
    make: impl FnOnce(Vec<DeviceGeometry>, Time) -> Result<P, CommandError> + Send + 'static,
) -> Result<ShardHandle, ShardError> {
    let (report, made) = mpsc::sync_channel(1);
    let body = move || {
        let (sender, watched) = watch::channel(PoolState::Opening);
        let fall = Fall::default();
        let (shard, handle) = match build(clock, devices, make, (sender.clone(), watched), fall.clone()) {
            Ok(built) => built,
            Err(error) => return drop(report.send(Err(error))),
        };
        if report.send(Ok(handle)).is_ok() {
            fall.watch(&sender, || shard.run());
        }
    };
    thread::Builder::new().name("shard".to_owned()).spawn(body).map_err(ShardError::Start)?;
    made.recv().unwrap_or_else(|_| Err(ShardError::Start(io::Error::other("the thread ended at once"))))
}

fn build<P: Pool>(
    clock: Clock,
    devices: Vec<HostDevice>,
    make: impl FnOnce(Vec<DeviceGeometry>, Time) -> Result<P, CommandError>,
    (state, watched): (watch::Sender<PoolState>, watch::Receiver<PoolState>),
    fall: Fall,
) -> Result<(Shard<P>, ShardHandle), ShardError> {
    need_descriptors(POOL_DESCRIPTORS)?;
    let mut ring = Ring::new().map_err(ShardError::Start)?;
    let geometries = devices.iter().map(HostDevice::geometry).collect();
    let mut spaces = Vec::new();
    for mut device in devices {
        spaces.push(device.take_space());
        ring.add_device(device)
            .map_err(|_| ShardError::Command(CommandError::Invalid(Invalid::Caller("too many devices; use fewer".to_owned()))))?;
    }
    let mut pool = make(geometries, Time(clock.wall_millis()))?;
    (0..).map(DeviceSlot).zip(spaces).for_each(|(slot, space)| pool.set_space(slot, space));
    let (sender, messages) = mpsc::channel();
    let (labels, watched_labels) = watch::channel(None);
    let handle = ShardHandle::new(sender, ring.waker(), watched, watched_labels, fall);
    Ok((Shard::new(clock, ring, pool, messages, state, labels), handle))
}
