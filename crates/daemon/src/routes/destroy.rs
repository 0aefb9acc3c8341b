//! Destroying volumes and snapshots.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use millpond_api::{Destroy, Destroyed, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::soon;
use super::input::Body;
use super::refused::Refused;
use crate::Daemon;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new().routes(routes!(destroy))
}

/// Destroys volumes, snapshots or ranges of snapshots.
///
/// Durable when answered. The space is freed in the background.
#[utoipa::path(post, path = "/v1/destroy", request_body = Destroy,
    responses((status = 200, body = Destroyed), (status = "default", body = ErrorBody)))]
async fn destroy(State(daemon): State<Arc<Daemon>>, Body(request): Body<Destroy>) -> Result<Json<Destroyed>, Refused> {
    soon(&daemon, |daemon| async move { daemon.destroy(&request).await }).await.map(Json)
}
