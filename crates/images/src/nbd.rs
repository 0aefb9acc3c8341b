//! Connections to exports, for the demo's load and for the verbs that move data.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use millpond_export::nbd::client::Client;

/// Granularity of requests in bytes, which volumes of every sector size accept.
pub const BLOCK: u64 = 4096;

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

/// Reads a range of any offset and length. An export of 4096-byte sectors accepts only whole ones.
///
/// # Errors
/// The stream's error, or the error that the server returned.
pub fn read_widened(nbd: &mut Nbd, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let (start, end) = (offset / BLOCK * BLOCK, (offset + into.len() as u64).next_multiple_of(BLOCK).min(nbd.size()));
    let mut whole = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
    nbd.read(start, &mut whole)?;
    let skip = usize::try_from(offset - start).unwrap_or(0);
    let wanted = whole.get(skip..skip + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
    into.copy_from_slice(wanted);
    Ok(())
}

fn open(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}
