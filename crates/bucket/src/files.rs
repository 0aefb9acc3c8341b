//! Objects of any name below a prefix, for those that are no device of a pool. One call is one request,
//! as with [`Bucket`].

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions};

use crate::client::answers;
use crate::operation::MOST_NAMES;
use crate::{Bucket, BucketError, ErrorKind, Verb};

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(60);

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name below the prefix.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
    /// When it was written, by the clock of the store: milliseconds since the Unix epoch.
    pub written: i64,
}

/// Objects below the prefix of a bucket.
#[derive(Debug)]
pub struct Files(Bucket);

impl Files {
    /// Uses the prefix of this bucket; sends nothing.
    pub fn new(bucket: Bucket) -> Files {
        Files(bucket)
    }

    /// The bucket.
    pub fn bucket(&self) -> &Bucket {
        &self.0
    }

    fn path(&self, name: &str) -> Path {
        Path::from(self.0.place().key(name))
    }

    /// Writes an object, also in the place of another one.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn put(&self, name: &str, content: Vec<u8>) -> Result<(), BucketError> {
        let options = PutOptions { mode: PutMode::Overwrite, ..PutOptions::default() };
        let path = self.path(name);
        let put = self.0.store().put_opts(&path, Bytes::from(content).into(), options);
        within(put, Verb::Write, name).await.map(drop)
    }

    /// Writes an object unless there is one of that name.
    ///
    /// # Errors
    /// [`BucketError`]: with [`ErrorKind::Exists`] there is one, perhaps of the same request before.
    pub async fn create(&self, name: &str, content: Vec<u8>) -> Result<(), BucketError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.path(name);
        let put = self.0.store().put_opts(&path, Bytes::from(content).into(), options);
        within(put, Verb::Write, name).await.map(drop)
    }

    /// Reads an object of at most `most` bytes.
    ///
    /// # Errors
    /// [`BucketError`], also when it is longer.
    pub async fn get(&self, name: &str, most: u64) -> Result<Vec<u8>, BucketError> {
        let path = self.path(name);
        let get = async {
            let answer = self.0.store().get_opts(&path, GetOptions::default()).await?;
            if answer.meta.size > most {
                return Err(answers::too_large(answer.meta.size));
            }
            let expected = answer.meta.size;
            let mut content = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
            let mut parts = answer.into_stream();
            while let Some(part) = parts.next().await {
                content.extend_from_slice(&part?);
                if content.len() as u64 > expected {
                    break;
                }
            }
            if content.len() as u64 == expected { Ok(content) } else { Err(answers::cut(content.len() as u64, expected)) }
        };
        within(get, Verb::Read, name).await
    }

    /// True if there is such an object, which is not empty. Reads one byte of it: the answer to a
    /// request for the head alone would not say whether the store or a proxy gave it.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn has(&self, name: &str) -> Result<bool, BucketError> {
        let path = self.path(name);
        let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
        match within(self.0.store().get_opts(&path, options), Verb::Read, name).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::Missing => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists a page of the objects below a folder, and whether there are more: those after `after`.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn list(&self, folder: &str, after: Option<&str>) -> Result<(Vec<Listed>, bool), BucketError> {
        let place = self.0.place();
        let options = PaginatedListOptions {
            offset: after.map(|name| place.key(name)),
            max_keys: Some(MOST_NAMES),
            ..PaginatedListOptions::default()
        };
        let mut prefix = if folder.is_empty() { place.prefix.clone() } else { place.key(folder) };
        if !prefix.is_empty() {
            prefix.push('/');
        }
        let page = within(self.0.store().list_paginated(Some(&prefix), options), Verb::List, folder).await?;
        let own = |object: object_store::ObjectMeta| {
            let name = place.name(object.location.as_ref())?.to_owned();
            Some(Listed { name, length: object.size, written: object.last_modified.timestamp_millis() })
        };
        Ok((page.result.objects.into_iter().filter_map(own).collect(), page.page_token.is_some()))
    }

    /// Deletes objects; those that are not there are no error.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn delete(&self, names: &[String]) -> Result<(), BucketError> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let delete = async {
            let mut gone = self.0.store().delete_stream(stream::iter(paths).boxed());
            while let Some(answer) = gone.next().await {
                match answer {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        within(delete, Verb::Delete, names.first().map_or("", String::as_str)).await
    }
}

async fn within<T>(request: impl Future<Output = Result<T, object_store::Error>>, verb: Verb, name: &str) -> Result<T, BucketError> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(answer) => answer.map_err(|error| answers::describe(&error, verb, name.to_owned())),
        Err(_) => Err(answers::timed_out(LIMIT, verb, name.to_owned())),
    }
}
