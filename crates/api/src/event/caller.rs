//! Identity of the caller of a request, as events record it.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::words;

words! {
    /// How the daemon knows the identity of a caller.
    pub enum CallerKind {
        /// The kernel names user and process at the other end of the control socket.
        Unix = "unix",
        /// The request had a token.
        Token = "token",
        /// The request came from a session of the web console.
        Session = "session",
    }
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Caller {
    /// How the daemon knows the caller.
    pub kind: CallerKind,
    /// Name of the user or of the token; the uid in digits if the user has no name.
    pub name: String,
    /// Numeric id of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Id of the process that connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of the process as the kernel has it, at most 15 bytes. The process can change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = match (&self.process, self.pid) {
            (Some(process), Some(pid)) => format!(" ({process}, pid {pid})"),
            (None, Some(pid)) => format!(" (pid {pid})"),
            (_, None) => String::new(),
        };
        match self.kind {
            CallerKind::Token => f.pad(&format!("token {}{process}", self.name)),
            CallerKind::Session => f.pad(&format!("{} (console)", self.name)),
            CallerKind::Unix | CallerKind::Other(_) => f.pad(&format!("{}{process}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Callers in words.
    use super::*;

    #[test]
    fn a_caller_is_named_with_its_process() {
        let caller =
            Caller { kind: CallerKind::Unix, name: "root".to_owned(), uid: Some(0), pid: Some(7), process: Some("millpond".to_owned()) };
        assert_eq!(caller.to_string(), "root (millpond, pid 7)");
        assert_eq!(Caller { process: None, ..caller.clone() }.to_string(), "root (pid 7)");
        let token = Caller { kind: CallerKind::Token, name: "backup".to_owned(), uid: None, pid: None, process: None };
        assert_eq!(token.to_string(), "token backup");
        let text = serde_json::to_string(&token).expect("JSON");
        assert_eq!(text, r#"{"kind":"token","name":"backup"}"#);
        assert_eq!(serde_json::from_str::<Caller>(&text).expect("a caller"), token);
    }
}
