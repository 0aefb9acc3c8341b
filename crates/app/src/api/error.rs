//! Errors of the API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use millpond_engine::CommandError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::shard::ShardError;
use crate::hint;
use crate::names::NameError;

/// Kind of an error, from the caller's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// A name, number or option is wrong in any case. The command line exits as for a usage error.
    Usage,
    /// The request does not fit the present state of its objects.
    Invalid,
    /// The named object does not exist.
    NotFound,
    /// The name or address is in use.
    Exists,
    /// Another user needs the object, or a safety check refuses the request.
    Busy,
    /// The pool is full.
    NoSpace,
    /// The pool is not in service.
    Unavailable,
    /// This version does not support the request.
    NotSupported,
    /// The host reported an error, or the daemon failed.
    Internal,
}

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// One line: the failure, its reason and a remedy.
    pub message: String,
}

/// Body of every response that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

impl ApiError {
    /// Makes an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into() }
    }

    /// Makes an error of kind [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::NotFound, message)
    }

    /// Makes an error of kind [`ErrorKind::Usage`].
    pub fn usage(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Usage, message)
    }

    /// Makes an error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Invalid, message)
    }

    /// Makes an error of kind [`ErrorKind::Busy`].
    pub fn busy(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Busy, message)
    }

    /// Makes an error of kind [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Internal, message)
    }

    /// Prepends the operation that failed to the message.
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
            CommandError::NodeUnreadable | CommandError::Request(_) | CommandError::Faulted(_) => ErrorKind::Unavailable,
        };
        ApiError::new(kind, hint::command(&error))
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
