//! A private NBD export of a volume or snapshot for this process, removed when the command ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::size::Size;
use millpond_api::{CreateExport, CreateNbd, Export};
use millpond_daemon::Signals;
use millpond_images::copy::{CopyError, CopyProgress};
use millpond_images::nbd::{Nbd, connect};

use crate::progress::Progress;

/// Interval between updates of the progress display.
const LOOK: Duration = Duration::from_millis(100);
/// The remains of an interrupted copy to a new volume or file.
pub const REMOVED: &str = "the incomplete result is removed";

/// A private export. The daemon chooses its socket, beside the control socket with mode 0600, and
/// does not restore the export after a restart. [`TransientExport::close`] must be called.
///
/// The daemon ends an export of this kind that has no client for a time, so that a killed command
/// leaves none. A connection without requests keeps it while the command does other work.
pub struct TransientExport {
    id: u64,
    socket: PathBuf,
    /// Kept open until the end; none for a receive, which has its own and counts clients.
    kept: Option<Nbd>,
}

impl TransientExport {
    /// Makes the export.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn open(client: &Client, name: &str, readonly: bool) -> Outcome<TransientExport> {
        let name = name.to_owned();
        let mut export = TransientExport::make(client, CreateNbd { name, readonly, ..CreateNbd::default() }).await?;
        let socket = export.socket.clone();
        let connected = tokio::task::spawn_blocking(move || connect(&socket)).await;
        match connected.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
            Ok(kept) => {
                export.kept = Some(kept);
                Ok(export)
            }
            Err(error) => {
                export.close(client).await?;
                Err(Failure::failed(format!("cannot use the private export: {error}; see the daemon's messages")))
            }
        }
    }

    /// Makes the export of a volume or snapshot for a receive, which may be incomplete. The caller
    /// connects at once, and stays connected but for moments.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn open_for_receive(client: &Client, name: &str, readonly: bool) -> Outcome<TransientExport> {
        let name = name.to_owned();
        TransientExport::make(client, CreateNbd { name, readonly, receive: true, ..CreateNbd::default() }).await
    }

    /// As [`TransientExport::open_for_receive`], of a volume that others may write to: the caller
    /// ends the receives among them.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn open_beside_receives(client: &Client, name: &str, readonly: bool) -> Outcome<TransientExport> {
        let name = name.to_owned();
        TransientExport::make(client, CreateNbd { name, readonly, receive: true, force: true, ..CreateNbd::default() }).await
    }

    async fn make(client: &Client, request: CreateNbd) -> Outcome<TransientExport> {
        let request = CreateExport::Nbd(CreateNbd { transient: true, ..request });
        let export: Export = client.post("/v1/exports", &request).await?;
        let socket = export.unix.map(PathBuf::from);
        let socket = socket.ok_or_else(|| Failure::failed("the daemon made no socket; use the millpond that belongs to it"))?;
        Ok(TransientExport { id: export.id, socket, kept: None })
    }

    /// Id of the export.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Path of the unix socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Removes the export.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn close(self, client: &Client) -> Outcome {
        drop(self.kept);
        client.delete(&format!("/v1/exports/{}?force=true", self.id)).await
    }
}

/// Bytes that a job processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// The job is short: neither progress nor a result is shown.
    Hidden,
    /// This many.
    Of(u64),
    /// It is known at the end.
    Unknown,
}

/// Formats the result of a job over a total number of bytes.
pub type Came = fn(u64, &CopyProgress) -> String;

/// Result of a copy: bytes processed, and bytes written.
pub fn written(total: u64, course: &CopyProgress) -> String {
    format!("{}, {} of data", Size(total), Size(course.written.load(Relaxed)))
}

/// Result of a comparison.
pub fn compared(total: u64, _: &CopyProgress) -> String {
    format!("{} compared, no difference", Size(total))
}

/// Result without details: the total.
pub fn whole(total: u64, _: &CopyProgress) -> String {
    Size(total).to_string()
}

/// Runs blocking work on another thread, shows its progress and result if there are bytes to count,
/// and stops it at SIGINT and SIGTERM.
///
/// # Errors
/// The error of the work, or that it was interrupted.
pub async fn with_progress<T: Send + 'static>(
    what: String,
    (total, result): (u64, Came),
    signals: &mut Signals,
    work: impl FnOnce(&CopyProgress) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let total = if total > 0 { Total::Of(total) } else { Total::Hidden };
    interruptible(what, (total, result), REMOVED, signals, work).await
}

/// Like [`with_progress`], with what is said to be left of the result after an interruption.
///
/// # Errors
/// The error of the work, or that it was interrupted.
pub async fn interruptible<T: Send + 'static>(
    what: String,
    (total, result): (Total, Came),
    left: &str,
    signals: &mut Signals,
    work: impl FnOnce(&CopyProgress) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let (interrupted, ended) = watched(what, (total, result), signals, work).await;
    if interrupted { Err(Failure::failed(format!("interrupted; {left}"))) } else { ended }
}

/// Runs blocking work as [`with_progress`] does; returns whether it was interrupted, too, for work
/// whose incomplete result stays.
pub async fn watched<T: Send + 'static>(
    what: String,
    (total, result): (Total, Came),
    signals: &mut Signals,
    work: impl FnOnce(&CopyProgress) -> Outcome<T> + Send + 'static,
) -> (bool, Outcome<T>) {
    let course = Arc::new(CopyProgress::default());
    let theirs = Arc::clone(&course);
    let mut running = tokio::task::spawn_blocking(move || work(&theirs));
    let mut progress = match total {
        Total::Hidden => None,
        Total::Of(total) => Some(Progress::new(what, total)),
        Total::Unknown => Some(Progress::new(what, 0)),
    };
    let mut turn = tokio::time::interval(LOOK);
    let mut interrupted = false;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            () = signals.next() => {
                interrupted = true;
                course.stop.store(true, Relaxed);
            }
            _ = turn.tick() => {
                let done = course.done.load(Relaxed);
                match (&mut progress, total) {
                    (Some(progress), Total::Of(total)) => progress.remaining(total.saturating_sub(done)),
                    (Some(progress), _) => progress.counted(done),
                    (None, _) => {}
                }
            }
        }
    };
    let total = if let Total::Of(total) = total { total } else { course.done.load(Relaxed) };
    match progress {
        Some(progress) if !interrupted && matches!(ended, Ok(Ok(_))) => progress.finish(&result(total, &course)),
        Some(progress) => progress.give_up(),
        None => {}
    }
    let ended = ended.unwrap_or_else(|e| Err(Failure::failed(format!("the work failed: {e}; run the command again"))));
    (interrupted, ended)
}

/// Turns an error of a copy into a message; `source` and `target` are names that the user knows.
pub fn copy_failure(error: CopyError, source: &str, target: &str) -> Failure {
    Failure::failed(match error {
        CopyError::Source(at, e) => format!("cannot read {source} at byte {at}: {e}; check it"),
        CopyError::Target(_, e) if e.kind() == std::io::ErrorKind::StorageFull => {
            format!("{target} is full; add a device with 'millpond pool add', or free space")
        }
        CopyError::Target(at, e) => format!("cannot write {target} at byte {at}: {e}; see the daemon's messages"),
        CopyError::Differs(at) => {
            format!("{target} differs from {source} at byte {at} after the copy; check the devices with 'millpond pool status'")
        }
        CopyError::Stopped => format!("interrupted; {REMOVED}"),
    })
}
