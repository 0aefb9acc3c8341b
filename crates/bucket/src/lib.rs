//! Buckets: object stores that speak S3, as devices.
//!
//! An operation and its answer are values. The client carries one out with one request: it never
//! repeats a request, so an answer in doubt stays in doubt until the head of the object settles it
//! ([`Creation`]). The modules without the feature `client` are pure; the simulator uses them.
//! Names and heads of objects are in `millpond-format`; `docs/decisions/0039-buckets.md` has the
//! reasons.
#![forbid(unsafe_code)]

mod anchor;
#[cfg(feature = "client")]
mod client;
mod creation;
#[cfg(feature = "client")]
mod credentials;
mod error;
#[cfg(feature = "client")]
mod files;
mod newest;
mod operation;
#[cfg(feature = "client")]
mod place;
mod planted;
#[cfg(feature = "client")]
mod probe;
mod term;

pub use anchor::{AnchorCommit, Committed};
#[cfg(feature = "client")]
pub use client::Bucket;
pub use creation::{Created, Creation};
#[cfg(feature = "client")]
pub use credentials::{Credentials, CredentialsError};
pub use error::{BucketError, ErrorKind, StoreReason, Verb};
#[cfg(feature = "client")]
pub use files::{Files, Listed};
pub use newest::{Newest, Search, Series};
pub use operation::{Answer, Operation, Part};
#[cfg(feature = "client")]
pub use place::{Place, PlaceError};
pub use planted::Planted;
#[cfg(feature = "client")]
pub use probe::{Check, CheckName, CheckState, Lack, Probe, Verdict};
pub use term::{Claimed, TermClaim};
