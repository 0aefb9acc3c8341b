//! Reasons why a front end gives up a back end.

use std::io;

/// Reason why a back end is given up. Display is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The back end refuses a message with this code.
    #[error("vhost-user: message {0} is refused")]
    Refused(u32),
    /// The reply to a message with this code has another code, or an impossible length.
    #[error("vhost-user: a strange reply to message {0}")]
    Reply(u32),
    /// The reply to a message with this code lacks its descriptor.
    #[error("vhost-user: a reply to message {0} without a descriptor")]
    NoDescriptor(u32),
    /// The back end has no configuration space.
    #[error("vhost-user: no configuration space")]
    NoConfiguration,
    /// A part of a queue is outside the memory that was shared.
    #[error("vhost-user: a queue outside the shared memory")]
    Place,
}

impl From<Violation> for io::Error {
    fn from(violation: Violation) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }
}
