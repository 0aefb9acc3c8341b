//! Failure of a command: an exit code and a message of one line.

use std::fmt;

use crate::names::NameError;
use crate::size::SizeError;
use crate::{ApiError, ErrorKind};

/// Exit codes of the program, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Refused or failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// The daemon cannot be reached.
    Unreachable = 3,
    /// Result of a check: a pool is degraded, or worse.
    Degraded = 4,
}

/// Failure of a command. Display is the message for stderr, one line: the operation, the reason,
/// and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: Code,
    line: String,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Refused or failed.
    pub fn failed(line: impl Into<String>) -> Failure {
        Failure { code: Code::Failed, line: line.into() }
    }

    /// Wrong usage of the command line.
    pub fn usage(line: impl Into<String>) -> Failure {
        Failure { code: Code::Usage, line: line.into() }
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Failure {
        Failure { code: self.code, line: format!("{what}: {}", self.line) }
    }

    /// A failure whose message was printed already.
    pub fn said(code: Code) -> Failure {
        Failure { code, line: String::new() }
    }

    /// Whether the message was printed already.
    pub fn is_said(&self) -> bool {
        self.line.is_empty()
    }

    /// The daemon does not answer on the control socket.
    pub fn unreachable(line: impl Into<String>) -> Failure {
        Failure { code: Code::Unreachable, line: line.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A source error may contain line breaks.
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
