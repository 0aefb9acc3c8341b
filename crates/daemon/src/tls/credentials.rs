//! Credentials of a server, and how it authenticates clients: a certificate, or keys that both
//! sides have.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use s2n_tls::callbacks::VerifyHostNameCallback;
use s2n_tls::config::Config;
use s2n_tls::connection::{Builder, Connection};
use s2n_tls::enums::{ClientAuthType, Mode, PskHmac};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use serde::{Deserialize, Serialize};

use super::keys::{self, KeysError, PskLine};

/// The library's name of a set of versions, ciphers and curves; sets with a number or name like
/// this do not change.
const POLICY: &str = "CloudFront-TLS-1-2-2021-no-sha1";
/// Files of a directory as QEMU and libnbd lay it out.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";
const KEYS: &str = "keys.psk";

/// Files of the credentials; paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsFiles {
    /// A certificate.
    Certificate {
        /// PEM: the server's certificate, and the certificates between it and its authority.
        cert: PathBuf,
        /// PEM: the certificate's key.
        key: PathBuf,
        /// PEM: authority that signs the certificates of clients; without one, clients need no
        /// certificate.
        #[serde(default)]
        client_ca: Option<PathBuf>,
    },
    /// A file of pre-shared keys, `identity:hexkey`.
    Psk {
        /// Path of the file.
        keys: PathBuf,
    },
}

/// Reason why credentials cannot be used. Display is one line.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// A file of keys is wrong.
    #[error("{}, line {line}: {why}", path.display())]
    Keys {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1; 0 for the file as a whole.
        line: usize,
        /// Problem.
        why: &'static str,
    },
    /// The library refuses the content of a file.
    #[error("{}: {source}; is it PEM, and does it belong to the others?", path.display())]
    Refused {
        /// Path of the file.
        path: PathBuf,
        /// Error of the library.
        source: Box<Error>,
    },
    /// A directory does not show which credentials to use.
    #[error("{} holds {}", dir.display(), if *both { "server-cert.pem and keys.psk; name the files of one of them" } else { "neither server-cert.pem nor keys.psk" })]
    Directory {
        /// Path of the directory.
        dir: PathBuf,
        /// True when it has both kinds, false when it has none.
        both: bool,
    },
}

impl TlsFiles {
    /// Returns the files of a directory: `server-cert.pem` and `server-key.pem`, with `verify_peer`
    /// also `ca-cert.pem`, or else `keys.psk`.
    ///
    /// # Errors
    /// When both kinds are there, or none.
    pub fn of_directory(dir: &Path, verify_peer: bool) -> Result<TlsFiles, CredentialsError> {
        match (dir.join(CERTIFICATE).exists(), dir.join(KEYS).exists()) {
            (true, false) => Ok(TlsFiles::Certificate {
                cert: dir.join(CERTIFICATE),
                key: dir.join(KEY),
                client_ca: verify_peer.then(|| dir.join(AUTHORITY)),
            }),
            (false, true) => Ok(TlsFiles::Psk { keys: dir.join(KEYS) }),
            (both, _) => Err(CredentialsError::Directory { dir: dir.to_owned(), both }),
        }
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            TlsFiles::Certificate { cert, key, client_ca } => {
                [Some(cert), Some(key), client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect()
            }
            TlsFiles::Psk { keys } => vec![keys],
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// The first error that is found.
    pub fn load(&self) -> Result<Credentials, CredentialsError> {
        match self {
            TlsFiles::Certificate { cert, key, client_ca } => certificate(cert, key, client_ca.as_deref()),
            TlsFiles::Psk { keys } => pre_shared(keys),
        }
    }
}

/// Credentials in memory; cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    inner: Arc<Inner>,
    /// Names of the accepted clients; empty for every authenticated client.
    clients: Arc<[String]>,
}

struct Inner {
    config: Config,
    psks: Vec<Psk>,
    /// Identity of the first key.
    identity: Option<String>,
}

impl Credentials {
    fn new(config: Config, psks: Vec<Psk>, identity: Option<String>) -> Credentials {
        Credentials { inner: Arc::new(Inner { config, psks, identity }), clients: Arc::new([]) }
    }

    /// Restricts the credentials to clients whose certificate has one of these names; without
    /// names, every client of the authority is accepted.
    #[must_use]
    pub fn for_clients(self, names: &[String]) -> Credentials {
        Credentials { clients: names.into(), ..self }
    }

    /// Returns the names of the accepted clients; empty for every authenticated client.
    pub(super) fn clients(&self) -> &Arc<[String]> {
        &self.clients
    }

    /// True when clients authenticate by keys, and there is no certificate.
    pub fn is_psk(&self) -> bool {
        !self.inner.psks.is_empty()
    }

    /// Returns the identity of the first key, for addresses that users copy.
    pub fn identity(&self) -> Option<&str> {
        self.inner.identity.as_deref()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_psk() { "Credentials(psk)" } else { "Credentials(certificate)" })
    }
}

impl Builder for Credentials {
    type Output = Connection;

    fn build_connection(&self, mode: Mode) -> Result<Connection, Error> {
        let mut connection = Connection::new(mode);
        connection.set_config(self.inner.config.clone())?;
        connection.prefer_throughput()?;
        self.inner.psks.iter().try_for_each(|psk| connection.append_psk(psk))?;
        Ok(connection)
    }
}

/// Accepts any name: the library checks that the authority of this export's clients signed the
/// certificate, and the server checks the name afterwards.
struct AnyName;

impl VerifyHostNameCallback for AnyName {
    fn verify_host_name(&self, _: &str) -> bool {
        true
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    fs::read(path).map_err(|source| CredentialsError::Read { path: path.to_owned(), source })
}

fn refused(path: &Path) -> impl Fn(Error) -> CredentialsError {
    let path = path.to_owned();
    move |source| CredentialsError::Refused { path: path.clone(), source: Box::new(source) }
}

/// Only TLS 1.3 and 1.2 with authenticated encryption (AES-GCM, ChaCha20-Poly1305) and forward
/// secrecy. Only authorities in the given files are trusted.
fn builder() -> Result<s2n_tls::config::Builder, Error> {
    let mut builder = s2n_tls::config::Builder::new();
    builder.set_security_policy(&Policy::from_version(POLICY)?)?;
    builder.with_system_certs(false)?;
    // The library would block the thread after an error, against attackers who measure how long a
    // refusal takes. That protects ciphers with CBC, which are not in the policy, and the thread
    // serves other clients.
    builder.set_max_blinding_delay(0)?;
    Ok(builder)
}

fn certificate(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Credentials, CredentialsError> {
    let mut builder = builder().map_err(refused(cert))?;
    builder.load_pem(&read(cert)?, &read(key)?).map_err(refused(cert))?;
    if let Some(path) = client_ca {
        let ca = read(path)?;
        let trust = |builder: &mut s2n_tls::config::Builder| {
            builder.trust_pem(&ca)?;
            builder.set_client_auth_type(ClientAuthType::Required)?;
            builder.set_verify_host_callback(AnyName)?;
            Ok(())
        };
        trust(&mut builder).map_err(refused(path))?;
    }
    let config = builder.build().map_err(refused(cert))?;
    Ok(Credentials::new(config, Vec::new(), None))
}

fn pre_shared(path: &Path) -> Result<Credentials, CredentialsError> {
    let text = String::from_utf8(read(path)?).map_err(|_| CredentialsError::Keys {
        path: path.to_owned(),
        line: 0,
        why: "it is not text of lines identity:hexkey",
    })?;
    let lines = keys::parse(&text).map_err(|KeysError { line, why }| CredentialsError::Keys { path: path.to_owned(), line, why })?;
    let psks: Result<Vec<Psk>, Error> = lines.iter().map(external).collect();
    let psks = psks.map_err(refused(path))?;
    let config = builder().and_then(|builder| builder.build()).map_err(refused(path))?;
    let identity = lines.into_iter().next().map(|line| line.identity);
    Ok(Credentials::new(config, psks, identity))
}

/// With SHA-256, which GnuTLS uses for keys from files.
fn external(line: &PskLine) -> Result<Psk, Error> {
    let mut builder = Psk::builder()?;
    builder.set_identity(line.identity.as_bytes())?;
    builder.set_secret(&line.key)?;
    builder.set_hmac(PskHmac::SHA256)?;
    builder.build()
}
