//! TLS options of `export nbd`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{CreateTls, TlsMode};

use super::exports::path_text;

/// Whether clients must use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// STARTTLS is refused
    Off,
    /// Clients may use TLS
    Allow,
    /// Clients without TLS are refused
    Require,
}

/// TLS
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsWords {
    /// Whether clients use TLS [default: require if credentials are given, otherwise off]
    #[arg(long, value_enum, value_name = "WHEN")]
    tls: Option<Mode>,
    /// Directory with server-cert.pem, server-key.pem and ca-cert.pem, or with keys.psk, as for QEMU and libnbd
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca", "tls_psk"])]
    tls_dir: Option<PathBuf>,
    /// PEM file of the server's certificate
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls_psk")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the server's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file of the certificate authority of clients
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_verify_peer"])]
    tls_ca: Option<PathBuf>,
    /// Refuse clients without a certificate of that authority
    #[arg(long)]
    tls_verify_peer: bool,
    /// Serve only these clients, by a name in their certificate: subject's common name, DNS, mail, URI or address
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "tls_verify_peer")]
    tls_clients: Vec<String>,
    /// File of pre-shared keys, one line IDENTITY:HEXKEY per key, as psktool writes them; TLS 1.3
    #[arg(long, value_name = "FILE")]
    tls_psk: Option<PathBuf>,
}

impl TlsWords {
    /// Builds the TLS part of the API request; `None` without TLS.
    ///
    /// # Errors
    /// Wrong usage, if the options contradict each other.
    pub fn request(&self) -> Outcome<Option<CreateTls>> {
        let credentials = self.tls_dir.is_some() || self.tls_cert.is_some() || self.tls_psk.is_some();
        let mode = match (self.tls, credentials) {
            (None | Some(Mode::Off), false) if self.tls_verify_peer => {
                return Err(Failure::usage(
                    "--tls-verify-peer needs credentials; give --tls-dir, or --tls-cert with --tls-key and --tls-ca",
                ));
            }
            (None | Some(Mode::Off), false) => return Ok(None),
            (Some(Mode::Off), true) => return Err(Failure::usage("--tls off contradicts the credentials given; omit one of them")),
            (Some(Mode::Allow | Mode::Require), false) => {
                return Err(Failure::usage("TLS needs credentials; give --tls-dir, or --tls-cert with --tls-key, or --tls-psk"));
            }
            (Some(Mode::Allow), true) => TlsMode::Allow,
            (None | Some(Mode::Require), true) => TlsMode::Require,
        };
        let text = |path: &Option<PathBuf>| path.as_deref().map(|path: &Path| path_text(path)).transpose();
        Ok(Some(CreateTls {
            mode,
            dir: text(&self.tls_dir)?,
            cert: text(&self.tls_cert)?,
            key: text(&self.tls_key)?,
            ca: text(&self.tls_ca)?,
            verify_peer: self.tls_verify_peer,
            psk: text(&self.tls_psk)?,
            clients: self.tls_clients.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    //! Combinations of options.
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        tls: TlsWords,
    }

    fn request(words: &str) -> Option<Result<Option<CreateTls>, Failure>> {
        let words = Words::try_parse_from(std::iter::once("x").chain(words.split_whitespace())).ok()?;
        Some(words.tls.request())
    }

    #[test]
    fn credentials_mean_require_and_off_means_off() {
        assert_eq!(request(""), Some(Ok(None)));
        assert_eq!(request("--tls off"), Some(Ok(None)));
        let mode = |words: &str| request(words).and_then(Result::ok).flatten().map(|tls| tls.mode);
        assert_eq!(mode("--tls-psk /k"), Some(TlsMode::Require));
        assert_eq!(mode("--tls allow --tls-dir /d --tls-verify-peer"), Some(TlsMode::Allow));
        assert_eq!(mode("--tls require --tls-cert /c --tls-key /k --tls-ca /a --tls-verify-peer"), Some(TlsMode::Require));
    }

    #[test]
    fn contradictions_are_refused() {
        for words in ["--tls require", "--tls allow", "--tls off --tls-psk /k", "--tls-verify-peer"] {
            assert!(matches!(request(words), Some(Err(_))), "{words}");
        }
        let clients = request("--tls-dir /d --tls-verify-peer --tls-clients a,b --tls-clients c")
            .and_then(Result::ok)
            .flatten()
            .map(|tls| tls.clients);
        assert_eq!(clients, Some(["a", "b", "c"].map(str::to_owned).to_vec()));
        assert_eq!(request("--tls-dir /d --tls-clients a"), None);
        for words in ["--tls-cert /c", "--tls-key /k", "--tls-dir /d --tls-psk /k", "--tls-cert /c --tls-key /k --tls-ca /a", "--tls maybe"]
        {
            assert_eq!(request(words), None, "{words}");
        }
    }
}
