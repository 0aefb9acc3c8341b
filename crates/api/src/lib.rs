//! Types of the control API, their grammar on the command line, and a client.
//!
//! The daemon serves the types; the command line, the API's first client, uses them. The OpenAPI
//! document is generated from the types and the daemon's routes.
//!
//! *Architecture Invariant:* this crate does not know the engine. A client of the API needs nothing
//! else.
#![forbid(unsafe_code)]

mod access;
mod advice;
mod checkpoint;
pub mod client;
mod closing;
mod condition;
mod device;
pub mod device_words;
mod error;
mod event;
mod export;
pub mod failure;
mod feature;
mod found;
pub mod identity;
pub mod instant;
mod job;
mod layout;
mod load;
pub mod names;
pub mod path;
mod plan;
mod policy;
mod pool;
mod publication;
mod replacement;
#[cfg(feature = "testing")]
pub mod sample;
pub mod send_target;
pub mod size;
mod snapshot;
mod status;
mod volume;
mod wipe;
mod words;

pub use access::{CallerRole, CreateLink, CreateToken, CreatedToken, Identity, Link, Login, Role, Token};
pub use advice::{SmallBytes, SpecialAdvice, SpecialThreshold, VolumeSmall};
pub use checkpoint::{Checkpoint, ListCheckpoints, Verified};
pub use closing::PoolExport;
pub use condition::{Alert, AlertState, Condition, ConditionKind, SinkTest};
pub use device::{
    AddDevices, Device, DeviceCap, DeviceClass, DeviceGroup, DeviceHealth, DeviceIo, DeviceLayout, DeviceRemoval, DeviceSpec, DeviceState,
    IoMode, LimitDevice, RemovalPlan, RemoveDevice,
};
pub use error::{ApiError, ErrorBody, ErrorKind};
pub use event::{Caller, CallerKind, Event, EventKind, EventSeverity, Severity};
pub use export::{
    Access, CreateExport, CreateFuse, CreateNbd, CreateTls, CreateVhostUser, Export, ExportClient, ExportKind, ExportState, ExportTls,
    ExportTlsMode, ExportVolume, NbdLimits, TlsCredentials, TlsMode,
};
pub use feature::{PoolFeature, PoolUpgrade, UpgradePool};
pub use found::{Found, FoundState, LostRange};
pub use job::{GroupFill, Job, JobKind, JobState, LostData, Rebalance, RebalancePool, Scrub, ScrubPool, ScrubState};
pub use layout::{ClassSpec, LayoutSpec, OtherLayout, PoolLayout};
pub use load::{DeviceLoad, PoolLoad, RequestLoad};
pub use plan::{PolicyPlan, PoolPlan, VolumePlan};
pub use policy::{CreatePolicy, Policy, PolicyRun, PolicySend, PolicyState, PolicyVolume, PolicyVolumes, RunPolicy, SetPolicy};
pub use pool::{CreatePool, EndedExport, GuestIo, ImportPool, LeftDevice, Pool, PoolHealth, PoolIo, PoolRemoval, PoolSpace, SetPool};
pub use publication::{BaseSource, ClonePublication, ClonedPublication, FoundPublication, Rebase, Rebased};
pub use replacement::{DeviceNamed, ReplaceDevice, Replacement};
pub use snapshot::{
    CloneSnapshot, CopySnapshot, CreateSnapshots, Created, DiffExtent, ExtentKind, FullCopy, FullCopyState, Hold, Rollback, RolledBack,
    Snapshot, SnapshotHold,
};
pub use status::{RequestMemory, Status};
pub use volume::{
    CreateVolume, Destroy, Destroyed, Extent, IncompleteReceive, LIMITS, Place, Promote, Promoted, Rename, Resize, Resized, SetProperties,
    SetSector, Volume, VolumeCache, VolumeCompression, VolumeSector,
};
pub use wipe::{WipeMode, WipePool, Wiping};
