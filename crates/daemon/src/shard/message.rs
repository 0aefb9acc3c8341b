//! Messages of handles to their shard, with the channels for the answers.

use std::sync::Arc;
#[cfg(test)]
use std::sync::mpsc;

use millpond_block::{ByteRange, DeviceSlot};
use millpond_device::{DeviceLimit, HostDevice};
use millpond_engine::{Command, DiffExtent, NewDevice, Reply, SnapshotId, SnapshotInfo, Target, VolumeId, VolumeInfo};
use millpond_format::DeviceNote;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use super::error::ShardError;
use super::fetches::FetchOrder;
use super::load::{Load, VolumeUse};
use super::report::{ExportId, ExportInfo, OpenFile, ShardLook, ShardStatus};
use super::spec::{FuseExport, NbdExport};
use super::vhost::VhostUserExport;
use crate::budget::Budget;
use crate::helpers::Helpers;
use crate::tls::Credentials;

/// Answer to a look; `None` until there is one.
pub(super) type LookAnswer = Option<Result<Arc<ShardLook>, Arc<ShardError>>>;

/// Channel for the answer to a message.
pub(super) type Answer<T> = oneshot::Sender<Result<T, ShardError>>;

/// Message of a handle to its shard.
pub(super) enum Message {
    Command(Command, Answer<Reply>),
    Export(NbdExport, Answer<ExportInfo>),
    ExportVhostUser(VhostUserExport, Answer<ExportInfo>),
    ExportFuse(FuseExport, Answer<ExportInfo>),
    RenewTls(ExportId, Credentials, Answer<()>),
    KeepPromises(Target, Answer<()>),
    OpenFiles(Answer<Vec<OpenFile>>),
    Unexport(ExportId, Answer<()>),
    HangUp(Target, Answer<()>),
    Status(Answer<ShardStatus>),
    /// Status and exports at one instant, for all callers that look meanwhile.
    Look(watch::Sender<LookAnswer>),
    Unanswered(Answer<Vec<DeviceSlot>>),
    Volumes(Answer<Vec<VolumeInfo>>),
    VolumeUses(Option<VolumeId>, Answer<(Vec<VolumeUse>, Box<Load>)>),
    FindVolume(String, Answer<Option<VolumeInfo>>),
    Snapshots(Option<SnapshotId>, Answer<Vec<SnapshotInfo>>),
    FindSnapshot(VolumeId, String, Answer<Option<SnapshotInfo>>),
    FindSnapshots(VolumeId, Vec<String>, Answer<Vec<SnapshotInfo>>),
    Exports(Answer<Vec<ExportInfo>>),
    Diff(Option<Target>, Target, Answer<Vec<DiffExtent>>),
    Limit(DeviceSlot, DeviceLimit, Answer<()>),
    ReadCache(u64),
    /// Descriptions of the devices, for their labels.
    Describe(Vec<DeviceNote>),
    /// Whether the file systems below the devices are nearly full.
    Short(bool),
    Budget(Arc<Budget>),
    Helpers(Arc<Helpers>),
    /// The name of the pool, and where the chunks go that it lacks.
    Fetches(String, UnboundedSender<FetchOrder>),
    Read(Target, ByteRange, Answer<Vec<u8>>),
    Write(Target, u64, Vec<u8>, Answer<()>),
    Flush(Target, Answer<()>),
    AddDevice(Box<HostDevice>, Answer<NewDevice>),
    RemoveDevice(DeviceSlot, Answer<bool>),
    Shutdown(Answer<()>),
    /// Panics, as a defect of the program would.
    #[cfg(test)]
    Panic,
    /// Blocks the thread until the sender is dropped, as the kernel may.
    #[cfg(test)]
    Hold(mpsc::Receiver<()>),
    Abandon,
}
