//! The target of a command: a directory, or a bucket.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use clap::ValueHint;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant;
use millpond_api::names::SnapshotName;
use millpond_api::path::absolute;
use millpond_backup::{BackupError, Directory, Purpose, Store, Target};
use millpond_device::entropy;

use crate::command::globs::{Pattern, is_pattern};
use crate::command::store::StoreOptions;
use crate::output::LongListing;

/// Where the backups or publications are.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "TARGET", value_hint = ValueHint::DirPath)]
    target: String,
    #[command(flatten)]
    store: StoreOptions,
}

/// Backups that a command looks at, and how it shows them.
#[derive(Clone, Debug, Args)]
pub struct Chosen {
    #[command(flatten)]
    pub place: Place,
    /// POOL/VOL or POOL/VOL@SNAP, or quoted patterns [default: all]
    #[arg(value_name = "words")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub how: LongListing,
}

/// Handling of a directory or prefix that is no target yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// Prepare it.
    Prepare,
    /// Refuse it.
    Refuse,
}

/// Turns an error into a message.
pub fn failure(place: &str, error: &BackupError) -> Failure {
    Failure::failed(format!("{place}: {error}"))
}

impl Place {
    /// The place that a user gave with other words.
    pub fn new(target: &str, store: StoreOptions) -> Place {
        Place { target: target.to_owned(), store }
    }

    /// The words of the user for it.
    pub fn name(&self) -> &str {
        &self.target
    }

    /// True for a bucket.
    pub fn is_bucket(&self) -> bool {
        self.target.starts_with("s3://")
    }

    /// The address for the daemon, which has another working directory.
    pub fn absolute(&self) -> String {
        if self.is_bucket() { self.target.clone() } else { absolute(Path::new(&self.target)).display().to_string() }
    }

    /// The options for the daemon, which has another environment.
    pub fn options(&self) -> Vec<String> {
        if self.is_bucket() { self.store.options() } else { Vec::new() }
    }

    /// The file with credentials for the daemon, if there is one.
    pub fn credentials(&self) -> Option<String> {
        self.store.credentials_file().map(|file| absolute(file).display().to_string())
    }

    /// Opens the target of this purpose.
    ///
    /// # Errors
    /// It cannot be reached or read, or is something else.
    pub async fn open(&self, purpose: Purpose, empty: Empty) -> Outcome<Arc<Target>> {
        let (id, own) = (random()?, random()?);
        let runtime = tokio::runtime::Handle::current();
        let place = self.clone();
        let opened = tokio::task::spawn_blocking(move || place.find((purpose, empty), id, &own, &runtime)).await;
        opened.map_err(|e| Failure::failed(format!("{}: {e}; run it again", self.target)))?
    }

    fn find(&self, (purpose, empty): (Purpose, Empty), id: String, own: &str, runtime: &tokio::runtime::Handle) -> Outcome<Arc<Target>> {
        let store = || self.reach(empty, own, runtime);
        let target = match Target::open(store()?, purpose) {
            Err(BackupError::Empty(_)) if empty == Empty::Prepare => {
                let prepared = Target::prepare(store()?, purpose, id, instant::now());
                prepared.inspect(|_| eprintln!("millpond: {} is a new target of {purpose}", self.target))
            }
            other => other,
        };
        target.map(Arc::new).map_err(|error| failure(&self.target, &error))
    }

    #[cfg_attr(not(feature = "bucket"), expect(unused_variables, reason = "only buckets need them"))]
    fn reach(&self, empty: Empty, own: &str, runtime: &tokio::runtime::Handle) -> Outcome<Box<dyn Store>> {
        if self.is_bucket() {
            #[cfg(feature = "bucket")]
            {
                let files = millpond_bucket::Files::new(self.store.open(&self.target)?);
                return Ok(Box::new(millpond_backup::BucketStore::new(files, runtime.clone(), own.to_owned())));
            }
            #[cfg(not(feature = "bucket"))]
            return Err(Failure::usage(format!("{}: this program was built without buckets; give a directory", self.target)));
        }
        if self.store.are_given() {
            return Err(Failure::usage(format!("{}: -o and --credentials are for buckets; give s3://BUCKET/PREFIX", self.target)));
        }
        let dir = absolute(Path::new(&self.target));
        let of = |e: std::io::Error| Failure::failed(format!("{}: {e}; give a directory that exists", dir.display()));
        if empty == Empty::Prepare && dir.symlink_metadata().is_err() {
            // only the last part: the rest may be a file system that is not mounted
            fs::create_dir(&dir).map_err(of)?;
            dir.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all()).map_err(of)?;
        }
        if !fs::metadata(&dir).map_err(of)?.is_dir() {
            return Err(Failure::failed(format!("{} is no directory; give one", dir.display())));
        }
        Ok(Box::new(Directory::new(&dir)))
    }
}

/// Returns a random name of 32 hexadecimal digits.
///
/// # Errors
/// The system gives no random numbers.
pub fn random() -> Outcome<String> {
    let bytes: [u8; 16] = entropy().map_err(|e| Failure::failed(format!("the system gives no random numbers: {e}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Does work on a target on another thread.
///
/// # Errors
/// That of the work.
pub async fn blocking<T: Send + 'static>(
    place: &Place,
    target: &Arc<Target>,
    work: impl FnOnce(&Target) -> Result<T, BackupError> + Send + 'static,
) -> Outcome<T> {
    let target = Arc::clone(target);
    let done = tokio::task::spawn_blocking(move || work(&target)).await;
    let done = done.map_err(|e| Failure::failed(format!("{}: {e}; run it again", place.name())))?;
    done.map_err(|error| failure(place.name(), &error))
}

/// Returns the backups that these words name, in the order of the target: backups, volumes with all
/// their backups, and patterns; all of them without a word.
///
/// # Errors
/// A word that names none, and the target's.
pub async fn named(place: &Place, target: &Arc<Target>, words: &[String]) -> Outcome<Vec<SnapshotName>> {
    let all = blocking(place, target, Target::names).await?;
    if words.is_empty() {
        return Ok(all);
    }
    let mut wanted = vec![false; all.len()];
    for word in words {
        let pattern = if is_pattern(word) { Some(Pattern::parse(word)?) } else { None };
        let matches = |name: &SnapshotName| match &pattern {
            Some(pattern) => pattern.has_snapshot(&name.to_string()),
            None => name.to_string() == *word || name.of.to_string() == *word,
        };
        let found = all.iter().zip(&mut wanted).filter(|(name, _)| matches(name)).map(|(_, wanted)| *wanted = true).count();
        if found == 0 {
            let (one, lister) = (target.purpose().one(), target.purpose().lister());
            return Err(Failure::failed(format!("{}: no {one} of '{word}'; '{lister}' shows all", place.name())));
        }
    }
    Ok(all.into_iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect())
}
