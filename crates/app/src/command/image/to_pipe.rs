//! `export-image NAME -`: writes a snapshot to standard output, for a pipe or a redirection.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;

use millpond_api::Snapshot;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_daemon::Signals;
use millpond_images::copy::CopyError;
use millpond_images::format::Format;
use millpond_images::pipe;
use millpond_images::served::ServedImage;

use super::transient_export::{Total, TransientExport, copy_failure, interruptible, written};

/// Whether the word for a file stands for standard input or output. A file of this name is `./-`.
pub fn is_pipe(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Checks that an image of this format can be written to standard output.
///
/// # Errors
/// Wrong usage.
pub fn check(format: Format) -> Outcome {
    if format != Format::Raw {
        let line = format!(
            "format {} cannot be written to standard output, because its tables are written last; give a file, or -f raw",
            format.name()
        );
        return Err(Failure::usage(line));
    }
    if io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is a terminal; redirect it to a file or a program, or give a file"));
    }
    Ok(())
}

/// Writes one version to standard output, raw.
///
/// # Errors
/// The daemon's error, that of the copy, or that it was interrupted.
pub async fn export(client: &Client, signals: &mut Signals, name: &SnapshotName) -> Outcome {
    let out = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let out = out.map_err(|e| Failure::failed(format!("cannot write to standard output: {e}; redirect it to a file or a program")))?;
    let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?;
    let transient_export = TransientExport::open(client, &name.to_string(), true).await?;
    let image = ServedImage { socket: transient_export.socket().to_owned(), layered: false, server: None };
    let (what, from) = (format!("export {name}"), name.to_string());
    let left = "what was written to standard output is incomplete";
    let done = interruptible(what, (Total::Of(snapshot.size), written), left, signals, move |progress| {
        pipe::write(&image, out, progress).map_err(|e| failure(e, &from))
    });
    let done = done.await;
    // the copy's own error says more than that of the clean-up
    let closed = transient_export.close(client).await;
    done.and(closed)
}

fn failure(error: CopyError, source: &str) -> Failure {
    match error {
        CopyError::Target(at, e) if e.kind() == io::ErrorKind::BrokenPipe => {
            Failure::failed(format!("standard output was closed at about byte {at} of {source}; see why its reader ended"))
        }
        CopyError::Target(at, e) => {
            Failure::failed(format!("cannot write to standard output at about byte {at} of {source}: {e}; what was written is incomplete"))
        }
        error => copy_failure(error, source, "standard output"),
    }
}
