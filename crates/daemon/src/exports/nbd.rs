//! Details of NBD exports: addresses, encryption, limits.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use millpond_api::{ApiError, CreateTls, ExportTls, NbdLimits, TlsCredentials, TlsMode};

use crate::shard::{ClientLimits, TlsOffer};
use crate::state::TlsRecord;
use crate::tls::TlsFiles;

/// The port that IANA gave NBD.
const NBD_PORT: u16 = 10809;
/// Most clients that an export may allow: as many as a pool does.
const MAX_CLIENTS: u32 = 512;
/// Most requests in flight: the queues of several large guests' devices.
const MAX_REQUESTS: u16 = 4096;
/// Longest handshake in seconds.
const MAX_HANDSHAKE: u32 = 600;

/// Reason why an export cannot have a TCP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// It is not an address.
    Unclear(String),
    /// Other machines can reach it, and the user has not agreed to that.
    Open(SocketAddr),
}

impl AddressError {
    /// Returns the reason; `instead` is the advice for an address that other machines can reach.
    pub fn advise(&self, instead: &str) -> String {
        match self {
            AddressError::Unclear(text) => {
                format!("'{text}' is not a TCP address; give for example 127.0.0.1:{NBD_PORT} or [::1]:{NBD_PORT}")
            }
            AddressError::Open(address) => {
                format!("{address} is open to other machines, and without TLS nothing authenticates or encrypts them; {instead}")
            }
        }
    }
}

impl From<AddressError> for ApiError {
    fn from(error: AddressError) -> ApiError {
        let message = error.advise("use 127.0.0.1, --tls require, or --insecure-listen to accept that");
        match error {
            AddressError::Unclear(_) => ApiError::usage(message),
            AddressError::Open(_) => ApiError::invalid(message),
        }
    }
}

/// Parses `HOST:PORT`, `HOST`, `:PORT` or `PORT`; the host is 127.0.0.1 and the port 10809 where
/// missing. With `open`, other machines may be able to reach it.
///
/// # Errors
/// When the text is not an address, or the address is not permitted.
pub fn tcp_address(text: &str, open: bool) -> Result<SocketAddr, AddressError> {
    let wrong = || AddressError::Unclear(text.to_owned());
    let address = if let Ok(address) = text.parse::<SocketAddr>() {
        address
    } else if let Ok(host) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        SocketAddr::new(host, NBD_PORT)
    } else if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        SocketAddr::from(([127, 0, 0, 1], port))
    } else {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse::<u16>().map_err(|_| wrong())?),
            None => (text, NBD_PORT),
        };
        (host, port).to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(wrong)?
    };
    if address.ip().is_loopback() || open { Ok(address) } else { Err(AddressError::Open(address)) }
}

/// Checks the encryption that a request asks for, and returns the record to remember. The files are
/// read once, so that errors in them are reported now.
pub(super) fn tls_record(request: &CreateTls) -> Result<TlsRecord, ApiError> {
    let CreateTls { mode, dir, cert, key, ca, verify_peer, psk, clients } = request;
    let unclear = || {
        ApiError::usage(
            "TLS needs one of: a directory (--tls-dir), a certificate with its key (--tls-cert, --tls-key), a file of keys (--tls-psk)",
        )
    };
    for path in [dir, cert, key, ca, psk].into_iter().flatten() {
        if !path.starts_with('/') {
            return Err(ApiError::usage(format!("'{path}' is not an absolute path; give one")));
        }
    }
    if (cert.is_some() && ca.is_some() != *verify_peer) || (cert.is_none() && ca.is_some()) || (psk.is_some() && *verify_peer) {
        return Err(ApiError::usage(
            "clients are verified with both: the authority of their certificates (--tls-ca) and --tls-verify-peer",
        ));
    }
    if !clients.is_empty() && !verify_peer {
        return Err(ApiError::usage("names of clients (--tls-clients) stand in certificates that are verified; add --tls-verify-peer"));
    }
    if clients.iter().any(|name| name.trim().is_empty()) {
        return Err(ApiError::usage("a name of a client is empty; give --tls-clients NAME,NAME"));
    }
    let files = match (dir, cert, key, psk) {
        (Some(dir), None, None, None) => {
            TlsFiles::of_directory(dir.as_ref(), *verify_peer).map_err(|e| ApiError::invalid(e.to_string()))?
        }
        (None, Some(cert), Some(key), None) => {
            TlsFiles::Certificate { cert: cert.into(), key: key.into(), client_ca: ca.as_ref().map(PathBuf::from) }
        }
        (None, None, None, Some(keys)) => TlsFiles::Psk { keys: keys.into() },
        _ => return Err(unclear()),
    };
    let credentials = files.load().map_err(|e| ApiError::invalid(e.to_string()))?;
    let identity = credentials.identity().map(str::to_owned);
    Ok(TlsRecord { mode: *mode, files, identity, clients: clients.clone() })
}

/// Returns the encryption that a shard offers; reads the files anew.
pub(super) fn tls_offer(record: &TlsRecord) -> Result<TlsOffer, ApiError> {
    let credentials = record.files.load().map_err(|e| ApiError::invalid(format!("TLS: {e}")))?.for_clients(&record.clients);
    Ok(TlsOffer { required: record.mode == TlsMode::Require, credentials })
}

/// Returns the encryption of an export as the API shows it.
pub(super) fn tls_view(record: &TlsRecord) -> ExportTls {
    let (credentials, verify_peer) = match &record.files {
        TlsFiles::Certificate { client_ca, .. } => (TlsCredentials::Certificate, client_ca.is_some()),
        TlsFiles::Psk { .. } => (TlsCredentials::Psk, false),
    };
    ExportTls {
        mode: record.mode.into(),
        credentials,
        verify_peer,
        files: record.files.paths().into_iter().map(|path| path.display().to_string()).collect(),
        identity: record.identity.clone(),
        clients: record.clients.clone(),
    }
}

/// Refuses limits that let no client work or cannot be kept.
pub fn check_limits(limits: &NbdLimits) -> Result<(), ApiError> {
    let check = |what: &str, value: Option<u32>, most: u32| match value {
        Some(value) if !(1..=most).contains(&value) => Err(ApiError::usage(format!("{what} is 1 to {most}, not {value}"))),
        _ => Ok(()),
    };
    check("the number of clients", limits.max_clients, MAX_CLIENTS)?;
    check("the number of requests in flight", limits.max_requests.map(u32::from), u32::from(MAX_REQUESTS))?;
    check("the time of a handshake in seconds", limits.handshake_seconds, MAX_HANDSHAKE)
}

/// Returns the limits in force: those of the export, else those of the configuration, else the
/// defaults.
pub(super) fn limits_in_force(own: &NbdLimits, general: &NbdLimits) -> ClientLimits {
    let default = ClientLimits::default();
    let handshake = own.handshake_seconds.or(general.handshake_seconds);
    ClientLimits {
        clients: own.max_clients.or(general.max_clients).unwrap_or(default.clients),
        requests: own.max_requests.or(general.max_requests).unwrap_or(default.requests),
        handshake: handshake.map_or(default.handshake, |seconds| Duration::from_secs(seconds.into())),
    }
}

/// Returns URIs as libnbd's tools take them; `nbds` where clients have to encrypt.
pub(super) fn uris(unix: Option<&str>, tcp: Option<&str>, tls: Option<&TlsRecord>) -> Vec<String> {
    let tls = tls.filter(|tls| tls.mode == TlsMode::Require);
    let scheme = if tls.is_some() { "nbds" } else { "nbd" };
    let mut user = String::new();
    let mut parameter = String::new();
    if let Some(TlsRecord { files: TlsFiles::Psk { keys }, identity, .. }) = tls {
        user = identity.as_ref().map(|identity| format!("{}@", encoded(identity, b"._-~"))).unwrap_or_default();
        parameter = format!("tls-psk-file={}", encoded_path(&keys.display().to_string()));
    }
    let of_unix = unix.map(|path| {
        let parameter = if parameter.is_empty() { String::new() } else { format!("&{parameter}") };
        format!("{scheme}+unix://{user}/?socket={}{parameter}", encoded_path(path))
    });
    let of_tcp = tcp.map(|tcp| {
        let parameter = if parameter.is_empty() { String::new() } else { format!("/?{parameter}") };
        format!("{scheme}://{user}{}{parameter}", reachable(tcp))
    });
    of_unix.into_iter().chain(of_tcp).collect()
}

/// Returns an address that clients can use: the name of this host in place of an unspecified
/// address.
pub fn reachable(tcp: &str) -> String {
    match tcp.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!("{}:{}", host_name(), address.port()),
        _ => tcp.to_owned(),
    }
}

/// Returns the name of this host.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// Returns a path as it stands in the query of a URI.
pub(super) fn encoded_path(path: &str) -> String {
    // some readers take '+' for a blank; ',' ends the name in an option of QEMU, '=' that of a
    // parameter
    encoded(path, b"/._-~:@")
}

/// Encodes a text for a URI: letters, digits and the bytes of `plain` as they are, the rest as %XX.
fn encoded(text: &str, plain: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || plain.contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
