//! Connections to exports.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use millpond_export::nbd::client::Client;

/// Connects to the default export of a socket.
pub fn connect(socket: &Path) -> io::Result<Client<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    Client::new(stream)
}
