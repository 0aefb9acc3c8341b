//! How the API says no.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use millpond_engine::CommandError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::shard::ShardError;
use crate::names::NameError;

/// What the caller can make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The words or numbers are wrong whatever there is: the command ends as one that was typed wrongly.
    Usage,
    /// The words or numbers do not fit what there is.
    Invalid,
    /// No such thing.
    NotFound,
    /// The name or address is taken.
    Exists,
    /// Something else needs it, or a guard refuses.
    Busy,
    /// The pool is full.
    NoSpace,
    /// The pool is not in service.
    Unavailable,
    /// This version cannot do it.
    NotSupported,
    /// The host failed.
    Internal,
}

/// A refusal or failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// What the caller can make of it.
    pub kind: ErrorKind,
    /// One line: what, why, what to do.
    pub message: String,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

impl ApiError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into() }
    }

    /// No such thing.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::NotFound, message)
    }

    /// The words or numbers are wrong whatever there is.
    pub fn usage(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Usage, message)
    }

    /// The words or numbers do not fit what there is.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Invalid, message)
    }

    /// Something else needs it, or a guard refuses.
    pub fn busy(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Busy, message)
    }

    /// The host failed.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Internal, message)
    }

    /// Puts in front what was being done.
    #[must_use]
    pub fn during(mut self, what: impl std::fmt::Display) -> ApiError {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        let kind = match error {
            CommandError::Exists(_) => ErrorKind::Exists,
            CommandError::NotFound(_) => ErrorKind::NotFound,
            CommandError::Invalid(_) => ErrorKind::Invalid,
            CommandError::Busy(_) => ErrorKind::Busy,
            CommandError::NoSpace => ErrorKind::NoSpace,
            CommandError::Faulted(_) => ErrorKind::Unavailable,
        };
        ApiError::new(kind, error.to_string())
    }
}

impl From<ShardError> for ApiError {
    fn from(error: ShardError) -> Self {
        let kind = match error {
            ShardError::Command(error) => return error.into(),
            ShardError::Gone | ShardError::Silent => ErrorKind::Unavailable,
            ShardError::NoExport(_) | ShardError::NoTarget(_) | ShardError::NoDevice(_) => ErrorKind::NotFound,
            ShardError::ExportExists(_) => ErrorKind::Exists,
            ShardError::NoAddress => ErrorKind::Invalid,
            ShardError::Listen { .. } | ShardError::NoDescriptors => ErrorKind::Busy,
            _ => ErrorKind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        ApiError::usage(error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.kind {
            ErrorKind::Usage | ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Exists | ErrorKind::Busy => StatusCode::CONFLICT,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::NotSupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(ErrorBody { error: self })).into_response()
    }
}
