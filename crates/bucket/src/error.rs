//! Errors of operations on a bucket, as kinds that determine the action of the caller.

use std::fmt;

/// Action that the caller has to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// There is an object of that name. It may be the caller's own, of a request whose answer was lost:
    /// read its head.
    Exists,
    /// There is no such object, in the store's own words; or, when writing or listing, no such bucket.
    Missing,
    /// The answer was lost, or does not say whether the operation was carried out. Read the head of the
    /// object.
    Unknown,
    /// The store asks for fewer requests: ask again later. The operation may have been carried out.
    Throttled,
    /// The credentials are wrong, have expired, or lack a permission; or the region is wrong, or the
    /// clocks differ; or, when reading, there is no such bucket. The user corrects that; until then the
    /// bucket is away.
    Denied,
    /// The store has no space, or a quota is used up. The user gives it more.
    Full,
    /// The store does not know the operation, or refuses it for good.
    Refused,
    /// The store cannot be reached or does not answer. Nothing was changed: ask again later.
    Away,
}

impl ErrorKind {
    /// Whether an operation that changes something may have been carried out, or may still be carried
    /// out later.
    pub fn may_be_done(self) -> bool {
        matches!(self, ErrorKind::Unknown | ErrorKind::Throttled)
    }

    /// Whether the same request may succeed later.
    pub fn may_pass(self) -> bool {
        matches!(self, ErrorKind::Unknown | ErrorKind::Throttled | ErrorKind::Denied | ErrorKind::Full | ErrorKind::Away)
    }

    /// The kind as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Exists => "exists",
            ErrorKind::Missing => "missing",
            ErrorKind::Unknown => "unknown",
            ErrorKind::Throttled => "throttled",
            ErrorKind::Denied => "denied",
            ErrorKind::Full => "full",
            ErrorKind::Refused => "refused",
            ErrorKind::Away => "away",
        }
    }
}

/// An operation, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Write an object that is not there.
    Create,
    /// Write an object.
    Write,
    /// Read an object.
    Read,
    /// List names.
    List,
    /// Delete objects.
    Delete,
}

impl Verb {
    /// Whether the operation changes the bucket.
    pub fn changes(self) -> bool {
        matches!(self, Verb::Create | Verb::Write | Verb::Delete)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Create => "create",
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::List => "list",
            Verb::Delete => "delete",
        })
    }
}

/// Answer of a store that refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReason {
    /// HTTP status.
    pub status: u16,
    /// The store's code, such as `SlowDown`; empty if it gave none.
    pub code: String,
    /// The store's message, in one line; empty if it gave none.
    pub message: String,
}

impl fmt::Display for StoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        [&self.code, &self.message].into_iter().filter(|text| !text.is_empty()).try_for_each(|text| write!(f, " {text}"))
    }
}

/// Error of an operation on a bucket. Display is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketError {
    /// Action that the caller has to take.
    pub kind: ErrorKind,
    /// The operation.
    pub verb: Verb,
    /// The object or folder.
    pub subject: String,
    /// Answer of the store, if it gave one.
    pub reason: Option<StoreReason>,
    /// Cause in the words of the network or the library, if the store gave no answer.
    pub cause: Option<String>,
}

impl fmt::Display for BucketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ErrorKind::Exists => "there is an object of that name",
            ErrorKind::Missing if self.verb.changes() || self.verb == Verb::List => "there is no such bucket",
            ErrorKind::Missing => "there is no such object",
            ErrorKind::Unknown => "it is not known whether that was done",
            ErrorKind::Throttled => "the store asks for fewer requests",
            ErrorKind::Denied => "the store does not permit it",
            ErrorKind::Full => "the store is full",
            ErrorKind::Refused => "the store refuses it",
            ErrorKind::Away => "the store does not answer",
        };
        write!(f, "cannot {} {}: {kind}", self.verb, self.subject)?;
        match (&self.reason, &self.cause) {
            (Some(reason), _) => write!(f, " ({reason})"),
            (None, Some(cause)) => write!(f, " ({cause})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for BucketError {}
