//! Layer between a client's socket and its session: none, or TLS.

use std::sync::Arc;

use millpond_device::{ConnectionId, Ring, Socket};

use crate::tls::{Credentials, Lost, Pace, Received, Sent, TlsWire};

/// Layer between socket and session.
pub(super) enum Wire {
    /// The session's bytes go over the socket as they are.
    Plain,
    /// The session's bytes are encrypted.
    Tls(Box<TlsWire>),
    /// Another thread encrypts and decrypts. Until it is back, nothing is sent or received here, and
    /// the client stays.
    Away {
        /// Protocol and cipher.
        agreed: Option<Arc<str>>,
        /// The connection was given up meanwhile.
        given_up: bool,
    },
}

impl Wire {
    /// Encrypts from here on.
    pub fn start_tls(&mut self, credentials: &Credentials, socket: Socket) {
        *self = Wire::Tls(Box::new(TlsWire::new(credentials, socket)));
    }

    /// Returns the TLS connection, for another thread; `None` if there is none here.
    pub fn take_away(&mut self) -> Option<Box<TlsWire>> {
        match std::mem::replace(self, Wire::Plain) {
            Wire::Tls(mut wire) => {
                *self = Wire::Away { agreed: wire.keep_agreed(), given_up: false };
                Some(wire)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Takes the TLS connection back. Returns false if the connection was given up meanwhile.
    pub fn take_back(&mut self, wire: Box<TlsWire>) -> bool {
        let goes_on = matches!(self, Wire::Away { given_up: false, .. });
        *self = if goes_on { Wire::Tls(wire) } else { Wire::Plain };
        goes_on
    }

    /// Neither sends nor receives any more.
    pub fn give_up(&mut self) {
        match self {
            Wire::Away { given_up, .. } => *given_up = true,
            Wire::Plain | Wire::Tls(_) => *self = Wire::Plain,
        }
    }

    /// True while another thread has the connection.
    pub fn is_away(&self) -> bool {
        matches!(self, Wire::Away { .. })
    }

    /// True when there is TLS here.
    pub fn is_tls(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// Receives the available bytes for the session.
    pub fn receive(&mut self, ring: &mut Ring, id: ConnectionId, target: &mut [u8]) -> Result<Received, Lost> {
        match self {
            Wire::Plain => {
                let count = ring.receive(id, target)?;
                // Fewer bytes than there was room for: none are left.
                Ok(Received { count, more: count == target.len() })
            }
            Wire::Tls(wire) => wire.receive(target),
            Wire::Away { .. } => Err(Lost::Nothing),
        }
    }

    /// Sends slices in order, as far as the socket has room.
    pub fn send<'a>(&mut self, ring: &mut Ring, id: ConnectionId, slices: impl Iterator<Item = &'a [u8]>) -> Result<Sent, Lost> {
        match self {
            Wire::Plain => {
                let mut offered = 0;
                let count = ring.send(id, slices.inspect(|slice| offered += slice.len()))?;
                Ok(Sent { count, full: count < offered })
            }
            Wire::Tls(wire) => wire.send(slices, &Pace::SHARD),
            Wire::Away { .. } => Err(Lost::Nothing),
        }
    }

    /// Sends messages of TLS itself, and encrypted bytes that are left. True when none are left.
    pub fn flush(&mut self) -> Result<bool, Lost> {
        match self {
            Wire::Plain => Ok(true),
            Wire::Tls(wire) => wire.flush(),
            Wire::Away { .. } => Err(Lost::Nothing),
        }
    }

    /// True when everything that was taken is sent, and no other thread has the connection.
    pub fn is_empty(&self) -> bool {
        match self {
            Wire::Plain => true,
            Wire::Tls(wire) => wire.unsent() == 0,
            Wire::Away { .. } => false,
        }
    }

    /// Sends TLS' closing message, when TLS is in use and as far as the socket has room.
    pub fn close(&mut self) {
        if let Wire::Tls(wire) = self {
            wire.close();
        }
    }

    /// Returns protocol and cipher; `None` without encryption.
    pub fn agreed(&self) -> Option<Arc<str>> {
        match self {
            Wire::Plain => None,
            Wire::Tls(wire) => wire.agreed(),
            Wire::Away { agreed, .. } => agreed.clone(),
        }
    }
}
