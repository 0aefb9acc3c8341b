//! Connections to exports, for the demo's load and for the verbs that move data.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use millpond_export::nbd::client::Client;

/// A connection to the default export of a unix socket.
pub type Nbd = Client<UnixStream>;

/// Time after which a server that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connects and negotiates.
///
/// # Errors
/// The host's I/O error, or that the server violates the protocol.
pub fn connect(socket: &Path) -> io::Result<Nbd> {
    Client::new(open(socket)?)
}

/// Connects for [`Client::extents`] of one metadata context.
///
/// # Errors
/// Those of [`connect`], or that the server does not have the context.
pub fn connect_for_extents(socket: &Path, context: &str) -> io::Result<Nbd> {
    Client::for_extents(open(socket)?, context)
}

fn open(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}
