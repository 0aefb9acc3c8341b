//! `fuse-guard`: the process that clears a mount away when the daemon has died. The daemon starts it; nobody else needs it.

use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::daemon;
use crate::failure::{Failure, Outcome};

/// Waits for the end of standard input and then unmounts
#[derive(Debug, Args)]
pub struct FuseGuard {
    /// Device number of the mount, major:minor
    number: String,
    /// Where it is mounted
    dir: PathBuf,
}

impl FuseGuard {
    /// Runs it.
    pub async fn run(self) -> Outcome {
        let fail = |e: io::Error| Failure::failed(format!("cannot guard {}: {e}", self.dir.display()));
        // Out of reach of what is sent to the daemon's terminal or group. Signals that ask to end are not obeyed: the mount decides.
        let _ = rustix::process::setsid();
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let _caught = kinds.map(signal);
        let wait = || loop {
            match io::stdin().read(&mut [0; 64]) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        tokio::task::spawn_blocking(wait).await.map_err(|e| fail(io::Error::other(e)))?;
        daemon::clear_mount(&self.dir, &self.number).map_err(fail)
    }
}
