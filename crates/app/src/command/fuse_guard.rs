//! `fuse-guard`: a process that unmounts a FUSE mount after the daemon has died. Only the daemon
//! starts it.

use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use millpond_api::failure::{Failure, Outcome};

/// Waits for the end of standard input and then unmounts
#[derive(Debug, Args)]
pub struct FuseGuard {
    /// Device number of the mount, major:minor
    number: String,
    /// Where it is mounted
    dir: PathBuf,
}

impl FuseGuard {
    pub async fn run(self) -> Outcome {
        let fail = |e: io::Error| Failure::failed(format!("cannot guard {}: {e}", self.dir.display()));
        // Detaches from the daemon's terminal and process group. Signals that ask it to end are
        // ignored: it ends only after the mount is gone.
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
        millpond_daemon::clear_mount(&self.dir, &self.number).map_err(fail)
    }
}
