//! The status of the daemon, with its pools and exports.

use std::time::Duration;

use millpond_api::{ApiError, RequestMemory, Status};

use super::service::Daemon;

/// Age at which incomplete receives are looked for again.
const RECEIVES: Duration = Duration::from_secs(10);

impl Daemon {
    /// Returns the status of the whole daemon.
    ///
    /// # Errors
    /// None: a pool that does not answer is listed as unavailable.
    pub(crate) async fn status(&self) -> Result<Status, ApiError> {
        let ready = *self.ready.borrow();
        let (limit, used) = self.options.budget.use_of();
        let looks = self.look().await;
        let (pools, exports) = (self.list_pools(&looks), self.list_exports(&looks));
        self.look_at_receives(&pools, RECEIVES).await;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            ready,
            socket: self.options.socket.display().to_string(),
            state_dir: self.dir.path().display().to_string(),
            request_memory: RequestMemory { limit, used },
            receives: pools.iter().flat_map(|pool| self.receives.of(&pool.id)).collect(),
            conditions: self.conditions(&pools, &exports),
            pools,
            exports,
        })
    }
}
