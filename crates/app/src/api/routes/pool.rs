//! Pools.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::{soon, whole};
use super::input::{Asked, Body};
use crate::api::{
    AddDevices, ApiError, Checkpoint, CreatePool, DeviceRemoval, ErrorBody, Found, ImportPool, LimitDevice, ListCheckpoints, Pool,
    PoolExport, PoolRemoval, Rebalance, RebalancePool, RemoveDevice, ReplaceDevice, Replacement, ScrubPool, SetPool, SpecialAdvice,
    WipePool, Wiping,
};
use crate::daemon::Daemon;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, destroy))
        .routes(routes!(export))
        .routes(routes!(import))
        .routes(routes!(checkpoints))
        .routes(routes!(add_devices))
        .routes(routes!(replace_device))
        .routes(routes!(remove_device))
        .routes(routes!(rebalance))
        .routes(routes!(wipe))
        .routes(routes!(scrub))
        .routes(routes!(set))
        .routes(routes!(limit_device))
        .routes(routes!(advise_special))
}

/// Every pool.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = [Pool])))]
async fn list(State(daemon): State<Arc<Daemon>>) -> Json<Vec<Pool>> {
    Json(daemon.pools().await)
}

/// Makes a pool. Durable when answered.
#[utoipa::path(post, path = "/v1/pools", request_body = CreatePool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, Body(request): Body<CreatePool>) -> Result<Json<Pool>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.create_pool(request).await }).await.map(Json)
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{pool}", params(("pool" = String, Path)),
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>) -> Result<Json<Pool>, ApiError> {
    daemon.pool(&pool).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
struct Rehearsal {
    /// Only say what would happen.
    #[serde(default)]
    dry_run: bool,
}

/// Destroys a pool with all its volumes.
#[utoipa::path(delete, path = "/v1/pools/{pool}", params(("pool" = String, Path), Rehearsal),
    responses((status = 200, body = PoolRemoval), (status = "default", body = ErrorBody)))]
async fn destroy(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Asked(how): Asked<Rehearsal>,
) -> Result<Json<PoolRemoval>, ApiError> {
    whole(&daemon, |daemon| async move { daemon.destroy_pool(&pool, how.dry_run).await }).await.map(Json)
}

/// How a pool is exported.
#[derive(Deserialize, IntoParams)]
struct Leaving {
    /// Disconnect clients, and give the pool up when it cannot be closed.
    #[serde(default)]
    force: bool,
}

/// Closes a pool and lets its devices go.
#[utoipa::path(post, path = "/v1/pools/{pool}/export", params(("pool" = String, Path), Leaving),
    responses((status = 200, body = PoolExport), (status = "default", body = ErrorBody)))]
async fn export(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Asked(how): Asked<Leaving>,
) -> Result<Json<PoolExport>, ApiError> {
    let exported = match how.force {
        // it has limits of its own
        true => whole(&daemon, |daemon| async move { daemon.export_pool(&pool, true).await }).await,
        false => soon(&daemon, |daemon| async move { daemon.export_pool(&pool, false).await }).await,
    };
    exported.map(Json)
}

/// Looks for pools, and imports the one named.
#[utoipa::path(post, path = "/v1/import", request_body = ImportPool,
    responses((status = 200, body = [Found]), (status = "default", body = ErrorBody)))]
async fn import(State(daemon): State<Arc<Daemon>>, Body(request): Body<ImportPool>) -> Result<Json<Vec<Found>>, ApiError> {
    whole(&daemon, |daemon| async move { daemon.import_pool(request).await }).await.map(Json)
}

/// Adds devices. Their space can be used when it is answered.
#[utoipa::path(post, path = "/v1/pools/{pool}/devices", params(("pool" = String, Path)), request_body = AddDevices,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn add_devices(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<AddDevices>,
) -> Result<Json<Pool>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.add_devices(&pool, request).await }).await.map(Json)
}

/// Puts a device in the place of another; a job copies what is on it.
#[utoipa::path(post, path = "/v1/pools/{pool}/replace", params(("pool" = String, Path)), request_body = ReplaceDevice,
    responses((status = 200, body = Replacement), (status = "default", body = ErrorBody)))]
async fn replace_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<ReplaceDevice>,
) -> Result<Json<Replacement>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.replace_device(&pool, request).await }).await.map(Json)
}

/// Takes a device out; a job moves what is on it to the others.
#[utoipa::path(post, path = "/v1/pools/{pool}/remove", params(("pool" = String, Path)), request_body = RemoveDevice,
    responses((status = 200, body = DeviceRemoval), (status = "default", body = ErrorBody)))]
async fn remove_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<RemoveDevice>,
) -> Result<Json<DeviceRemoval>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.remove_device(&pool, request).await }).await.map(Json)
}

/// Begins to even out what groups hold, or ends that, or says what it would move; a job does it. Nothing begins when there is nothing to do.
#[utoipa::path(post, path = "/v1/pools/{pool}/rebalance", params(("pool" = String, Path)), request_body = RebalancePool,
    responses((status = 200, body = Rebalance), (status = "default", body = ErrorBody)))]
async fn rebalance(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<RebalancePool>,
) -> Result<Json<Rebalance>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.rebalance(&pool, request).await }).await.map(Json)
}

/// Begins to make unreadable what nothing refers to any more, or ends that, or says what it would do; a job does it. When one runs it begins anew.
#[utoipa::path(post, path = "/v1/pools/{pool}/wipe", params(("pool" = String, Path)), request_body = WipePool,
    responses((status = 200, body = Wiping), (status = "default", body = ErrorBody)))]
async fn wipe(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<WipePool>,
) -> Result<Json<Wiping>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.wipe(&pool, request).await }).await.map(Json)
}

/// Changes properties, from now on and across restarts.
#[utoipa::path(post, path = "/v1/pools/{pool}/properties", params(("pool" = String, Path)), request_body = SetPool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn set(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>, Body(request): Body<SetPool>) -> Result<Json<Pool>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.set_pool(&pool, request).await }).await.map(Json)
}

/// Begins to read everything, or ends that; a job does it.
#[utoipa::path(post, path = "/v1/pools/{pool}/scrub", params(("pool" = String, Path)), request_body = ScrubPool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn scrub(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<ScrubPool>,
) -> Result<Json<Pool>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.scrub(&pool, request).await }).await.map(Json)
}

/// Restore points of a pool, in service or not, newest first. Reads its devices, changes nothing.
#[utoipa::path(post, path = "/v1/checkpoints", request_body = ListCheckpoints,
    responses((status = 200, body = [Checkpoint]), (status = "default", body = ErrorBody)))]
async fn checkpoints(State(daemon): State<Arc<Daemon>>, Body(request): Body<ListCheckpoints>) -> Result<Json<Vec<Checkpoint>>, ApiError> {
    daemon.checkpoints(request).await.map(Json)
}

/// Caps a device, from now on and across restarts.
#[utoipa::path(post, path = "/v1/pools/{pool}/limit", params(("pool" = String, Path)), request_body = LimitDevice,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn limit_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<LimitDevice>,
) -> Result<Json<Pool>, ApiError> {
    soon(&daemon, |daemon| async move { daemon.limit_device(&pool, request).await }).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
struct Assumed {
    /// Usable bytes of special devices to look at instead of those that the pool has.
    special: Option<u64>,
}

/// Says what special devices would hold, for each value of `special_small_blocks` that is worth a choice. All map nodes are read.
#[utoipa::path(get, path = "/v1/pools/{pool}/advice/special", params(("pool" = String, Path), Assumed),
    responses((status = 200, body = SpecialAdvice), (status = "default", body = ErrorBody)))]
async fn advise_special(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Asked(how): Asked<Assumed>,
) -> Result<Json<SpecialAdvice>, ApiError> {
    daemon.advise_special(&pool, how.special).await.map(Json)
}
