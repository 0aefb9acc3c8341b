//! Extractors for request bodies and queries. Their errors have the same form as all other errors.

use axum::Json;
use axum::extract::Extension;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Query};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};

use millpond_api::ApiError;

use super::refused::Refused;
use crate::access::Peer;
use crate::web::pages;

/// A JSON body.
#[derive(FromRequest)]
#[from_request(via(Json), rejection(Refused))]
pub struct Body<T>(pub T);

/// A query string.
#[derive(FromRequestParts)]
#[from_request(via(Query), rejection(Refused))]
pub struct QueryString<T>(pub T);

impl From<JsonRejection> for Refused {
    fn from(rejection: JsonRejection) -> Self {
        ApiError::invalid(format!("the request cannot be read: {}; see /v1/openapi.json", rejection.body_text())).into()
    }
}

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::invalid(format!("the query cannot be read: {}; see /v1/openapi.json", rejection.body_text())).into()
    }
}

/// Answers requests that no route matches: over TCP, with files of the console.
pub async fn no_such_route(Extension(peer): Extension<Peer>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if let Peer::Remote { .. } = peer
        && let Some(file) = pages::file(&method, &uri, &headers)
    {
        return file;
    }
    Refused::from(ApiError::not_found(format!("no route {}; see /v1/openapi.json", uri.path()))).into_response()
}
