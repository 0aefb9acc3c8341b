//! Volumes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use millpond_api::names::{Name, VolumeName};
use millpond_api::{
    ApiError, CreateVolume, ErrorBody, Place, Promote, Promoted, Rename, Resize, Resized, SetProperties, SetSector, Volume,
};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::soon;
use super::input::{Body, QueryString};
use super::refused::Refused;
use crate::Daemon;
use crate::access::Caller;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, set))
        .routes(routes!(resize))
        .routes(routes!(set_sector))
        .routes(routes!(rename))
        .routes(routes!(promote))
        .routes(routes!(places))
}

/// Parses the two parts of a volume name from a path.
pub(super) fn named(pool: &str, volume: &str) -> Result<VolumeName, ApiError> {
    Ok(format!("{pool}/{volume}").parse()?)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct VolumesQuery {
    /// Name of a pool: lists only its volumes.
    pool: Option<String>,
}

/// Lists volumes.
#[utoipa::path(get, path = "/v1/volumes", params(VolumesQuery),
    responses((status = 200, body = [Volume]), (status = "default", body = ErrorBody)))]
async fn list(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    QueryString(of): QueryString<VolumesQuery>,
) -> Result<Json<Vec<Volume>>, Refused> {
    caller.check(of.pool.as_deref())?;
    let mut volumes = daemon.volumes(of.pool.as_deref()).await?;
    volumes.retain(|volume| caller.may_use_name(&volume.name));
    Ok(Json(volumes))
}

/// Creates a volume.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/volumes", request_body = CreateVolume,
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, Body(request): Body<CreateVolume>) -> Result<Json<Volume>, Refused> {
    soon(&daemon, |daemon| async move { daemon.create_volume(request).await }).await.map(Json)
}

/// Returns one volume.
#[utoipa::path(get, path = "/v1/volumes/{pool}/{volume}", params(("pool" = String, Path), ("volume" = String, Path)),
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, Path((pool, volume)): Path<(String, String)>) -> Result<Json<Volume>, Refused> {
    Ok(daemon.volume(&named(&pool, &volume)?).await.map(Json)?)
}

/// Changes properties of a volume.
///
/// Durable when answered.
#[utoipa::path(patch, path = "/v1/volumes/{pool}/{volume}", params(("pool" = String, Path), ("volume" = String, Path)),
    request_body = SetProperties, responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn set(
    State(daemon): State<Arc<Daemon>>,
    Path((pool, volume)): Path<(String, String)>,
    Body(request): Body<SetProperties>,
) -> Result<Json<Volume>, Refused> {
    soon(&daemon, |daemon| async move { daemon.set_properties(&named(&pool, &volume)?, &request).await }).await.map(Json)
}

/// Resizes a volume. It stays in service.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{volume}/resize", params(("pool" = String, Path), ("volume" = String, Path)),
    request_body = Resize, responses((status = 200, body = Resized), (status = "default", body = ErrorBody)))]
async fn resize(
    State(daemon): State<Arc<Daemon>>,
    Path((pool, volume)): Path<(String, String)>,
    Body(request): Body<Resize>,
) -> Result<Json<Resized>, Refused> {
    soon(&daemon, |daemon| async move { daemon.resize(&named(&pool, &volume)?, &request).await }).await.map(Json)
}

/// Changes the sector profile of a volume that is neither exported nor open in a mount.
///
/// Durable when answered. The stored data does not change: the caller has to convert partition
/// tables and filesystems that count in sectors.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{volume}/sector", params(("pool" = String, Path), ("volume" = String, Path)),
    request_body = SetSector, responses((status = 200, body = Volume), (status = "default", body = ErrorBody)))]
async fn set_sector(
    State(daemon): State<Arc<Daemon>>,
    Path((pool, volume)): Path<(String, String)>,
    Body(request): Body<SetSector>,
) -> Result<Json<Volume>, Refused> {
    soon(&daemon, |daemon| async move { daemon.set_sector(&named(&pool, &volume)?, &request).await }).await.map(Json)
}

/// Renames a volume.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{volume}/rename", params(("pool" = String, Path), ("volume" = String, Path)),
    request_body = Rename, responses((status = 204), (status = "default", body = ErrorBody)))]
async fn rename(
    State(daemon): State<Arc<Daemon>>,
    Path((pool, volume)): Path<(String, String)>,
    Body(request): Body<Rename>,
) -> Result<StatusCode, Refused> {
    let old = Name::Volume(named(&pool, &volume)?);
    soon(&daemon, |daemon| async move { daemon.rename(&old, &request).await }).await.map(|()| StatusCode::NO_CONTENT)
}

/// Promotes a clone: it takes over its origin and all older snapshots of the origin's volume.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{volume}/promote", params(("pool" = String, Path), ("volume" = String, Path)),
    request_body = Promote, responses((status = 200, body = Promoted), (status = "default", body = ErrorBody)))]
async fn promote(
    State(daemon): State<Arc<Daemon>>,
    Path((pool, volume)): Path<(String, String)>,
    Body(request): Body<Promote>,
) -> Result<Json<Promoted>, Refused> {
    soon(&daemon, |daemon| async move { daemon.promote(&named(&pool, &volume)?, &request).await }).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct PlacesQuery {
    /// Full name of a volume or snapshot.
    name: String,
}

/// Lists the segments that hold data of a volume or snapshot, and their places on devices.
#[utoipa::path(get, path = "/v1/places", params(PlacesQuery), responses((status = 200, body = [Place]), (status = "default", body = ErrorBody)))]
async fn places(State(daemon): State<Arc<Daemon>>, QueryString(one): QueryString<PlacesQuery>) -> Result<Json<Vec<Place>>, Refused> {
    let name: Name = one.name.parse()?;
    Ok(daemon.places(&name).await.map(Json)?)
}
