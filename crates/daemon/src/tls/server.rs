//! Server's side of one TLS connection: encrypted bytes in, decrypted bytes out, and the other way
//! round.
//!
//! The library accesses its transport through `AsyncRead` and `AsyncWrite`. Here the transport is a
//! pair of buffers, and no call waits: one that is pending is polled again when more bytes have
//! arrived.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;
use s2n_tls_tokio::{TlsAcceptor, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::credentials::Credentials;
use super::names;

/// Reason why a connection cannot go on. Display is one line.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The handshake failed.
    #[error("TLS handshake failed: {0}")]
    Handshake(String),
    /// The client's certificate is valid, but none of its names, which this holds, is accepted.
    #[error("its certificate is of none of the clients that are allowed: {0}")]
    NotAllowed(String),
    /// Received bytes cannot be decrypted, or the library failed otherwise.
    #[error("TLS failed: {0}")]
    Broken(String),
}

/// Result of [`TlsServer::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decrypted {
    /// Number of decrypted bytes, at least 1.
    Bytes(usize),
    /// Nothing to read before more bytes arrive from the peer.
    Nothing,
    /// The peer sends no more.
    End,
}

type Stream = TlsStream<Pipe, Connection>;
type Accepting = Pin<Box<dyn Future<Output = Result<Stream, Error>> + Send>>;

enum Stage {
    Handshake(Accepting),
    Open(Box<Stream>),
    Over,
}

/// A connection. Feed it bytes from the peer, and read the decrypted ones; write, and send the
/// [outgoing](TlsServer::outgoing) bytes.
pub struct TlsServer {
    stage: Stage,
    pipe: Pipe,
    by_key: bool,
    /// Names of the accepted clients; empty for every authenticated client.
    clients: Arc<[String]>,
}

impl TlsServer {
    /// Returns a connection before its handshake.
    pub fn new(credentials: &Credentials) -> TlsServer {
        let pipe = Pipe::default();
        let (acceptor, transport) = (TlsAcceptor::new(credentials.clone()), pipe.clone());
        let accepting = Box::pin(async move { acceptor.accept(transport).await });
        let clients = Arc::clone(credentials.clients());
        TlsServer { stage: Stage::Handshake(accepting), pipe, by_key: credentials.is_psk(), clients }
    }

    /// Takes bytes from the peer; an empty slice means that the peer sends no more.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut buffers = self.pipe.lock();
        buffers.incoming.extend(bytes);
        buffers.ended |= bytes.is_empty();
    }

    /// Continues the handshake, then decrypts the available bytes into `target`. Bytes that TLS
    /// itself has to send become outgoing.
    ///
    /// # Errors
    /// When the connection is over; an alert may be outgoing.
    pub fn read(&mut self, target: &mut [u8]) -> Result<Decrypted, TlsError> {
        let mut context = Context::from_waker(Waker::noop());
        if let Stage::Handshake(accepting) = &mut self.stage {
            match accepting.as_mut().poll(&mut context) {
                Poll::Pending => return Ok(Decrypted::Nothing),
                Poll::Ready(Ok(stream)) => {
                    let allowed = self.check_name(&stream);
                    self.stage = if allowed.is_ok() { Stage::Open(Box::new(stream)) } else { Stage::Over };
                    allowed?;
                }
                Poll::Ready(Err(error)) => {
                    self.stage = Stage::Over;
                    return Err(TlsError::Handshake(self.words(&error)));
                }
            }
        }
        let Stage::Open(stream) = &mut self.stage else { return Ok(Decrypted::End) };
        let mut space = ReadBuf::new(target);
        while space.remaining() > 0 {
            let before = space.filled().len();
            match Pin::new(&mut **stream).poll_read(&mut context, &mut space) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if space.filled().len() == before => {
                    return Ok(if before == 0 { Decrypted::End } else { Decrypted::Bytes(before) });
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) if before > 0 => return Ok(Decrypted::Bytes(before)),
                // Many clients leave without TLS' closing message. NBD has one of its own, and
                // every message has its length.
                Poll::Ready(Err(_)) if self.pipe.lock().ended => return Ok(Decrypted::End),
                Poll::Ready(Err(error)) => {
                    self.stage = Stage::Over;
                    return Err(TlsError::Broken(error.to_string()));
                }
            }
        }
        match space.filled().len() {
            0 => Ok(Decrypted::Nothing),
            count => Ok(Decrypted::Bytes(count)),
        }
    }

    /// Encrypts bytes; they become outgoing. Fails before the handshake is over.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        let broken = |why: String| Err(TlsError::Broken(why));
        let Stage::Open(stream) = &mut self.stage else { return broken("written to before the handshake".to_owned()) };
        let mut context = Context::from_waker(Waker::noop());
        while !bytes.is_empty() {
            match Pin::new(&mut **stream).poll_write(&mut context, bytes) {
                Poll::Ready(Ok(count)) if count > 0 => bytes = bytes.get(count..).unwrap_or_default(),
                Poll::Ready(Ok(_)) | Poll::Pending => return broken("nothing can be written".to_owned()),
                Poll::Ready(Err(error)) => return broken(error.to_string()),
            }
        }
        Ok(())
    }

    /// Makes the closing message outgoing: an end that no one between the peers can forge.
    pub fn close(&mut self) {
        if let Stage::Open(mut stream) = std::mem::replace(&mut self.stage, Stage::Over) {
            // An error means that the peer is gone, and misses nothing.
            let _ = Pin::new(&mut *stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Returns the number of bytes that are to be sent.
    pub fn outgoing(&self) -> usize {
        let buffers = self.pipe.lock();
        buffers.outgoing.len() - buffers.sent
    }

    /// Has `send` send the outgoing bytes; it returns how many bytes it took.
    ///
    /// # Errors
    /// Errors of `send`.
    pub fn send_with<E>(&mut self, send: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<(), E> {
        let mut buffers = self.pipe.lock();
        let count = send(buffers.outgoing.get(buffers.sent..).unwrap_or_default())?;
        buffers.sent += count;
        if buffers.sent >= buffers.outgoing.len() {
            buffers.outgoing.clear();
            buffers.sent = 0;
        }
        Ok(())
    }

    /// Returns protocol and cipher, for messages; `None` before the handshake is over.
    pub fn agreed(&self) -> Option<String> {
        let Stage::Open(stream) = &self.stage else { return None };
        let connection: &Connection = stream.as_ref().as_ref();
        let version = connection.actual_protocol_version().ok()?;
        Some(format!("{version:?} {}", connection.cipher_suite().ok()?))
    }

    /// Checks that the client has one of the accepted names.
    fn check_name(&self, stream: &Stream) -> Result<(), TlsError> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let connection: &Connection = stream.as_ref();
        let chain = connection.client_cert_chain_bytes().ok().flatten().unwrap_or_default();
        let found = names::of_chain(chain);
        if found.iter().any(|name| self.clients.iter().any(|listed| name.is(listed))) {
            return Ok(());
        }
        let names: Vec<String> = found.iter().map(|name| name.text.escape_debug().to_string()).collect();
        Err(TlsError::NotAllowed(if names.is_empty() { "it has no name".to_owned() } else { names.join(", ") }))
    }

    /// Returns the library's message, or a better one when a key is missing.
    fn words(&self, error: &Error) -> String {
        match error.name() {
            // Without a common key the library tries to go on with certificates.
            "S2N_ERR_NO_VALID_SIGNATURE_SCHEME" if self.by_key => "the client has none of the keys (identities) of this export".to_owned(),
            "S2N_ERR_CIPHER_NOT_SUPPORTED" if self.by_key => "the client offers no key with TLS 1.3".to_owned(),
            "S2N_ERR_BAD_PSK_BINDER" => "the client's key is another one than that of this identity here".to_owned(),
            _ => error.message().to_owned(),
        }
    }
}

/// Transport between the library and this connection. Only one of them uses it at a time, so its lock
/// never waits.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<Buffers>>);

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Buffers {
    incoming: std::collections::VecDeque<u8>,
    /// The peer sends no more.
    ended: bool,
    outgoing: Vec<u8>,
    /// Bytes at the front of `outgoing` that are sent.
    sent: usize,
    /// Waker of a pending read. It is never called, for the loop polls anyway; it is kept because a
    /// transport that returns `Pending` has to keep it.
    waker: Option<Waker>,
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, target: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffers = self.lock();
        if buffers.incoming.is_empty() {
            if buffers.ended {
                return Poll::Ready(Ok(()));
            }
            buffers.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let (front, back) = buffers.incoming.as_slices();
        let from_front = front.len().min(target.remaining());
        target.put_slice(front.get(..from_front).unwrap_or_default());
        let from_back = back.len().min(target.remaining());
        target.put_slice(back.get(..from_back).unwrap_or_default());
        buffers.incoming.drain(..from_front + from_back);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.lock().outgoing.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
