//! Pools.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use millpond_api::{
    AddDevices, Checkpoint, CreatePool, DeviceRemoval, ErrorBody, Found, ImportPool, LimitDevice, ListCheckpoints, Pool, PoolExport,
    PoolLoad, PoolPlan, PoolRemoval, PoolUpgrade, Rebalance, RebalancePool, RemoveDevice, ReplaceDevice, Replacement, ScrubPool, SetPool,
    SpecialAdvice, UpgradePool, WipePool, Wiping,
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
        .routes(routes!(upgrade))
        .routes(routes!(scrub))
        .routes(routes!(set))
        .routes(routes!(limit_device))
        .routes(routes!(advise_special))
        .routes(routes!(load))
        .routes(routes!(plan))
}

/// Lists all pools.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = [Pool])))]
async fn list(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Json<Vec<Pool>> {
    let mut pools = daemon.pools().await;
    pools.retain(|pool| caller.may_use(&pool.name));
    Json(pools)
}

/// Creates a pool.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/pools", request_body = CreatePool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, Body(request): Body<CreatePool>) -> Result<Json<Pool>, Refused> {
    soon(&daemon, |daemon| async move { daemon.create_pool(request).await }).await.map(Json)
}

/// Returns one pool.
#[utoipa::path(get, path = "/v1/pools/{pool}", params(("pool" = String, Path)),
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>) -> Result<Json<Pool>, Refused> {
    Ok(daemon.pool(&pool).await.map(Json)?)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct OneVolume {
    /// Name of a volume of the pool, without the pool: includes its counters.
    volume: Option<String>,
}

/// Returns counters of a pool's requests and devices, for charts.
#[utoipa::path(get, path = "/v1/pools/{pool}/load", params(("pool" = String, Path), OneVolume),
    responses((status = 200, body = PoolLoad), (status = "default", body = ErrorBody)))]
async fn load(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    QueryString(of): QueryString<OneVolume>,
) -> Result<Json<PoolLoad>, Refused> {
    Ok(daemon.load(&pool, of.volume.as_deref()).await.map(Json)?)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Rehearsal {
    /// If true, only reports the result of the request.
    #[serde(default)]
    dry_run: bool,
}

/// Destroys a pool with all its volumes.
#[utoipa::path(delete, path = "/v1/pools/{pool}", params(("pool" = String, Path), Rehearsal),
    responses((status = 200, body = PoolRemoval), (status = "default", body = ErrorBody)))]
async fn destroy(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    QueryString(how): QueryString<Rehearsal>,
) -> Result<Json<PoolRemoval>, Refused> {
    whole(&daemon, |daemon| async move { daemon.destroy_pool(&pool, how.dry_run).await }).await.map(Json)
}

/// Options for exporting a pool.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Leaving {
    /// If true, disconnects clients, and gives the pool up if it cannot be closed.
    #[serde(default)]
    force: bool,
}

/// Closes a pool and releases its devices.
#[utoipa::path(post, path = "/v1/pools/{pool}/export", params(("pool" = String, Path), Leaving),
    responses((status = 200, body = PoolExport), (status = "default", body = ErrorBody)))]
async fn export(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    QueryString(how): QueryString<Leaving>,
) -> Result<Json<PoolExport>, Refused> {
    let exported = match how.force {
        // a forced export has time limits of its own
        true => whole(&daemon, |daemon| async move { daemon.export_pool(&pool, true).await }).await,
        false => soon(&daemon, |daemon| async move { daemon.export_pool(&pool, false).await }).await,
    };
    exported.map(Json)
}

/// Searches for pools, and imports a pool if a name or id is given.
#[utoipa::path(post, path = "/v1/import", request_body = ImportPool,
    responses((status = 200, body = [Found]), (status = "default", body = ErrorBody)))]
async fn import(State(daemon): State<Arc<Daemon>>, Body(request): Body<ImportPool>) -> Result<Json<Vec<Found>>, Refused> {
    whole(&daemon, |daemon| async move { daemon.import_pool(request).await }).await.map(Json)
}

/// Adds devices to a pool.
///
/// Their space is usable when the request is answered.
#[utoipa::path(post, path = "/v1/pools/{pool}/devices", params(("pool" = String, Path)), request_body = AddDevices,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn add_devices(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<AddDevices>,
) -> Result<Json<Pool>, Refused> {
    soon(&daemon, |daemon| async move { daemon.add_devices(&pool, request).await }).await.map(Json)
}

/// Replaces a device by another. A job copies its data.
#[utoipa::path(post, path = "/v1/pools/{pool}/replace", params(("pool" = String, Path)), request_body = ReplaceDevice,
    responses((status = 200, body = Replacement), (status = "default", body = ErrorBody)))]
async fn replace_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<ReplaceDevice>,
) -> Result<Json<Replacement>, Refused> {
    soon(&daemon, |daemon| async move { daemon.replace_device(&pool, request).await }).await.map(Json)
}

/// Removes a device. A job moves its data to the other devices.
#[utoipa::path(post, path = "/v1/pools/{pool}/remove", params(("pool" = String, Path)), request_body = RemoveDevice,
    responses((status = 200, body = DeviceRemoval), (status = "default", body = ErrorBody)))]
async fn remove_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<RemoveDevice>,
) -> Result<Json<DeviceRemoval>, Refused> {
    soon(&daemon, |daemon| async move { daemon.remove_device(&pool, request).await }).await.map(Json)
}

/// Starts, stops or plans a rebalance, a job that evens out how full groups are.
///
/// No job starts if there is nothing to do.
#[utoipa::path(post, path = "/v1/pools/{pool}/rebalance", params(("pool" = String, Path)), request_body = RebalancePool,
    responses((status = 200, body = Rebalance), (status = "default", body = ErrorBody)))]
async fn rebalance(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<RebalancePool>,
) -> Result<Json<Rebalance>, Refused> {
    soon(&daemon, |daemon| async move { daemon.rebalance(&pool, request).await }).await.map(Json)
}

/// Starts, stops or plans a wipe, a job that makes unreferenced data unreadable.
///
/// A running wipe starts anew.
#[utoipa::path(post, path = "/v1/pools/{pool}/wipe", params(("pool" = String, Path)), request_body = WipePool,
    responses((status = 200, body = Wiping), (status = "default", body = ErrorBody)))]
async fn wipe(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>, Body(request): Body<WipePool>) -> Result<Json<Wiping>, Refused> {
    soon(&daemon, |daemon| async move { daemon.wipe(&pool, request).await }).await.map(Json)
}

/// Turns on the features of the format that a pool lacks.
///
/// Durable when answered. Older versions may no longer be able to use the pool.
#[utoipa::path(post, path = "/v1/pools/{pool}/upgrade", params(("pool" = String, Path)), request_body = UpgradePool,
    responses((status = 200, body = PoolUpgrade), (status = "default", body = ErrorBody)))]
async fn upgrade(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<UpgradePool>,
) -> Result<Json<PoolUpgrade>, Refused> {
    soon(&daemon, |daemon| async move { daemon.upgrade_pool(&pool, request).await }).await.map(Json)
}

/// Changes properties of a pool. Changes last across restarts.
#[utoipa::path(post, path = "/v1/pools/{pool}/properties", params(("pool" = String, Path)), request_body = SetPool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn set(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>, Body(request): Body<SetPool>) -> Result<Json<Pool>, Refused> {
    soon(&daemon, |daemon| async move { daemon.set_pool(&pool, request).await }).await.map(Json)
}

/// Starts or stops a scrub, a job that reads and checks everything.
#[utoipa::path(post, path = "/v1/pools/{pool}/scrub", params(("pool" = String, Path)), request_body = ScrubPool,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn scrub(State(daemon): State<Arc<Daemon>>, Path(pool): Path<String>, Body(request): Body<ScrubPool>) -> Result<Json<Pool>, Refused> {
    soon(&daemon, |daemon| async move { daemon.scrub(&pool, request).await }).await.map(Json)
}

/// Lists the restore points of a pool, newest first. The pool need not be in service.
///
/// Reads the devices of the pool and changes nothing.
#[utoipa::path(post, path = "/v1/checkpoints", request_body = ListCheckpoints,
    responses((status = 200, body = [Checkpoint]), (status = "default", body = ErrorBody)))]
async fn checkpoints(State(daemon): State<Arc<Daemon>>, Body(request): Body<ListCheckpoints>) -> Result<Json<Vec<Checkpoint>>, Refused> {
    Ok(daemon.checkpoints(request).await.map(Json)?)
}

/// Limits the load of a device. Limits last across restarts.
#[utoipa::path(post, path = "/v1/pools/{pool}/limit", params(("pool" = String, Path)), request_body = LimitDevice,
    responses((status = 200, body = Pool), (status = "default", body = ErrorBody)))]
async fn limit_device(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    Body(request): Body<LimitDevice>,
) -> Result<Json<Pool>, Refused> {
    soon(&daemon, |daemon| async move { daemon.limit_device(&pool, request).await }).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Assumed {
    /// Usable bytes of assumed special devices; without it, those of the pool.
    special: Option<u64>,
}

/// Estimates how much data special devices would hold, by value of `special_small_blocks`.
///
/// Reads all map nodes.
#[utoipa::path(get, path = "/v1/pools/{pool}/advice/special", params(("pool" = String, Path), Assumed),
    responses((status = 200, body = SpecialAdvice), (status = "default", body = ErrorBody)))]
async fn advise_special(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    QueryString(how): QueryString<Assumed>,
) -> Result<Json<SpecialAdvice>, Refused> {
    Ok(daemon.advise_special(&pool, how.special).await.map(Json)?)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct PlanQuery {
    /// Name of a policy: also foretells what it will take.
    policy: Option<String>,
}

/// Foretells how long the space of a pool lasts, and what a policy will take.
#[utoipa::path(get, path = "/v1/pools/{pool}/plan", params(("pool" = String, Path), PlanQuery),
    responses((status = 200, body = PoolPlan), (status = "default", body = ErrorBody)))]
async fn plan(
    State(daemon): State<Arc<Daemon>>,
    Path(pool): Path<String>,
    QueryString(of): QueryString<PlanQuery>,
) -> Result<Json<PoolPlan>, Refused> {
    Ok(daemon.plan(&pool, of.policy.as_deref()).await.map(Json)?)
}
