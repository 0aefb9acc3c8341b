//! All routes together, and the document that describes them.

use std::sync::Arc;

use axum::Router;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::{destroy, export, input, pool, snapshot, system, volume};
use crate::daemon::Daemon;

#[derive(OpenApi)]
#[openapi(info(title = "Millpond control API", description = "Spoken as HTTP/1.1 over the daemon's unix socket."))]
struct Document;

fn open_api_router() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(system::routes())
        .merge(pool::routes())
        .merge(volume::routes())
        .merge(snapshot::routes())
        .merge(destroy::routes())
        .merge(export::routes())
}

/// The OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    open_api_router().split_for_parts().1
}

/// Everything, on a daemon.
pub fn router(daemon: Arc<Daemon>) -> Router {
    open_api_router().split_for_parts().0.fallback(input::no_such_route).with_state(daemon)
}

#[cfg(test)]
mod tests {
    //! The document covers the routes.
    use super::*;

    #[test]
    fn every_family_is_described() {
        let document = document();
        for path in ["/v1/status", "/v1/pools", "/v1/volumes", "/v1/snapshots", "/v1/exports", "/v1/destroy", "/v1/diff"] {
            assert!(document.paths.paths.contains_key(path), "{path}");
        }
        let schemas = document.components.expect("components").schemas;
        for name in ["Pool", "Volume", "Snapshot", "Export", "ErrorBody"] {
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
