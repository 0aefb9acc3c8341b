//! How a command ends when it does not succeed: an exit code and one line.

use std::fmt;

use crate::api::{ApiError, ErrorKind};
use crate::names::NameError;
use crate::size::SizeError;

/// Exit codes of the program; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Refused or failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// The daemon cannot be reached.
    Unreachable = 3,
    /// Of a check: a pool is degraded, or worse.
    Degraded = 4,
}

/// Why a command did not succeed. Display is the one line for stderr: what, why, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    line: String,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Refused or failed.
    pub fn failed(line: impl Into<String>) -> Failure {
        Failure { code: Code::Failed, line: line.into() }
    }

    /// The words are wrong.
    pub fn usage(line: impl Into<String>) -> Failure {
        Failure { code: Code::Usage, line: line.into() }
    }

    /// What is to be said is on standard output already.
    pub fn said(code: Code) -> Failure {
        Failure { code, line: String::new() }
    }

    /// Nothing more is to be said.
    pub fn is_said(&self) -> bool {
        self.line.is_empty()
    }

    /// Nobody answers on the control socket.
    pub fn unreachable(line: impl Into<String>) -> Failure {
        Failure { code: Code::Unreachable, line: line.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line whatever a source error holds.
        f.write_str(&self.line.replace(['\n', '\r'], " "))
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        match error.kind {
            ErrorKind::Usage => Failure::usage(error.message),
            _ => Failure::failed(error.message),
        }
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Failure::usage(error.to_string())
    }
}

impl From<SizeError> for Failure {
    fn from(error: SizeError) -> Self {
        Failure::usage(error.to_string())
    }
}
