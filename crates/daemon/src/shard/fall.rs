//! Unexpected end of a shard: its ring failed, or a defect of the program made its thread panic.
//!
//! A panic unwinds the thread up to here. First the pool's state becomes `Faulted`, then the shard
//! is dropped: the ring gets its operations back from the kernel before it frees their memory, or
//! keeps that memory for ever (INV-URING-1); sockets and devices are closed. The engine's state is
//! lost as in a crash, which loses nothing that was acknowledged. Other shards share nothing with
//! it. A second panic during the unwinding ends the process, which a service manager starts again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use millpond_engine::{Fault, PoolState};
use tokio::sync::watch;

/// Advice for users.
const ADVICE: &str = "import the pool again; nothing acknowledged is lost";

/// Reason of the unexpected end of a shard; shared with its handles.
#[derive(Clone, Default)]
pub(super) struct Fall(Arc<OnceLock<String>>);

impl Fall {
    /// Returns the reason. Once there is one, the devices are free.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Runs a shard to its end, and records an unexpected one.
    pub fn watch(&self, state: &watch::Sender<PoolState>, run: impl FnOnce() -> Result<(), String>) {
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => format!("{reason}; {ADVICE}"),
            Err(panic) => format!("a defect in the program stopped the pool ({}); report it, and {ADVICE}", words(&*panic)),
        };
        tracing::error!(reason = fault, "a pool's thread has ended");
        state.send_replace(PoolState::Faulted(Fault::Caller(fault.clone())));
        // cannot be set already: a thread ends once
        let _ = self.0.set(fault);
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no message)")
}

/// Sets the pool's state to `Faulted` as soon as its thread begins to unwind, because it may take
/// long to get the ring's operations back.
pub(super) struct Unwinding(pub watch::Sender<PoolState>);

impl Drop for Unwinding {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .send_replace(PoolState::Faulted(Fault::Caller("a defect in the program stopped the pool; it is being closed".to_owned())));
        }
    }
}
