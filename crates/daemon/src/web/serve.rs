//! HTTP/1.1 on accepted connections: of the control socket, and over TCP.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use super::patient::Patient;
use crate::access::Peer;

/// How long a client may take for the head of a request, and how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Most bytes of the head of a request.
const HEAD_BYTES: usize = 32 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// Most connections of a listener; more wait to be accepted.
const CONNECTIONS: usize = 256;

/// State that all connections of a listener share.
#[derive(Clone)]
pub struct Server {
    router: Router,
    stopping: watch::Receiver<bool>,
    /// Places for connections.
    pub(super) places: Arc<Semaphore>,
}

impl Server {
    /// Serves a router until `stopping` is true.
    pub fn new(router: Router, stopping: watch::Receiver<bool>) -> Server {
        Server { router, stopping, places: Arc::new(Semaphore::new(CONNECTIONS)) }
    }

    /// Returns a server of the same router with places of its own: connections of another listener do
    /// not take them.
    pub fn of_its_own(&self) -> Server {
        Server { places: Arc::new(Semaphore::new(CONNECTIONS)), ..self.clone() }
    }

    /// Waits for the end of the daemon.
    pub(super) async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // an error means that the daemon has ended
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// Accepts connections until the daemon stops, then waits for the requests in progress. `accept`
    /// returns a connection and its peer.
    pub async fn run<S, F>(self, accept: impl Fn() -> F) -> std::io::Result<()>
    where
        F: Future<Output = std::io::Result<Option<(S, Peer)>>>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await.map_err(std::io::Error::other)?;
            let accepted = tokio::select! {
                accepted = accept() => accepted?,
                () = self.stopped() => break,
            };
            let Some((stream, peer)) = accepted else { continue };
            let server = self.clone();
            tokio::spawn(async move {
                serve_connection(&server, stream, peer).await;
                drop(place);
            });
        }
        self.all_ended().await;
        Ok(())
    }

    /// Waits until all connections have ended.
    pub(super) async fn all_ended(&self) {
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await;
    }
}

/// Serves one connection to its end. When the daemon stops, the request in progress is the last one.
pub(super) async fn serve_connection<S>(server: &Server, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = server.router.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        // a router is always ready
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    let connection = http.serve_connection(TokioIo::new(Patient::new(stream)), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = server.stopped() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the API ended");
    }
}
