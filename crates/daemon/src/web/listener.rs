//! The TCP listener of console and API.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millpond_api::failure::{Failure, Outcome};
use s2n_tls_tokio::TlsAcceptor;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::patient::Patient;
use super::serve::{Server, serve_connection};
use crate::Inherited;
use crate::access::Peer;
use crate::exports::reachable;
use crate::tls::{Credentials, TlsFiles};

/// Default port.
const PORT: u16 = 8420;
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time between two looks at the files of the certificate.
const LOOK: Duration = Duration::from_secs(3);
/// Pause after an error of accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// How the console is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebOptions {
    /// Address: `HOST:PORT`, `HOST` or `:PORT`.
    pub address: String,
    /// Directory with `server-cert.pem` and `server-key.pem`; without one, nothing is encrypted.
    pub tls: Option<PathBuf>,
    /// Other machines may connect without encryption.
    pub insecure: bool,
    /// If another program has the port, any free one is used.
    pub any_port: bool,
}

/// The listener.
#[derive(Debug)]
pub struct Web {
    listener: TcpListener,
    bound: SocketAddr,
    tls: Option<Certificate>,
}

/// A certificate that is read again when its files change.
#[derive(Clone, Debug)]
struct Certificate {
    files: TlsFiles,
    current: Arc<Mutex<Credentials>>,
}

fn address(text: &str) -> Outcome<SocketAddr> {
    let wrong = || Failure::usage(format!("'{text}' is not a TCP address; give for example 127.0.0.1:{PORT}"));
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, port.parse().map_err(|_| wrong())?),
        _ => (text.trim_matches(['[', ']']), PORT),
    };
    (host, port).to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(wrong)
}

impl Web {
    /// Listens on an address, or takes the socket that was passed on for it. Reads the certificate.
    ///
    /// # Errors
    /// When other machines could connect without encryption and the options do not permit that; when
    /// the certificate cannot be used; when the address is in use.
    pub fn bind(options: &WebOptions, inherited: &Inherited) -> Outcome<Web> {
        let wanted = address(&options.address)?;
        if !wanted.ip().is_loopback() && options.tls.is_none() && !options.insecure {
            return Err(Failure::failed(format!(
                "the console on {wanted} would be open to other machines without encryption; use 127.0.0.1, --web-tls, or --insecure-listen to accept that"
            )));
        }
        let read = |dir: &PathBuf| -> Outcome<Certificate> {
            let files = TlsFiles::Certificate { cert: dir.join("server-cert.pem"), key: dir.join("server-key.pem"), client_ca: None };
            let current = files.load().map_err(|e| Failure::failed(format!("cannot serve the console with TLS: {e}")))?;
            Ok(Certificate { files, current: Arc::new(Mutex::new(current)) })
        };
        let tls = options.tls.as_ref().map(read).transpose()?;
        let fail = |e: io::Error| Failure::failed(format!("cannot serve the console on {wanted}: {e}; give another --web ADDR"));
        let listener = match inherited.sockets(None, Some(wanted)).tcp {
            Some(socket) => TcpListener::from(socket.try_clone().map_err(fail)?),
            None => match TcpListener::bind(wanted) {
                Err(e) if options.any_port && e.kind() == io::ErrorKind::AddrInUse => {
                    TcpListener::bind(SocketAddr::new(wanted.ip(), 0)).map_err(fail)?
                }
                bound => bound.map_err(fail)?,
            },
        };
        listener.set_nonblocking(true).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        Ok(Web { listener, bound, tls })
    }

    /// Returns the address of the console for browsers.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/", reachable(&self.bound.to_string()))
    }

    /// Serves connections until the daemon stops.
    pub(crate) async fn serve(self, server: Server) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let port = self.bound.port();
        let Some(certificate) = self.tls else {
            let accept = || async {
                let accepted = accept(&listener).await;
                Ok(accepted.map(|(stream, address)| (stream, Peer::Remote { address, port, tls: false })))
            };
            return server.run(accept).await;
        };
        let renewing = tokio::spawn(certificate.clone().renew());
        let ended = encrypted(&listener, port, &certificate, &server).await;
        renewing.abort();
        ended
    }
}

/// Accepts a connection. After an error of the host waits a little and returns none: it lacks
/// descriptors, or the client is gone.
async fn accept(listener: &tokio::net::TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok((stream, address)) => {
            // a setting that fails only makes the connection slower
            let _ = stream.set_nodelay(true);
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            Some((stream, address))
        }
        Err(error) => {
            tracing::debug!(%error, "cannot accept a connection to the console");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

/// Serves encrypted connections. The handshake has its own time limit and holds a place.
async fn encrypted(listener: &tokio::net::TcpListener, port: u16, certificate: &Certificate, server: &Server) -> io::Result<()> {
    let server = server.clone();
    loop {
        let place = Arc::clone(&server.places).acquire_owned().await.map_err(io::Error::other)?;
        let accepted = tokio::select! {
            accepted = accept(listener) => accepted,
            () = server.stopped() => break,
        };
        let Some((stream, address)) = accepted else { continue };
        let (server, credentials) = (server.clone(), certificate.current());
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::new(credentials);
            match timeout(HANDSHAKE, acceptor.accept(Patient::new(stream))).await {
                Ok(Ok(stream)) => serve_connection(&server, stream, Peer::Remote { address, port, tls: true }).await,
                Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake of the console failed"),
                Err(_) => tracing::debug!(%address, "TLS handshake of the console took too long"),
            }
            drop(place);
        });
    }
    server.all_ended().await;
    Ok(())
}

impl Certificate {
    fn current(&self) -> Credentials {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again when they change. Files that do not fit together are not used.
    async fn renew(self) {
        let mut seen = None;
        loop {
            let files = self.files.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let stamps: Vec<_> = files.paths().into_iter().map(crate::renew::stamp).collect();
                let changed = seen.as_ref().is_some_and(|seen| *seen != stamps);
                (changed.then(|| files.load()), stamps)
            });
            let Ok((loaded, stamps)) = looked.await else { return };
            seen = Some(stamps);
            match loaded {
                None => {}
                Some(Ok(credentials)) => {
                    *self.current.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
                    tracing::info!("a renewed certificate of the console is in force for new connections");
                }
                Some(Err(error)) => tracing::warn!("console: {error}; the previous certificate stays in force"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_default_host_and_port() {
        let read = |text: &str| address(text).map(|address| address.to_string()).ok();
        assert_eq!(read("127.0.0.1:8420").as_deref(), Some("127.0.0.1:8420"));
        assert_eq!(read(":9000").as_deref(), Some("127.0.0.1:9000"));
        assert_eq!(read("127.0.0.1").as_deref(), Some("127.0.0.1:8420"));
        assert_eq!(read("[::1]:8420").as_deref(), Some("[::1]:8420"));
        assert_eq!(read("::1").as_deref(), Some("[::1]:8420"));
        assert_eq!(read("127.0.0.1:x"), None);
        assert_eq!(read("no such host"), None);
    }

    #[test]
    fn other_machines_need_encryption_or_a_word() {
        let open = WebOptions { address: "0.0.0.0:0".to_owned(), ..WebOptions::default() };
        let refusal = Web::bind(&open, &Inherited::default()).expect_err("open to other machines").to_string();
        assert!(refusal.contains("--web-tls") && refusal.contains("--insecure-listen"), "{refusal}");
        let agreed = WebOptions { insecure: true, ..open };
        assert!(Web::bind(&agreed, &Inherited::default()).expect("agreed").url().starts_with("http://"));
        let dir = tempfile::tempdir().expect("tempdir");
        let tls = WebOptions { address: "127.0.0.1:0".to_owned(), tls: Some(dir.path().to_owned()), ..WebOptions::default() };
        let refusal = Web::bind(&tls, &Inherited::default()).expect_err("no certificate").to_string();
        assert!(refusal.contains("server-cert.pem"), "{refusal}");
    }
}
