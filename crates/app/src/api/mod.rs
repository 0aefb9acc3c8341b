//! Types and routes of the control API. The daemon serves the types and the command line, the API's
//! first client, uses them. The OpenAPI document is generated from the types and the routes.

mod advice;
mod checkpoint;
mod closing;
mod device;
mod error;
mod event;
mod export;
mod found;
mod job;
mod layout;
mod pool;
mod replacement;
pub mod routes;
#[cfg(test)]
pub mod sample;
mod snapshot;
mod status;
mod volume;
mod wipe;
mod words;

pub use advice::{SmallBytes, SpecialAdvice, SpecialThreshold, VolumeSmall};
pub use checkpoint::{Checkpoint, ListCheckpoints, Verified};
pub use closing::PoolExport;
pub use device::{
    AddDevices, Device, DeviceCap, DeviceClass, DeviceGroup, DeviceHealth, DeviceIo, DeviceLayout, DeviceRemoval, DeviceSpec, DeviceState,
    IoMode, LimitDevice, RemovalPlan, RemoveDevice,
};
pub use error::{ApiError, ErrorBody, ErrorKind};
pub use event::{Event, Severity};
pub use export::{
    Access, CreateExport, CreateFuse, CreateNbd, CreateTls, CreateVhostUser, Export, ExportClient, ExportKind, ExportState, ExportTls,
    ExportVolume, NbdLimits, TlsCredentials, TlsMode,
};
pub use found::{Found, FoundState, LostRange};
pub use job::{GroupFill, Job, JobKind, JobState, LostData, Rebalance, RebalancePool, Scrub, ScrubPool, ScrubState};
pub use layout::{ClassSpec, LayoutSpec};
pub use pool::{CreatePool, EndedExport, GuestIo, ImportPool, LeftDevice, Pool, PoolHealth, PoolIo, PoolRemoval, PoolSpace, SetPool};
pub use replacement::{DeviceNamed, ReplaceDevice, Replacement};
pub use snapshot::{
    CloneSnapshot, CopySnapshot, CreateSnapshots, Created, DiffExtent, ExtentKind, FullCopy, FullCopyState, Hold, Rollback, RolledBack,
    Snapshot, SnapshotHold,
};
pub use status::{RequestMemory, Status};
pub use volume::{
    CreateVolume, Destroy, Destroyed, Extent, LIMITS, Place, Promote, Promoted, Rename, Resize, Resized, SetProperties, SetSector, Volume,
    VolumeCache, VolumeCompression, VolumeSector,
};
pub use wipe::{WipeMode, WipePool, Wiping};
