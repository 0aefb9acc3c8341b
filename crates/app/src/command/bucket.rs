//! `bucket`: looks at object stores, without a daemon.

use clap::{Args, Subcommand};
use millpond_api::failure::{Failure, Outcome};
use millpond_bucket::{BucketError, ErrorKind, Place, Probe, Verdict};
use millpond_daemon::Signals;
use millpond_device::entropy;
use serde::Serialize;

use super::columns::BUCKET_CHECK;
use super::store::StoreOptions;
use crate::output::{Cell, Format, Listing, LongListing, print, write_out};

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
    #[command(flatten)]
    store: StoreOptions,
    #[command(flatten)]
    how: LongListing,
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
        let bucket = self.store.open(&self.url)?;
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

    /// Prints the checks and the verdict.
    ///
    /// # Errors
    /// The store is refused; or standard output cannot be written.
    fn end(&self, place: &Place, verdict: Verdict) -> Outcome {
        let how = Listing::from(self.how.clone());
        if how.format == Format::Json && how.columns.is_empty() {
            let answer = Answer { url: place.to_string(), endpoint: place.endpoint.as_deref(), verdict: &verdict };
            let text = serde_json::to_string_pretty(&answer);
            write_out(&(text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))? + "\n"))?;
        } else {
            print(&verdict.checks, BUCKET_CHECK, &how)?;
            if how.format == Format::Table && !how.no_header {
                write_out(&said(&verdict, how.parsable))?;
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
