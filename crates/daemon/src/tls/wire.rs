//! One TLS connection over its socket. Whoever has this value seals, sends, receives and opens: the
//! shard, or for a while a helper.

use std::sync::Arc;

use millpond_device::Socket;
use rustix::io::Errno;

use super::credentials::Credentials;
use super::server::{Decrypted, TlsError, TlsServer};

/// Bytes received from the socket at a time: four TLS records.
const CHUNK: usize = 64 << 10;
/// Most receives in a row that yield no byte for the session: a handshake with long certificates
/// needs a fraction of that, and no client may delay the others by TLS messages alone.
const MOST_CHUNKS: usize = 16;
/// Encrypted bytes waiting to be sent, above which no more are made: four times a socket's fair
/// share of a turn.
const MOST_OUTGOING: usize = 1 << 20;
/// Most bytes of a TLS record; small replies share one.
const RECORD: usize = 16 << 10;

/// Reason why nothing is received or sent, now or for good.
#[derive(Debug)]
pub(crate) enum Lost {
    /// Nothing has arrived; the ring reports when something has.
    Nothing,
    /// The socket broke.
    Socket,
    /// TLS broke, or its handshake failed.
    Tls(TlsError),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Lost {
        if errno == Errno::WOULDBLOCK { Lost::Nothing } else { Lost::Socket }
    }
}

impl From<TlsError> for Lost {
    fn from(error: TlsError) -> Lost {
        Lost::Tls(error)
    }
}

/// Result of receiving.
pub(crate) struct Received {
    /// Bytes; 0 means that the client sends no more.
    pub count: usize,
    /// There may be more to receive now.
    pub more: bool,
}

/// Result of sending.
pub(crate) struct Sent {
    /// Number of the given bytes that were taken.
    pub count: usize,
    /// The socket has no room; watch for it to become writable.
    pub full: bool,
}

/// How much is sent in one go.
pub(crate) struct Pace {
    /// Bytes of the session after which no more are taken.
    most: usize,
    /// Encrypted bytes that are sent without waiting for more, so that the client works on them
    /// meanwhile.
    eager: usize,
}

impl Pace {
    /// All that there is, in large parts.
    pub const SHARD: Pace = Pace { most: usize::MAX, eager: 256 << 10 };
    /// In small parts: the client's next requests are received in between.
    pub const HELPER: Pace = Pace { most: 256 << 10, eager: 64 << 10 };
    /// So little that no other client waits long.
    pub const BETWEEN: Pace = Pace { most: 64 << 10, eager: 64 << 10 };
}

/// A TLS connection and its socket.
pub(crate) struct TlsWire {
    server: TlsServer,
    socket: Socket,
    chunk: Vec<u8>,
    /// Small pieces that will share one record.
    gathered: Vec<u8>,
    /// Protocol and cipher, once the handshake is over.
    agreed: Option<Arc<str>>,
}

impl TlsWire {
    /// Returns a connection before its handshake.
    pub fn new(credentials: &Credentials, socket: Socket) -> TlsWire {
        let server = TlsServer::new(credentials);
        TlsWire { server, socket, chunk: vec![0; CHUNK], gathered: Vec::with_capacity(RECORD), agreed: None }
    }

    /// Continues the handshake, then receives the available bytes for the session.
    pub fn receive(&mut self, target: &mut [u8]) -> Result<Received, Lost> {
        for _ in 0..MOST_CHUNKS {
            match self.server.read(target)? {
                Decrypted::Bytes(count) => return Ok(Received { count, more: true }),
                Decrypted::End => return Ok(Received { count: 0, more: false }),
                Decrypted::Nothing => {
                    let count = self.socket.receive(&mut self.chunk)?;
                    self.server.feed(self.chunk.get(..count).unwrap_or_default());
                }
            }
        }
        Err(Lost::Tls(TlsError::Broken("too many TLS records without data".to_owned())))
    }

    /// Sends slices in order, as far as the socket has room.
    pub fn send<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, pace: &Pace) -> Result<Sent, Lost> {
        let mut count = 0;
        for piece in slices.flat_map(|slice| slice.chunks(RECORD)) {
            if count >= pace.most {
                break;
            }
            if self.server.outgoing() + self.gathered.len() >= pace.eager {
                self.encrypt_gathered()?;
                self.push()?;
                if self.server.outgoing() >= MOST_OUTGOING {
                    return Ok(Sent { count, full: true });
                }
            }
            if self.gathered.len() + piece.len() > RECORD {
                self.encrypt_gathered()?;
            }
            match piece.len() {
                RECORD => self.server.write(piece)?,
                _ => self.gathered.extend_from_slice(piece),
            }
            count += piece.len();
        }
        self.encrypt_gathered()?;
        self.push()?;
        Ok(Sent { count, full: self.unsent() > 0 })
    }

    /// Sends messages of TLS itself, and encrypted bytes that are left. True when none are left.
    pub fn flush(&mut self) -> Result<bool, Lost> {
        self.push()?;
        Ok(self.unsent() == 0)
    }

    /// Returns the number of encrypted bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.server.outgoing()
    }

    /// Sends TLS' closing message as far as the socket has room.
    pub fn close(&mut self) {
        self.server.close();
        // A client that does not get it sees the connection end.
        let _ = self.flush();
    }

    /// Returns protocol and cipher; `None` before the handshake is over.
    pub fn agreed(&self) -> Option<Arc<str>> {
        self.agreed.clone().or_else(|| self.server.agreed().map(Arc::from))
    }

    /// As [`TlsWire::agreed`]; later calls are cheap.
    pub fn keep_agreed(&mut self) -> Option<Arc<str>> {
        self.agreed = self.agreed();
        self.agreed.clone()
    }

    fn encrypt_gathered(&mut self) -> Result<(), TlsError> {
        if !self.gathered.is_empty() {
            self.server.write(&self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }

    fn push(&mut self) -> Result<(), Errno> {
        if self.server.outgoing() == 0 {
            return Ok(());
        }
        let socket = &self.socket;
        self.server.send_with(|bytes| socket.send(std::iter::once(bytes)))
    }
}
