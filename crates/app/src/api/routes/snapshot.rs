//! Snapshots.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::soon;
use super::input::{Asked, Body};
use crate::api::{
    ApiError, CloneSnapshot, CopySnapshot, CreateSnapshots, Created, DiffExtent, ErrorBody, FullCopy, Hold, Rename, Rollback, RolledBack,
    Snapshot, Volume,
};
use crate::daemon::Daemon;
use crate::names::{Name, SnapshotName};

/// Pool, volume and snapshot of a path.
type Parts = Path<(String, String, String)>;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get))
        .routes(routes!(rename))
        .routes(routes!(rollback))
        .routes(routes!(clone))
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
struct Of {
    /// Only this pool's.
    pool: Option<String>,
    /// Only this volume's; `pool` has to be given as well.
    volume: Option<String>,
}

/// Snapshots, by volume, oldest first.
#[utoipa::path(get, path = "/v1/snapshots", params(Of),
    responses((status = 200, body = [Snapshot]), (status = "default", body = ErrorBody)))]
async fn list(State(daemon): State<Arc<Daemon>>, Asked(of): Asked<Of>) -> Result<Json<Vec<Snapshot>>, ApiError> {
    daemon.snapshots(of.pool.as_deref(), of.volume.as_deref()).await.map(Json)
}

/// Takes snapshots. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots", request_body = CreateSnapshots,
    responses((status = 200, body = Created), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, Body(request): Body<CreateSnapshots>) -> Result<Json<Created>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.create_snapshots(request).await }).await.map(Json)
}

/// One snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{pool}/{volume}/{snapshot}",
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, parts: Parts) -> Result<Json<Snapshot>, ApiError> {
    daemon.snapshot(&named(parts)?).await.map(Json)
}

/// Gives a snapshot another name. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/rename", request_body = Rename,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
async fn rename(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Rename>) -> Result<StatusCode, ApiError> {
    soon(&daemon, |daemon| async move { daemon.rename(&Name::Snapshot(named(parts)?), &request).await })
        .await
        .map(|()| StatusCode::NO_CONTENT)
}

/// Makes the volume's head what the snapshot holds. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/rollback", request_body = Rollback,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = RolledBack), (status = "default", body = ErrorBody)))]
async fn rollback(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Rollback>) -> Result<Json<RolledBack>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.rollback(&named(parts)?, &request).await }).await.map(Json)
}

/// Makes a writable volume on a snapshot. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/clone", request_body = CloneSnapshot,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn clone(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<CloneSnapshot>) -> Result<Json<Volume>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.clone_snapshot(&named(parts)?, &request).await }).await.map(Json)
}

/// Begins to copy a snapshot into a new volume, in any pool. The job runs when this is answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/copy", request_body = CopySnapshot,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn copy(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<CopySnapshot>) -> Result<Json<FullCopy>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.copy_snapshot(&named(parts)?, &request).await }).await.map(Json)
}

/// How far a copy is, or how it ended.
#[utoipa::path(get, path = "/v1/copies/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn get_copy(State(daemon): State<Arc<Daemon>>, Path(id): Path<u64>) -> Result<Json<FullCopy>, ApiError> {
    daemon.full_copy(id).map(Json)
}

/// Ends a copy; what it made is taken back.
#[utoipa::path(delete, path = "/v1/copies/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = FullCopy), (status = "default", body = ErrorBody)))]
async fn stop_copy(State(daemon): State<Arc<Daemon>>, Path(id): Path<u64>) -> Result<Json<FullCopy>, ApiError> {
    daemon.stop_copy(id).map(Json)
}

/// Adds a hold: the snapshot cannot be destroyed. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/hold", request_body = Hold,
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn hold(State(daemon): State<Arc<Daemon>>, parts: Parts, Body(request): Body<Hold>) -> Result<Json<Snapshot>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.hold(&named(parts)?, &request).await }).await.map(Json)
}

/// Of which hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
struct OfTag {
    /// Its tag; without it, one that has none.
    tag: Option<String>,
}

/// Takes one hold back. Durable when answered.
#[utoipa::path(post, path = "/v1/snapshots/{pool}/{volume}/{snapshot}/release",
    params(("pool" = String, Path), ("volume" = String, Path), ("snapshot" = String, Path), OfTag),
    responses((status = 200, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn release(State(daemon): State<Arc<Daemon>>, parts: Parts, Asked(of): Asked<OfTag>) -> Result<Json<Snapshot>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.release(&named(parts)?, of.tag).await }).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
struct Two {
    /// The older state, a full name.
    older: String,
    /// The newer state; the volume's head when missing.
    newer: Option<String>,
}

/// Ranges that differ between two states of a volume, by rising offset.
#[utoipa::path(get, path = "/v1/diff", params(Two),
    responses((status = 200, body = [DiffExtent]), (status = "default", body = ErrorBody)))]
async fn diff(State(daemon): State<Arc<Daemon>>, Asked(two): Asked<Two>) -> Result<Json<Vec<DiffExtent>>, ApiError> {
    let older: Name = two.older.parse()?;
    let newer: Option<Name> = two.newer.as_deref().map(str::parse).transpose()?;
    daemon.diff(&older, newer.as_ref()).await.map(Json)
}
