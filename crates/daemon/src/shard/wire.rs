//! Layer between a client's socket and its session: none, or TLS.

use millpond_device::{ConnectionId, Ring};
use rustix::io::Errno;

use crate::tls::{Credentials, Decrypted, TlsError, TlsServer};

/// Bytes received from the socket at a time: four TLS records.
const CHUNK: usize = 64 << 10;
/// Most receives in a row that yield no byte for the session: a handshake with long certificates
/// needs a fraction of that, and no client may delay the others by TLS messages alone.
const MOST_CHUNKS: usize = 16;
/// Encrypted bytes waiting to be sent, above which no more are made: four times a socket's fair
/// share of a turn.
const MOST_OUTGOING: usize = 1 << 20;
/// Encrypted bytes that are sent without waiting for more, so that the client works on them
/// meanwhile.
const EAGER_OUTGOING: usize = 256 << 10;
/// Most bytes of a TLS record; small replies share one.
const RECORD: usize = 16 << 10;

/// Reason why nothing is received or sent, now or for good.
#[derive(Debug)]
pub(super) enum Lost {
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
pub(super) struct Received {
    /// Bytes; 0 means that the client sends no more.
    pub count: usize,
    /// There may be more to receive now.
    pub more: bool,
}

/// Result of sending.
pub(super) struct Sent {
    /// Number of the given bytes that were taken.
    pub count: usize,
    /// The socket has no room; watch for it to become writable.
    pub full: bool,
}

/// Layer between socket and session.
pub(super) enum Wire {
    /// The session's bytes go over the socket as they are.
    Plain,
    /// The session's bytes are encrypted.
    Tls(Box<TlsWire>),
}

pub(super) struct TlsWire {
    server: TlsServer,
    chunk: Vec<u8>,
    /// Small pieces that will share one record.
    gathered: Vec<u8>,
}

impl Wire {
    /// Encrypts from here on.
    pub fn start_tls(&mut self, credentials: &Credentials) {
        let server = TlsServer::new(credentials);
        *self = Wire::Tls(Box::new(TlsWire { server, chunk: vec![0; CHUNK], gathered: Vec::with_capacity(RECORD) }));
    }

    /// Receives the available bytes for the session.
    pub fn receive(&mut self, ring: &mut Ring, id: ConnectionId, target: &mut [u8]) -> Result<Received, Lost> {
        let Wire::Tls(wire) = self else {
            let count = ring.receive(id, target)?;
            // Fewer bytes than there was room for: none are left.
            return Ok(Received { count, more: count == target.len() });
        };
        for _ in 0..MOST_CHUNKS {
            match wire.server.read(target)? {
                Decrypted::Bytes(count) => return Ok(Received { count, more: true }),
                Decrypted::End => return Ok(Received { count: 0, more: false }),
                Decrypted::Nothing => {
                    let count = ring.receive(id, &mut wire.chunk)?;
                    wire.server.feed(wire.chunk.get(..count).unwrap_or_default());
                }
            }
        }
        Err(Lost::Tls(TlsError::Broken("too many TLS records without data".to_owned())))
    }

    /// Sends slices in order, as far as the socket has room.
    pub fn send<'a>(&mut self, ring: &mut Ring, id: ConnectionId, slices: impl Iterator<Item = &'a [u8]>) -> Result<Sent, Lost> {
        let Wire::Tls(wire) = self else {
            let mut offered = 0;
            let count = ring.send(id, slices.inspect(|slice| offered += slice.len()))?;
            return Ok(Sent { count, full: count < offered });
        };
        let mut count = 0;
        for slice in slices {
            for piece in slice.chunks(RECORD) {
                if wire.server.outgoing() + wire.gathered.len() >= EAGER_OUTGOING {
                    wire.encrypt_gathered()?;
                    wire.flush(ring, id)?;
                    if wire.server.outgoing() >= MOST_OUTGOING {
                        return Ok(Sent { count, full: true });
                    }
                }
                if wire.gathered.len() + piece.len() > RECORD {
                    wire.encrypt_gathered()?;
                }
                match piece.len() {
                    RECORD => wire.server.write(piece)?,
                    _ => wire.gathered.extend_from_slice(piece),
                }
                count += piece.len();
            }
        }
        wire.encrypt_gathered()?;
        wire.flush(ring, id)?;
        Ok(Sent { count, full: wire.server.outgoing() > 0 })
    }

    /// Sends messages of TLS itself, and encrypted bytes that are left. True when none are left.
    pub fn flush(&mut self, ring: &mut Ring, id: ConnectionId) -> Result<bool, Lost> {
        match self {
            Wire::Plain => Ok(true),
            Wire::Tls(wire) => {
                wire.flush(ring, id)?;
                Ok(wire.server.outgoing() == 0)
            }
        }
    }

    /// Returns the number of encrypted bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        match self {
            Wire::Plain => 0,
            Wire::Tls(wire) => wire.server.outgoing(),
        }
    }

    /// Sends TLS' closing message, when TLS is in use and as far as the socket has room.
    pub fn close(&mut self, ring: &mut Ring, id: ConnectionId) {
        if let Wire::Tls(wire) = self {
            wire.server.close();
            // A client that does not get it sees the connection end.
            let _ = wire.flush(ring, id);
        }
    }

    /// Returns protocol and cipher; `None` without encryption.
    pub fn agreed(&self) -> Option<String> {
        match self {
            Wire::Plain => None,
            Wire::Tls(wire) => wire.server.agreed(),
        }
    }
}

impl TlsWire {
    fn encrypt_gathered(&mut self) -> Result<(), TlsError> {
        if !self.gathered.is_empty() {
            self.server.write(&self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }

    fn flush(&mut self, ring: &mut Ring, id: ConnectionId) -> Result<(), Errno> {
        if self.server.outgoing() == 0 {
            return Ok(());
        }
        self.server.send_with(|bytes| ring.send(id, std::iter::once(bytes)))
    }
}
