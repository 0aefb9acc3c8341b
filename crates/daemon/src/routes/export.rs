//! Exports.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use millpond_api::{CreateExport, ErrorBody, Export};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::soon;
use super::input::{Body, QueryString};
use super::refused::Refused;
use crate::Daemon;
use crate::access::Caller;
use crate::connect::Lines;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove)).routes(routes!(lines))
}

/// Lists all exports with their clients.
#[utoipa::path(get, path = "/v1/exports", responses((status = 200, body = [Export]), (status = "default", body = ErrorBody)))]
async fn list(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Result<Json<Vec<Export>>, Refused> {
    let mut exports = daemon.exports().await?;
    exports.retain(|export| caller.may_use_name(&export.name));
    Ok(Json(exports))
}

/// Exports a volume, a snapshot or, as a mounted directory, a pool.
///
/// Clients can connect when the request is answered.
#[utoipa::path(post, path = "/v1/exports", request_body = CreateExport,
    responses((status = 200, body = Export), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, Body(request): Body<CreateExport>) -> Result<Json<Export>, Refused> {
    let kept = !matches!(&request, CreateExport::Nbd(nbd) if nbd.transient);
    soon(&daemon, |daemon| async move { daemon.create_export(&request, kept).await }).await.map(Json)
}

/// Returns lines with which programs use an export.
#[utoipa::path(get, path = "/v1/exports/{id}/lines", params(("id" = u64, Path)),
    responses((status = 200, body = Lines), (status = "default", body = ErrorBody)))]
async fn lines(State(daemon): State<Arc<Daemon>>, Path(id): Path<u64>) -> Result<Json<Lines>, Refused> {
    Ok(daemon.lines_of(id).await.map(Json)?)
}

/// Options for ending an export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Ending {
    /// For a mount: if true, files that are open are served until they are closed.
    #[serde(default)]
    lazy: bool,
    /// If true, ends the export while clients are connected or files of a mount are open, and
    /// disconnects them.
    #[serde(default)]
    force: bool,
}

/// Ends an export.
#[utoipa::path(delete, path = "/v1/exports/{id}", params(("id" = u64, Path), Ending),
    responses((status = 204), (status = "default", body = ErrorBody)))]
async fn remove(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<u64>,
    QueryString(ending): QueryString<Ending>,
) -> Result<StatusCode, Refused> {
    soon(&daemon, |daemon| async move { daemon.unexport(id, ending.lazy, ending.force).await }).await.map(|()| StatusCode::NO_CONTENT)
}
