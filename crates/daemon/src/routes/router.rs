//! The router of the control API, and the OpenAPI document.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::{access, destroy, export, guard, input, policy, pool, snapshot, system, volume};
use crate::Daemon;
use crate::caller;

/// Paths of requests that are answered at once, even while pools are being imported.
const AT_ONCE: [&str; 4] = ["/v1/status", "/v1/events", "/v1/session", "/metrics"];

#[derive(OpenApi)]
#[openapi(info(
    title = "Millpond control API",
    description = "Spoken as HTTP/1.1 over the daemon's unix socket, and over TCP with tokens."
))]
struct Document;

fn open_api_router() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(access::routes())
        .merge(system::routes())
        .merge(pool::routes())
        .merge(volume::routes())
        .merge(snapshot::routes())
        .merge(destroy::routes())
        .merge(export::routes())
        .merge(policy::routes())
}

/// Returns the OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    open_api_router().split_for_parts().1
}

/// Returns the router with all routes, for a daemon.
pub fn router(daemon: Arc<Daemon>) -> Router {
    let ready = from_fn_with_state(Arc::clone(&daemon), wait_until_ready);
    let guard = from_fn_with_state(Arc::clone(&daemon), guard::guard);
    let identified = from_fn_with_state(Arc::clone(&daemon), caller::identify);
    // the guard comes first: a layer is around those added before it
    open_api_router().split_for_parts().0.fallback(input::no_such_route).layer(ready).layer(identified).layer(guard).with_state(daemon)
}

/// Delays requests to a starting daemon until its pools are in service, at most for the time limit
/// of the start. Requests for status, events and metrics are answered at once.
async fn wait_until_ready(State(daemon): State<Arc<Daemon>>, request: Request, next: Next) -> Response {
    // a page of the console has no matched path
    let is_route = request.extensions().get::<MatchedPath>().is_some();
    if is_route && !AT_ONCE.contains(&request.uri().path()) {
        daemon.wait_until_ready().await;
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    //! Tests that the document covers the routes.
    use super::*;

    #[test]
    fn every_family_is_described() {
        let document = document();
        for path in [
            "/metrics",
            "/v1/status",
            "/v1/pools",
            "/v1/volumes",
            "/v1/snapshots",
            "/v1/exports",
            "/v1/destroy",
            "/v1/diff",
            "/v1/policies",
        ] {
            assert!(document.paths.paths.contains_key(path), "{path}");
        }
        let schemas = document.components.expect("components").schemas;
        for name in ["Pool", "Volume", "Snapshot", "Export", "ErrorBody"] {
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
