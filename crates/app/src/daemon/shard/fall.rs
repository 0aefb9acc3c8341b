//! The end of a shard that nobody asked for: its ring failed, or a defect of the program made its thread panic.
//!
//! The thread unwinds as far as this. On the way the pool is called faulted first, then the shard is dropped: the ring gets its operations back from
//! the kernel before it frees their memory, or keeps that memory for ever (INV-URING-1); sockets and devices are closed. What the engine knew is gone
//! as in a crash, which loses nothing that was acknowledged. Other shards share nothing with it. A second panic on the way ends the process,
//! which a service manager starts again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use millpond_engine::PoolState;
use tokio::sync::watch;

/// What people are asked to do about it.
const ADVICE: &str = "import the pool again; nothing acknowledged is lost";

/// Why a shard has fallen, once it has.
#[derive(Clone, Default)]
pub(super) struct Fall(Arc<OnceLock<String>>);

impl Fall {
    /// The reason. From when there is one, the devices are free.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Runs a shard to its end.
    pub fn watch(&self, state: &watch::Sender<PoolState>, run: impl FnOnce() -> Result<(), String>) {
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => format!("{reason}; {ADVICE}"),
            Err(panic) => format!("a defect in the program stopped the pool ({}); report it, and {ADVICE}", words(&*panic)),
        };
        tracing::error!(reason = fault, "a pool's thread has ended");
        state.send_replace(PoolState::Faulted(fault.clone()));
        // a thread falls once
        let _ = self.0.set(fault);
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Calls the pool faulted as soon as its thread begins to unwind: to get the ring's operations back may take long.
pub(super) struct Unwinding(pub watch::Sender<PoolState>);

impl Drop for Unwinding {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(PoolState::Faulted("a defect in the program stopped the pool; it is being closed".to_owned()));
        }
    }
}
