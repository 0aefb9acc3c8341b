//! Identity of the caller of a request, for the events of its changes.
//!
//! *Architecture Invariant:* the extension [`Caller`] of a request is the one source of its caller.
//! The guard before all routes sets it, from the peer of the control socket or from a token.
//!
//! A command runs in the scope of its caller ([`scope`]), and events that it reports have the caller
//! ([`current`]). Work that the daemon does by itself has no caller.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use millpond_api::Caller;
use tokio::task_local;

use super::service::Daemon;

#[cfg(test)]
mod tests;

task_local! {
    /// The caller of the command that the task carries out.
    static CALLER: Option<Arc<Caller>>;
}

/// Carries out a request that may change something in the scope of its caller, and delays the answer
/// until the events of the change are written.
pub async fn identify(State(daemon): State<Arc<Daemon>>, request: Request, next: Next) -> Response {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<Caller>().cloned().map(Arc::new);
    let answer = scope(caller, next.run(request)).await;
    daemon.events.until_written().await;
    answer
}

/// Runs a future for a caller.
pub async fn scope<F: Future>(caller: Option<Arc<Caller>>, future: F) -> F::Output {
    CALLER.scope(caller, future).await
}

/// Returns the caller for whom the task runs, to pass it on to another task.
pub fn shared() -> Option<Arc<Caller>> {
    CALLER.try_with(Clone::clone).ok().flatten()
}

/// Returns the caller for whom the task runs; `None` for the daemon's own work.
pub fn current() -> Option<Caller> {
    shared().map(|caller| Caller::clone(&caller))
}
