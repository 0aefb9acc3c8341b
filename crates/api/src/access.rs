//! Access to the API: roles, tokens, sessions of the console.

use clap::ValueEnum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;

/// Role in a request. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything, changes nothing.
    Viewer,
    /// Works with volumes, snapshots and exports, and starts scrubs and rebalances.
    Operator,
    /// Everything: pools and their devices, tokens.
    Admin,
}

impl Role {
    /// Returns the name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

words! {
    /// Role of a caller.
    pub enum CallerRole {
        /// Reads everything, changes nothing.
        Viewer = "viewer",
        /// Works with volumes, snapshots and exports, and starts scrubs and rebalances.
        Operator = "operator",
        /// Everything: pools and their devices, tokens.
        Admin = "admin",
    }
}

impl From<Role> for CallerRole {
    fn from(role: Role) -> CallerRole {
        match role {
            Role::Viewer => CallerRole::Viewer,
            Role::Operator => CallerRole::Operator,
            Role::Admin => CallerRole::Admin,
        }
    }
}

/// Request to create a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Name of the token: 1 to 64 of A-Z a-z 0-9 . _ -
    pub name: String,
    /// Role of its bearer.
    pub role: Role,
    /// Names of the pools that it is for; empty for all.
    #[serde(default)]
    pub pools: Vec<String>,
    /// Time from which it is refused; null for a token that does not expire.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Name of the token.
    pub name: String,
    /// Role of its bearer.
    pub role: CallerRole,
    /// Names of the pools that it is for; empty for all.
    pub pools: Vec<String>,
    /// Time of its creation.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// Caller that created it.
    pub created_by: String,
    /// Time from which it is refused; null for a token that does not expire.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// True if it is refused because it has expired.
    pub expired: bool,
    /// Time of its last use since the start of the daemon.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used: Option<Timestamp>,
}

/// A token with its secret, which is shown only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token.
    #[serde(flatten)]
    pub token: Token,
    /// Its secret, for the header `Authorization: Bearer SECRET`.
    pub secret: String,
}

/// Request for a link that opens the console once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateLink {
    /// Role of the session; no higher than that of the caller.
    pub role: Role,
}

/// A link that opens the console once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Link {
    /// Address with a code that is valid once.
    pub url: String,
    /// Time from which the code is refused.
    #[schema(value_type = String, format = DateTime)]
    pub expires: Timestamp,
}

/// Request for a session of the console: has a code or a token, not both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Code of a link.
    #[serde(default)]
    pub code: Option<String>,
    /// Secret of a token.
    #[serde(default)]
    pub token: Option<String>,
}

/// The caller of a request, as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// User or token.
    pub who: String,
    /// Role.
    pub role: CallerRole,
    /// Names of the pools that the caller may use; empty for all.
    pub pools: Vec<String>,
    /// In a session: value that changes have to give in the header `X-Millpond-Csrf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
    /// In a session: time of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
}
