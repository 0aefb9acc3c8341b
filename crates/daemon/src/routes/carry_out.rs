//! Running commands to completion. A command continues when its client disconnects or times out, so
//! that no command is left half done.

use std::sync::Arc;

use millpond_api::{ApiError, ErrorKind};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::refused::Refused;
use crate::Daemon;
use crate::caller;

/// Starts a command as a task.
fn start<T, F>(daemon: &Arc<Daemon>, command: impl FnOnce(Arc<Daemon>) -> F) -> JoinHandle<Result<T, ApiError>>
where
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(caller::scope(caller::shared(), command(Arc::clone(daemon))))
}

/// Runs a command without a time limit.
pub(super) async fn whole<T, F>(daemon: &Arc<Daemon>, command: impl FnOnce(Arc<Daemon>) -> F) -> Result<T, Refused>
where
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
    T: Send + 'static,
{
    start(daemon, command).await.unwrap_or_else(|error| Err(ended(&error.to_string()))).map_err(Refused::from)
}

/// Runs a short command. After the time limit the client gets an error; the command continues.
pub(super) async fn soon<T, F>(daemon: &Arc<Daemon>, command: impl FnOnce(Arc<Daemon>) -> F) -> Result<T, Refused>
where
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
    T: Send + 'static,
{
    let limit = daemon.command_limit();
    match timeout(limit, start(daemon, command)).await {
        Ok(done) => done.unwrap_or_else(|error| Err(ended(&error.to_string()))).map_err(Refused::from),
        Err(_) => {
            let message = format!(
                "the pool has not completed the command within {} s and continues with it, because a device hangs or the pool is busy; see 'millpond pool status', or stop the pool with 'millpond pool export NAME --force'",
                limit.as_secs()
            );
            tracing::warn!("a command on the control socket continues after {} s", limit.as_secs());
            Err(ApiError::new(ErrorKind::Unavailable, message).into())
        }
    }
}

fn ended(why: &str) -> ApiError {
    ApiError::internal(format!("the command broke off: {why}; see the daemon's messages"))
}
