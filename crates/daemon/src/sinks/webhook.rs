//! A webhook: the alert as JSON in a POST, over HTTP/1.1, with or without TLS.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::future::Either;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use millpond_api::Alert;
use s2n_tls::config::Config;
use s2n_tls::security::Policy;
use s2n_tls_tokio::TlsConnector;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Versions and ciphers, as for exports with TLS: TLS 1.2 and 1.3 with forward secrecy.
const POLICY: &str = "default_tls13";
/// Most bytes of a file with a token.
const TOKEN: u64 = 8192;

/// Address of a webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    uri: Uri,
    host: String,
    port: u16,
    tls: bool,
    /// Authorities in PEM that are trusted beside those of the system.
    ca: Option<PathBuf>,
    /// File with a token, read for each alert.
    token: Option<PathBuf>,
}

impl Webhook {
    /// Checks an address: `http://HOST[:PORT]/PATH` or `https://...`.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn new(url: &str, ca: Option<PathBuf>, token: Option<PathBuf>) -> Result<Webhook, String> {
        let uri: Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("give a URL that begins with https:// or http://".to_owned()),
        };
        let authority = uri.authority().ok_or("the URL names no host")?;
        if authority.as_str().contains('@') {
            return Err("no user or password in the URL: everyone who may read the configuration reads it; give token_file".to_owned());
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        if token.is_some() && !tls && !is_loopback(&host) {
            return Err("a token in plain text would be readable on the way; give a URL with https://".to_owned());
        }
        Ok(Webhook { host, port, tls, ca, token, uri })
    }

    /// Posts an alert. An answer other than 2xx is a failure; redirections are not followed.
    ///
    /// # Errors
    /// The reason, without path and query of the URL: these may be secret.
    pub fn post(&self, alert: &Alert, timeout: Duration) -> Result<(), String> {
        let body = serde_json::to_vec(alert).map_err(|error| format!("no JSON: {error}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let ended = runtime.block_on(async { tokio::time::timeout(timeout, self.send(body)).await });
        // a name server that does not answer holds a thread
        runtime.shutdown_background();
        let ended = ended.unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs())));
        ended.map_err(|why| format!("{}:{}: {why}", self.host, self.port))
    }

    async fn send(&self, body: Vec<u8>) -> Result<(), String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed("cannot connect"))?;
        let stream = match self.tls {
            false => Either::Right(stream),
            true => {
                let connector = TlsConnector::new(self.config()?);
                Either::Left(connector.connect(&self.host, stream).await.map_err(failed("TLS"))?)
            }
        };
        match stream {
            Either::Left(stream) => self.talk(stream, body).await,
            Either::Right(stream) => self.talk(stream, body).await,
        }
    }

    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, body: Vec<u8>) -> Result<(), String> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await.map_err(failed("HTTP"))?;
        tokio::spawn(connection);
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, authority)
            .header(USER_AGENT, concat!("millpond/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .header(CONTENT_LENGTH, body.len());
        if let Some(path) = &self.token {
            request = request.header(AUTHORIZATION, bearer(path)?);
        }
        let request = request.body(Body::from(Bytes::from(body))).map_err(failed("the request"))?;
        let answer = sender.send_request(request).await.map_err(failed("HTTP"))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("the server answered {status}")),
        }
    }

    fn config(&self) -> Result<Config, String> {
        let mut builder = s2n_tls::config::Builder::new();
        let policy = Policy::from_version(POLICY).map_err(failed("TLS"))?;
        builder.set_security_policy(&policy).map_err(failed("TLS"))?;
        if let Some(path) = &self.ca {
            let pem = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            builder.trust_pem(&pem).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        builder.build().map_err(failed("TLS"))
    }
}

/// Returns the value of a header with the token in a file.
fn bearer(path: &Path) -> Result<HeaderValue, String> {
    let fail = |why: &dyn Display| format!("token_file {}: {why}", path.display());
    let length = fs::metadata(path).map_err(|error| fail(&error))?.len();
    if length > TOKEN {
        return Err(fail(&format!("{length} bytes are no token")));
    }
    let token = fs::read_to_string(path).map_err(|error| fail(&error))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|error| fail(&error))?;
    value.set_sensitive(true);
    Ok(value)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn failed<E: Display>(step: &str) -> impl Fn(E) -> String {
    move |error| format!("{step}: {error}")
}
