//! Options of commands that use an object store.

use std::env;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

/// Where the store is, and who asks.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreOptions {
    /// Option: endpoint=URL for a store other than AWS [env: AWS_ENDPOINT_URL], region=NAME, insecure_http=on for HTTP without TLS beyond this host
    #[arg(short = 'o', value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// File with the credentials, instead of the environment
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    credentials: Option<PathBuf>,
}

impl StoreOptions {
    /// Returns the options, `NAME=VALUE` each, with those that only the environment of this process has.
    pub fn options(&self) -> Vec<String> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let mut options = self.options.clone();
        let (region, endpoint) = (variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")), variable("AWS_ENDPOINT_URL"));
        for (name, value) in [("endpoint", endpoint), ("region", region)] {
            if !options.iter().any(|option| option.starts_with(&format!("{name}="))) {
                options.extend(value.map(|value| format!("{name}={value}")));
            }
        }
        options
    }

    /// Returns the file with the credentials.
    pub fn credentials_file(&self) -> Option<&Path> {
        self.credentials.as_deref()
    }

    /// True if one is given.
    pub fn are_given(&self) -> bool {
        !self.options.is_empty() || self.credentials.is_some()
    }
}

#[cfg(feature = "bucket")]
mod open {
    use std::env;
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::unix::fs::PermissionsExt;

    use millpond_api::failure::{Failure, Outcome};
    use millpond_bucket::{Bucket, Credentials, CredentialsError, Place};

    use super::StoreOptions;

    /// Largest file of credentials that is read, in bytes.
    const CREDENTIALS: u64 = 64 << 10;

    impl StoreOptions {
        /// Prepares a client of the bucket; sends nothing.
        ///
        /// # Errors
        /// The address or an option is wrong, or there are no credentials.
        pub fn open(&self, url: &str) -> Outcome<Bucket> {
            let place = Place::parse(url, &self.options(), None).map_err(|error| Failure::usage(error.to_string()))?;
            let credentials = self.credentials()?;
            Bucket::new(place, &credentials).map_err(|error| Failure::failed(format!("{url}: {error}")))
        }

        /// Reads the credentials.
        ///
        /// # Errors
        /// There are none, or the file cannot be read.
        fn credentials(&self) -> Outcome<Credentials> {
            let Some(file) = &self.credentials else {
                return Credentials::from_variables(|name| env::var(name).ok())
                    .map_err(|error| Failure::failed(format!("{error} in the environment; set it, or give --credentials FILE")));
            };
            let of = |why: String| Failure::failed(format!("{}: {why}", file.display()));
            let unread = |error: io::Error| of(format!("cannot be read: {error}"));
            let opened = File::open(file).map_err(unread)?;
            if opened.metadata().map_err(unread)?.permissions().mode() & 0o077 != 0 {
                eprintln!("millpond: warning: others on this host may read {}; chmod 600 it", file.display());
            }
            let mut text = String::new();
            opened.take(CREDENTIALS + 1).read_to_string(&mut text).map_err(unread)?;
            if text.len() as u64 > CREDENTIALS {
                return Err(of("is too large for a file of credentials".to_owned()));
            }
            Credentials::from_text(&text)
                .map_err(|error: CredentialsError| of(format!("{error}; give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")))
        }
    }
}
