//! The client of the control API: HTTP/1.1 and JSON over the daemon's unix socket.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::failure::{Failure, Outcome};
use crate::{ErrorBody, Status};

/// Interval between attempts while the daemon does not answer.
const RETRY: Duration = Duration::from_millis(50);

/// Client of one daemon. Every request opens its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Makes a client of the daemon on `socket`; does not connect.
    pub fn new(socket: PathBuf) -> Client {
        Client { socket }
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// The daemon is unreachable, or its error.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.call::<(), T>(Method::GET, path, None).await
    }

    /// Sends a POST request.
    ///
    /// # Errors
    /// The daemon is unreachable, or its error.
    pub async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Outcome<T> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Sends a PATCH request.
    ///
    /// # Errors
    /// The daemon is unreachable, or its error.
    pub async fn patch<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Outcome<T> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// The daemon is unreachable, or its error.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.call::<(), T>(Method::DELETE, path, None).await
    }

    /// Queries the status until the daemon is ready or `patience` is over; returns the last status.
    ///
    /// # Errors
    /// The daemon is unreachable, or its error.
    pub async fn wait(&self, patience: Duration) -> Outcome<Status> {
        let end = Instant::now() + patience;
        loop {
            let answer = tokio::time::timeout_at(end, self.get::<Status>("/v1/status")).await;
            match answer {
                Ok(Ok(status)) if !status.ready && Instant::now() + RETRY < end => sleep(RETRY).await,
                Ok(Err(failure)) if failure.code == crate::failure::Code::Unreachable && Instant::now() + RETRY < end => sleep(RETRY).await,
                Ok(answer) => return answer,
                Err(_) => {
                    return Err(Failure::unreachable(format!(
                        "the daemon on {} did not answer within {} s; see its messages, or wait longer",
                        self.socket.display(),
                        patience.as_secs()
                    )));
                }
            }
        }
    }

    /// Calls `each` for every line of a streamed response, until the daemon ends the stream
    /// (returns true) or `each` returns false (returns false).
    ///
    /// # Errors
    /// The daemon is unreachable, its error, or the error of `each`.
    pub async fn lines(&self, path: &str, mut each: impl FnMut(&str) -> Outcome<bool>) -> Outcome<bool> {
        let (response, driver) = self.send::<()>(Method::GET, path, None).await?;
        let (status, mut body) = (response.status(), response.into_body());
        if !status.is_success() {
            let body = body.collect().await.map_err(|e| self.lost(&e))?.to_bytes();
            return Err(refusal(status.as_u16(), &body));
        }
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| self.lost(&e))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                if !each(String::from_utf8_lossy(&line).trim_end())? {
                    return Ok(false);
                }
            }
        }
        driver.abort();
        Ok(true)
    }

    fn lost(&self, error: &hyper::Error) -> Failure {
        Failure::unreachable(format!("the daemon on {} went away: {error}; see its messages", self.socket.display()))
    }

    async fn call<B: Serialize, T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&B>) -> Outcome<T> {
        let (response, driver) = self.send(method, path, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|e| self.lost(&e))?.to_bytes();
        driver.abort();
        if !status.is_success() {
            return Err(refusal(status.as_u16(), &body));
        }
        // An empty body is parsed as `null`, which is `()`.
        let text: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(text)
            .map_err(|e| Failure::failed(format!("the daemon's answer is not understood: {e}; use the millpond that belongs to it")))
    }

    /// Sends a request over its own connection. The returned task drives the connection.
    async fn send<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Outcome<(Response<Incoming>, JoinHandle<hyper::Result<()>>)> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| {
            if e.kind() == std::io::ErrorKind::PermissionDenied {
                let owner = std::fs::metadata(&self.socket).map_or_else(|_| "its owner".to_owned(), |meta| format!("user {}", meta.uid()));
                return Failure::unreachable(format!(
                    "you may not open {}, the control socket of the daemon; use sudo, or run this as {owner}",
                    self.socket.display()
                ));
            }
            Failure::unreachable(format!(
                "no daemon answers on {}: {e}; start one with 'millpond serve', or name its socket with --socket",
                self.socket.display()
            ))
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.lost(&e))?;
        let driver = tokio::spawn(connection);
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| Failure::failed(format!("cannot encode the request: {e}")))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "millpond")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|e| Failure::failed(format!("cannot ask for {path}: {e}")))?;
        let response = sender.send_request(request).await.map_err(|e| self.lost(&e))?;
        Ok((response, driver))
    }
}

fn refusal(status: u16, body: &[u8]) -> Failure {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error }) => error.into(),
        Err(_) => Failure::failed(format!("the daemon answered {status}: {}", String::from_utf8_lossy(body).trim())),
    }
}

/// Percent-encodes a value for a query string.
pub fn quoted(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/".contains(&byte);
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
