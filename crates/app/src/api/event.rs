//! What happens, as it happens.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One change, streamed by `GET /v1/events` as a JSON line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// What happened: `pool.created`, `snapshot.created`, `export.removed` and so on.
    pub event: String,
    /// To what.
    pub subject: String,
}
