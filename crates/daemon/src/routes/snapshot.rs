//! Snapshots.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use millpond_api::names::{Name, SnapshotName};
use millpond_api::{
    ApiError, ClonePublication, CloneSnapshot, ClonedPublication, CopySnapshot, CreateSnapshots, Created, DiffExtent, ErrorBody, ErrorKind,
    FullCopy, Hold, Rebase, Rebased, Rename, Rollback, RolledBack, Snapshot, Volume,
};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::{soon, whole};
use super::input::{Body, QueryString};
use super::refused::Refused;
use crate::Daemon;
use crate::access::Caller;

/// Pool, volume and snapshot from a path.
type Parts = Path<(String, String, String)>;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get))
        .routes(routes!(rename))
        .routes(routes!(rollback))
        .routes(routes!(clone))
        .routes(routes!(clone_publication))
        .routes(routes!(rebase))
        .routes(routes!(copy))
        .routes(routes!(get_copy, stop_copy))
        .routes(routes!(hold))
        .routes(routes!(release))
        .routes(routes!(diff))
}

fn named(Path((pool, volume, snapshot)): Parts) -> Result<SnapshotName, ApiError> {
    Ok(format!("{pool}/{volume}@{snapshot}").parse()?)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SnapshotsQuery {
    /// Name of a pool: lists only its snapshots.
    pool: Option<String>,
    /// Name of a volume: lists only its snapshots. Needs `pool`.
    volume: Option<String>,
}

/// Lists snapshots by volume, oldest first.
#[utoipa::path(get, path = "/v1/snapshots", params(SnapshotsQuery),
    responses((status = 200, body = [Snapshot]), (status = "default", body = ErrorBody)))]
async fn list(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    QueryString(of): QueryString<SnapshotsQuery>,
) -> Result<Json<Vec<Snapshot>>, Refused> {
    caller.check(of.pool.as_deref())?;
    let mut snapshots = daemon.snapshots(of.pool.as_deref(), of.volume.as_deref()).await?;
    snapshots.retain(|snapshot| caller.may_use_name(&snapshot.name));
    Ok(Json(snapshots))
}

/// Takes snapshots.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots", request_body = CreateSnapshots,
    responses((status = 200, body = Created), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, caller: Caller, Body(request): Body<CreateSnapshots>) -> Result<Json<Created>, Refused> {
    if request.freeze.is_some() && caller.pools.is_some() {
        // the path could be that of another guest
        let message = format!("{} is not for all pools, so it may not name the socket of a guest agent", caller.who);
        return Err(ApiError::new(ErrorKind::Forbidden, message).into());
    }
    soon(&daemon, |daemon| async move { daemon.create_snapshots(request).await }).await.map(Json)
}

/// Returns one snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{pool}/{volume}/{snapshot}",
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, parts: Parts) -> Result<Json<Snapshot>, Refused> {
    Ok(daemon.snapshot(&named(parts)?).await.map(Json)?)
}

/// Renames a snapshot.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/rename", request_body = Rename,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
async fn rename(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Rename>) -> Result<StatusCode, Refused> {
    soon(&daemon, |daemon| async move { daemon.rename(&Name::Snapshot(named(parts)?), &request).await })
        .await
        .map(|()| StatusCode::NO_CONTENT)
}

/// Rolls a volume back to a snapshot.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/rollback", request_body = Rollback,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = RolledBack), (status = "default", body = ErrorBody)))]
async fn rollback(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Rollback>) -> Result<Json<RolledBack>, Refused> {
    soon(&daemon, |daemon| async move { daemon.rollback(&named(parts)?, &request).await }).await.map(Json)
}

/// Creates a clone, a writable volume that starts from a snapshot.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/clone", request_body = CloneSnapshot,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn clone(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<CloneSnapshot>) -> Result<Json<Volume>, Refused> {
    soon(&daemon, |daemon| async move { daemon.clone_snapshot(&named(parts)?, &request).await }).await.map(Json)
}

/// Creates a clone of a publication, whose blocks are fetched when they are read.
///
/// Durable when answered. The target is read by a process of the daemon, with its environment.
#[utoipa::path(post, path = "/v1/publications/clone", request_body = ClonePublication,
    responses((status = 200, body = ClonedPublication), (status = "default", body = ErrorBody)))]
async fn clone_publication(
    State(daemon): State<Arc<Daemon>>,
    Body(request): Body<ClonePublication>,
) -> Result<Json<ClonedPublication>, Refused> {
    whole(&daemon, |daemon| async move { daemon.clone_publication(&request).await }).await.map(Json)
}

/// Fetches the blocks of a base from another address, where the same publication is.
///
/// Durable when answered. The target is read by a process of the daemon, with its environment; the old
/// target is not.
#[utoipa::path(post, path = "/v1/publications/rebase", request_body = Rebase,
    responses((status = 200, body = Rebased), (status = "default", body = ErrorBody)))]
async fn rebase(State(daemon): State<Arc<Daemon>>, Body(request): Body<Rebase>) -> Result<Json<Rebased>, Refused> {
    whole(&daemon, |daemon| async move { daemon.rebase(&request).await }).await.map(Json)
}

/// Starts a full copy of a snapshot into a new volume, in any pool.
///
/// The copy runs in the background after the answer.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/copy", request_body = CopySnapshot,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn copy(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<CopySnapshot>) -> Result<Json<FullCopy>, Refused> {
    soon(&daemon, |daemon| async move { daemon.copy_snapshot(&named(parts)?, &request).await }).await.map(Json)
}

/// Returns the progress or the result of a full copy.
#[utoipa::path(get, path = "/v1/copies/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn get_copy(State(daemon): State<Arc<Daemon>>, Path(id): Path<u64>) -> Result<Json<FullCopy>, Refused> {
    Ok(daemon.full_copy(id).map(Json)?)
}

/// Stops a full copy and destroys the unfinished volume.
#[utoipa::path(delete, path = "/v1/copies/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn stop_copy(State(daemon): State<Arc<Daemon>>, Path(id): Path<u64>) -> Result<Json<FullCopy>, Refused> {
    Ok(daemon.stop_copy(id).map(Json)?)
}

/// Adds a hold, which keeps the snapshot from being destroyed.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/hold", request_body = Hold,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn hold(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Hold>) -> Result<Json<Snapshot>, Refused> {
    soon(&daemon, |daemon| async move { daemon.hold(&named(parts)?, &request).await }).await.map(Json)
}

/// Selects a hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct OfTag {
    /// Tag of the hold; without it, a hold without a tag is selected.
    tag: Option<String>,
    /// If true, the snapshot was held to be sent, and was sent: an event says so.
    #[serde(default)]
    sent: bool,
}

/// Releases one hold.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/release",
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path), OfTag),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn release(State(daemon): State<Arc<Daemon>>, parts: Parts, QueryString(of): QueryString<OfTag>) -> Result<Json<Snapshot>, Refused> {
    soon(&daemon, |daemon| async move { daemon.release(&named(parts)?, of.tag, of.sent).await }).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DiffQuery {
    /// Full name of the older state.
    older: String,
    /// Full name of the newer state; by default the head of the volume.
    newer: Option<String>,
}

/// Lists the ranges in which two states of a volume differ, by offset.
#[utoipa::path(get, path = "/v1/diff", params(DiffQuery),
    responses((status = 200, body = [DiffExtent]), (status = "default", body = ErrorBody)))]
async fn diff(State(daemon): State<Arc<Daemon>>, QueryString(two): QueryString<DiffQuery>) -> Result<Json<Vec<DiffExtent>>, Refused> {
    let older: Name = two.older.parse()?;
    let newer: Option<Name> = two.newer.as_deref().map(str::parse).transpose()?;
    Ok(daemon.diff(&older, newer.as_ref()).await.map(Json)?)
}
