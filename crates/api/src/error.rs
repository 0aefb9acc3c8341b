//! Errors of the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;
use crate::names::NameError;

words! {
    /// Kind of an error, from the caller's point of view.
    pub enum ErrorKind {
        /// A name, number or option is wrong in any case. The command line exits as for a usage
        /// error.
        Usage = "usage",
        /// The request does not fit the present state of its objects.
        Invalid = "invalid",
        /// The named object does not exist.
        NotFound = "not_found",
        /// The name or address is in use.
        Exists = "exists",
        /// Another user needs the object, or a safety check refuses the request.
        Busy = "busy",
        /// The pool is full.
        NoSpace = "no_space",
        /// The pool is not in service.
        Unavailable = "unavailable",
        /// This version does not support the request.
        NotSupported = "not_supported",
        /// The caller is not known: no valid token, session or user.
        Unauthenticated = "unauthenticated",
        /// The caller's role or pools do not allow the request.
        Forbidden = "forbidden",
        /// Too many requests with wrong credentials, or too many connections.
        TooMany = "too_many",
        /// The host reported an error, or the daemon failed.
        Internal = "internal",
    }
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

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        ApiError::usage(error.to_string())
    }
}
