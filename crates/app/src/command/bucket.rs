//! `bucket`: looks at object stores, without a daemon.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use millpond_api::failure::{Failure, Outcome};
use millpond_bucket::{BucketError, Credentials, CredentialsError, ErrorKind, Place, Probe, Verdict};
use millpond_daemon::Signals;
use millpond_device::entropy;
use serde::Serialize;

use super::columns::BUCKET_CHECK;
use crate::output::{Cell, Format, Listing, print, write_out};

/// Largest file of credentials that is read, in bytes.
const CREDENTIALS: u64 = 64 << 10;

/// Object stores
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  millpond bucket probe s3://backups/pond -o endpoint=https://store.example")]
pub enum Bucket {
    Probe(ProbeVerb),
}

/// Find out whether an object store does what a pool needs of it, and how fast it answers
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond bucket probe s3://backups/pond
  millpond bucket probe s3://pond -o endpoint=http://127.0.0.1:9000 --credentials /etc/millpond/store.key --format json

Some 1,200 objects with 6 MiB in all are written below the prefix, and deleted at the end.
Exit code 0: pools can use the store, 1: they cannot, and the message names what the store lacks; or the store does not answer.
Credentials are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of the environment, or a file with these lines; a file of AWS's tools will do.")]
pub struct ProbeVerb {
    /// Bucket and prefix: s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    url: String,
    /// Option: endpoint=URL for a store other than AWS, region=NAME, insecure_http=on for HTTP without TLS beyond this host
    #[arg(short = 'o', value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// File with the credentials, instead of the environment
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    credentials: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Columns to show, in this order
    #[arg(long, value_name = "COL,COL", value_delimiter = ',')]
    columns: Vec<String>,
    /// No header line; columns are separated by one tab
    #[arg(short = 'H', long)]
    no_header: bool,
    /// Exact numbers
    #[arg(short = 'p', long)]
    parsable: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    url: String,
    endpoint: Option<&'a str>,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

impl Bucket {
    pub async fn run(self) -> Outcome {
        match self {
            Bucket::Probe(probe) => probe.run().await,
        }
    }
}

impl ProbeVerb {
    async fn run(self) -> Outcome {
        let region = ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| env::var(name).ok());
        let place = Place::parse(&self.url, &self.options, region.as_deref()).map_err(|error| Failure::usage(error.to_string()))?;
        let credentials = self.credentials()?;
        let bucket =
            millpond_bucket::Bucket::new(place, &credentials).map_err(|error| Failure::failed(format!("{}: {error}", self.url)))?;
        let id = entropy().map_err(|error| Failure::failed(format!("the system gives no random numbers: {error}")))?;
        let name = millpond_daemon::host_name();
        let mut signals = Signals::catch()?;
        let probe = Probe::new(&bucket, id, [0; 16], &name);
        let verdict = tokio::select! {
            verdict = probe.run() => verdict,
            () = signals.next() => {
                let left = probe.clean_up().await.map(|reason| format!("; objects of the probe may be left: {reason}"));
                return Err(Failure::failed(format!("{}: interrupted{}", bucket.place(), left.unwrap_or_default())));
            }
        };
        let error = match verdict {
            Ok(verdict) => return self.end(bucket.place(), verdict),
            Err(error) => error,
        };
        let left = probe.clean_up().await.map(|reason| format!("; objects of the probe may be left: {reason}"));
        Err(Failure::failed(format!("{}: {error}; {}{}", bucket.place(), remedy(&error), left.unwrap_or_default())))
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

    /// Prints the checks and the verdict.
    ///
    /// # Errors
    /// The store is refused; or standard output cannot be written.
    fn end(&self, place: &Place, verdict: Verdict) -> Outcome {
        let how = Listing { format: self.format, columns: self.columns.clone(), no_header: self.no_header, parsable: self.parsable };
        if self.format == Format::Json && self.columns.is_empty() {
            let answer = Answer { url: place.to_string(), endpoint: place.endpoint.as_deref(), verdict: &verdict };
            let text = serde_json::to_string_pretty(&answer);
            write_out(&(text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))? + "\n"))?;
        } else {
            print(&verdict.checks, BUCKET_CHECK, &how)?;
            if self.format == Format::Table && !self.no_header {
                write_out(&said(&verdict, self.parsable))?;
            }
        }
        if let Some(reason) = &verdict.left_behind {
            eprintln!("millpond: {place}: objects of the probe may be left below {}: {reason}", place.key("probe/"));
        }
        if verdict.usable {
            return Ok(());
        }
        let lacks: Vec<&str> = verdict.lacks.iter().map(|lack| lack.as_str()).collect();
        let line =
            format!("{place} is refused: the store lacks {}; use a store that has it, or a newer version of this one", lacks.join(", "));
        Err(Failure::failed(line))
    }
}

/// Times and verdict, for people.
fn said(verdict: &Verdict, exact: bool) -> String {
    let time = |nanos: Option<u64>| Cell::Nanos(nanos.map(|nanos| nanos as f64)).show(exact);
    let times = format!("put 4k p50 {}, get 4k p50 {}", time(verdict.put_p50_nanos), time(verdict.get_p50_nanos));
    format!("{times}\nverdict: {}\n", if verdict.usable { "usable" } else { "refused" })
}

/// Next step of the user after an error.
fn remedy(error: &BucketError) -> &'static str {
    match error.kind {
        ErrorKind::Denied => "check the credentials, the region and the clock",
        ErrorKind::Missing => "create the bucket first, or check its name",
        ErrorKind::Full => "give the bucket more space",
        ErrorKind::Throttled => "try again when the store has less to do",
        ErrorKind::Away | ErrorKind::Unknown => "check the endpoint and the network",
        ErrorKind::Exists | ErrorKind::Refused => "use another store",
    }
}
