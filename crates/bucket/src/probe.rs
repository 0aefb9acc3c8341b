//! The probe: finds out whether a store does what a pool needs.
//!
//! Each check has a name, so that a store is refused by the name of what it lacks. The probe's
//! objects have names of their own, and are deleted at the end, whatever the result.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use millpond_format::{Holder, ObjectFolder, ObjectId, ObjectName};
use serde::Serialize;

use crate::operation::MOST_NAMES;
use crate::{Answer, Bucket, BucketError, ErrorKind, Operation, Part};

mod checks;
mod objects;

use objects::Objects;

/// Creates of one name at the same time, and how often that is tried.
const RACERS: u32 = 16;
const ROUNDS: u32 = 8;
/// Objects that are listed: more than one page of a list.
const LISTED: u32 = MOST_NAMES as u32 + 100;
/// Requests at the same time while these are written.
const AT_ONCE: usize = 16;
/// Small objects that are written and read one after the other for the times.
const TIMED: u32 = 20;
/// Bytes of the object whose parts are read.
const LARGE: usize = 1 << 20;

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// An object can be created.
    Create,
    /// A second create of the name fails.
    CreateAgain,
    /// Of several creates at the same time, one succeeds.
    Race,
    /// An object is read as it was written, right after it was.
    Read,
    /// Parts of an object can be read.
    Range,
    /// The last bytes of an object can be read.
    Suffix,
    /// An absent object is reported as such.
    Absent,
    /// A list in pages has all names in order.
    List,
    /// Objects can be deleted, several with a request.
    Delete,
    /// Deleting absent objects is no error.
    DeleteAgain,
}

impl CheckName {
    /// The check as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckName::Create => "create",
            CheckName::CreateAgain => "create-again",
            CheckName::Race => "race",
            CheckName::Read => "read",
            CheckName::Range => "range",
            CheckName::Suffix => "suffix",
            CheckName::Absent => "absent",
            CheckName::List => "list",
            CheckName::Delete => "delete",
            CheckName::DeleteAgain => "delete-again",
        }
    }

    /// The property that a store lacks if it fails the check.
    fn lack(self) -> Lack {
        match self {
            CheckName::Create => Lack::Write,
            CheckName::CreateAgain => Lack::CreateIfAbsent,
            CheckName::Race => Lack::OneWinner,
            CheckName::Read | CheckName::Absent => Lack::ReadAfterWrite,
            CheckName::Range => Lack::Ranges,
            CheckName::Suffix => Lack::Suffixes,
            CheckName::List => Lack::Lists,
            CheckName::Delete | CheckName::DeleteAgain => Lack::Deletes,
        }
    }
}

/// A property that a store lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Objects cannot be written.
    Write,
    /// A create replaces an object that is there.
    CreateIfAbsent,
    /// Several creates at the same time succeed.
    OneWinner,
    /// An object is not read as it was written.
    ReadAfterWrite,
    /// Parts of objects cannot be read.
    Ranges,
    /// The last bytes of objects cannot be read.
    Suffixes,
    /// Lists are not complete or not in order.
    Lists,
    /// Objects cannot be deleted.
    Deletes,
}

impl Lack {
    /// The property as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Lack::Write => "write",
            Lack::CreateIfAbsent => "create-if-absent",
            Lack::OneWinner => "one-winner",
            Lack::ReadAfterWrite => "read-after-write",
            Lack::Ranges => "ranges",
            Lack::Suffixes => "suffixes",
            Lack::Lists => "lists",
            Lack::Deletes => "deletes",
        }
    }
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// The store does it.
    Ok,
    /// The store does not do it.
    Failed,
    /// It was not tried, because an earlier check failed.
    Skipped,
}

impl CheckState {
    /// The result as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckState::Ok => "ok",
            CheckState::Failed => "failed",
            CheckState::Skipped => "skipped",
        }
    }
}

/// A check that was made.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The check.
    pub check: CheckName,
    /// Its result.
    pub state: CheckState,
    /// Finding, in one line.
    pub found: String,
    /// Time of the whole check, in milliseconds.
    pub took_millis: u64,
}

/// Result of a probe.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Whether pools can use the store.
    pub usable: bool,
    /// Properties that the store lacks.
    pub lacks: Vec<Lack>,
    /// All checks.
    pub checks: Vec<Check>,
    /// Median time to write an object of 4 KiB, in nanoseconds; absent if none was written.
    pub put_p50_nanos: Option<u64>,
    /// Median time to read an object of 4 KiB, in nanoseconds; absent if none was read.
    pub get_p50_nanos: Option<u64>,
    /// Reason why objects of the probe may still be there.
    pub left_behind: Option<String>,
}

/// A probe of one bucket.
#[derive(Debug)]
pub struct Probe<'a> {
    objects: Objects<'a>,
}

/// Reason why a check failed.
#[derive(Debug)]
enum Trouble {
    /// The store answers something wrong.
    Wrong(String),
    /// An operation failed.
    Failed(BucketError),
}

impl From<BucketError> for Trouble {
    fn from(error: BucketError) -> Trouble {
        Trouble::Failed(error)
    }
}

impl<'a> Probe<'a> {
    /// Prepares a probe. `id` is random: it names the objects of this probe.
    pub fn new(bucket: &'a Bucket, id: [u8; 16], host: [u8; 16], host_name: &str) -> Probe<'a> {
        let holder = Holder { host, name: host_name.to_owned(), session: id };
        Probe { objects: Objects { bucket, id: ObjectId(id), holder } }
    }

    /// Makes all checks, and deletes the objects of the probe.
    ///
    /// # Errors
    /// The store cannot be reached, or refuses the credentials or the bucket: nothing was found out. The
    /// caller has to call [`Probe::clean_up`]: a create whose answer was lost may have been carried out.
    pub async fn run(&self) -> Result<Verdict, BucketError> {
        let verdict = checks::run(&self.objects).await?;
        let left_behind = self.clean_up().await;
        Ok(Verdict { left_behind, ..verdict })
    }

    /// Deletes every object that this probe can have written. Returns the reason why some may be left.
    pub async fn clean_up(&self) -> Option<String> {
        let objects = &self.objects;
        let names: Vec<ObjectName> = (0..checks::NAMES).map(|number| objects.name(number)).collect();
        let mut failed = None;
        for batch in names.chunks(MOST_NAMES) {
            failed = objects.delete(batch).await.err().or(failed);
        }
        if let Some(error) = failed {
            return Some(error.to_string());
        }
        match objects.patiently(Operation::List { folder: ObjectFolder::Probe(objects.id), after: None, most: 1 }).await {
            Ok(Answer::Names { names, .. }) if names.is_empty() => None,
            Ok(_) => Some("the list still has objects of the probe".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Returns the median of times.
fn median(mut times: Vec<Duration>) -> Option<u64> {
    times.sort();
    times.get(times.len() / 2).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Runs requests for many numbers, a few at the same time.
async fn for_each<F: Future<Output = Result<(), BucketError>>>(
    numbers: std::ops::Range<u32>,
    run: impl Fn(u32) -> F,
) -> Result<(), Trouble> {
    let mut answers = stream::iter(numbers).map(run).buffer_unordered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        answer?;
    }
    Ok(())
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let begin = Instant::now();
    let result = work.await;
    (result, begin.elapsed())
}
