//! The daemon itself: status, events, description.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use tokio::sync::broadcast::error::RecvError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{ApiError, ErrorBody, Event, Job, Status};
use crate::daemon::Daemon;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new().routes(routes!(status)).routes(routes!(events)).routes(routes!(jobs)).routes(routes!(describe))
}

/// The daemon, its pools and exports.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = "default", body = ErrorBody)))]
async fn status(State(daemon): State<Arc<Daemon>>) -> Result<Json<Status>, ApiError> {
    daemon.status().await.map(Json)
}

/// What runs in the background.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = [Job])))]
async fn jobs(State(daemon): State<Arc<Daemon>>) -> Json<Vec<Job>> {
    Json(daemon.jobs().await)
}

/// Changes as they happen, one JSON object a line, until the client leaves or the daemon stops.
#[utoipa::path(get, path = "/v1/events", responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
async fn events(State(daemon): State<Arc<Daemon>>) -> Response {
    let stream = lines(daemon);
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

/// The lines of the event stream.
fn lines(daemon: Arc<Daemon>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let (listener, stopping) = (daemon.listen(), daemon.stopping());
    stream::unfold((listener, stopping), |(mut listener, mut stopping)| async move {
        loop {
            let event = tokio::select! {
                event = listener.recv() => event,
                _ = stopping.wait_for(|stopping| *stopping) => return None,
            };
            match event {
                Ok(event) => {
                    let line = serde_json::to_string(&event).unwrap_or_default() + "\n";
                    return Some((Ok(Bytes::from(line)), (listener, stopping)));
                }
                // A listener this slow lost the oldest ones; what follows is still worth telling.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    })
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1 document")))]
async fn describe() -> Json<utoipa::openapi::OpenApi> {
    Json(super::document())
}
