//! Responses to requests that were refused or failed.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use millpond_api::names::NameError;
use millpond_api::{ApiError, ErrorBody, ErrorKind};

/// The error of a route: a response with the error as its body, and a status by the error's kind.
pub struct Refused(ApiError);

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Refused(error)
    }
}

impl From<NameError> for Refused {
    fn from(error: NameError) -> Self {
        Refused(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ErrorKind::Usage | ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Exists | ErrorKind::Busy => StatusCode::CONFLICT,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::NotSupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Internal | ErrorKind::Other(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(ErrorBody { error: self.0 })).into_response()
    }
}
