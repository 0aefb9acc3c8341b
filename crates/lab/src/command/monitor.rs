//! `monitor`: records the machine and a server each second, beside a load of one's own.

use anyhow::{Context, Result, ensure};
use clap::Args;
use millpond_lab::monitor::{Disks, Watched, record};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Prints a line of CSV per second until interrupted: processors, memory, disks, a process, a pool; then means and maxima
#[derive(Args)]
#[command(after_help = "\
Example:
  millpond lab monitor --secs 600 --pid $(pidof qemu-system-x86_64) --disk-of /var/lib/vms > run.csv
  millpond lab monitor --socket /run/millpond/control.sock --pool tank > run.csv")]
pub struct MonitorArgs {
    /// Seconds to record; without it until Ctrl-C
    #[arg(long)]
    secs: Option<f64>,
    /// Process whose processor time and memory are recorded, such as QEMU or a server
    #[arg(long)]
    pid: Option<u32>,
    /// Records the disk below this directory instead of all disks
    #[arg(long, value_name = "DIR")]
    disk_of: Option<PathBuf>,
    /// Control socket of a Millpond, for the figures of a pool
    #[arg(long, requires = "pool")]
    socket: Option<PathBuf>,
    /// Name of the pool
    #[arg(long, requires = "socket")]
    pool: Option<String>,
}

impl MonitorArgs {
    /// Records until the time is over or a signal comes; prints means and maxima on standard error.
    ///
    /// # Errors
    /// The process does not exist, or the lines cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        if let Some(pid) = self.pid {
            millpond_lab::process::cpu_time(pid)?;
        }
        ensure!(self.secs.is_none_or(|secs| secs > 0.0 && secs.is_finite()), "nothing would be recorded; give --secs above 0");
        let stop = Arc::new(AtomicBool::new(false));
        stop_later(stop.clone(), self.secs.map(Duration::from_secs_f64))?;
        let disks = self.disk_of.map_or(Disks::All, Disks::Below);
        let watched = Watched { server: self.pid, pool: self.socket.zip(self.pool), disks };
        let summary = record(&mut std::io::stdout().lock(), &watched, &stop, |_| {})?;
        eprint!("{}", summary.table());
        Ok(ExitCode::SUCCESS)
    }
}

/// Sets `stop` on Ctrl-C or SIGTERM, or after this time.
fn stop_later(stop: Arc<AtomicBool>, time: Option<Duration>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting to wait for signals")?;
    let (mut interrupt, mut end) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = end.recv() => {}
                () = tokio::time::sleep(time.unwrap_or(Duration::MAX)) => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}
