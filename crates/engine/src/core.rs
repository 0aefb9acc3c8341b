//! The state that the log describes: maps, catalog, space. All of it is a deterministic function of
//! the applied records, so running and replaying use the same code. No I/O: a node that is not in
//! memory is returned as a [`Miss`].

mod catalog;
mod clear;
mod map;
mod promote;
mod reclaim;
mod records;
mod reservations;
mod snapshots;
mod state;
mod stored_deadlist;

pub(crate) use catalog::{Base, Catalog, Head, Lineage, Snapshot, Volume, Walk};
pub(crate) use promote::{Promotion, starts_later};
pub(crate) use records::{cache_code, cache_of, compression_code, compression_of, sector_code, sector_of};
pub(crate) use reservations::Reservations;
pub(crate) use snapshots::SealedPage;
pub(crate) use state::{Core, MetaFlush};
pub(crate) use stored_deadlist::{Stored, StoredDeadlist};
