//! The client: one operation is one request, and one answer.
//!
//! The library (`object_store`) does not retry here: it would report a create whose first answer was
//! lost as "exists". It keeps the status of an answer to itself where it has no kind of its own, so
//! [`Answers`](answers::Answers) returns refusals as errors with their status and code.

pub(crate) mod answers;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, PutMode, PutOptions, RetryConfig};

use crate::operation::MOST_NAMES;
use crate::{Answer, BucketError, Credentials, Operation, Part, Place};
use answers::Connector;
use millpond_format::{MAX_OBJECT_BYTES, ObjectName};

/// Time limit of a new connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time limit of a request that reads, lists or deletes.
const READ: Duration = Duration::from_secs(15);
/// Time limit of a request that writes, and more for each MiB.
const WRITE: Duration = Duration::from_secs(30);
const WRITE_PER_MIB: Duration = Duration::from_secs(1);

/// A bucket, with connections that are kept open.
#[derive(Debug)]
pub struct Bucket {
    place: Place,
    store: AmazonS3,
}

impl Bucket {
    /// Prepares a client; sends nothing.
    ///
    /// # Errors
    /// The library's reason, such as certificates of the system that cannot be read.
    pub fn new(place: Place, credentials: &Credentials) -> Result<Bucket, String> {
        let options = ClientOptions::new().with_allow_http(place.plain);
        let connector = Connector { plain: place.plain, connect_limit: CONNECT };
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&place.region)
            .with_access_key_id(&credentials.key)
            .with_secret_access_key(&credentials.secret)
            .with_client_options(options)
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_checksum_algorithm(Checksum::SHA256)
            .with_http_connector(connector);
        if let Some(token) = &credentials.token {
            builder = builder.with_token(token);
        }
        if let Some(endpoint) = &place.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let store = builder.build().map_err(|error| error.to_string())?;
        Ok(Bucket { place, store })
    }

    /// The address.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The library's client.
    pub(crate) fn store(&self) -> &AmazonS3 {
        &self.store
    }

    /// Carries out an operation with one request.
    ///
    /// # Errors
    /// [`BucketError`]; its kind says whether the operation may have been carried out.
    pub async fn carry_out(&self, operation: Operation) -> Result<Answer, BucketError> {
        let (verb, subject) = (operation.verb(), operation.subject());
        let limit = match &operation {
            Operation::Put { object, .. } => WRITE + WRITE_PER_MIB * u32::try_from(object.len() >> 20).unwrap_or(u32::MAX),
            _ => READ,
        };
        let answer = tokio::time::timeout(limit, self.request(operation)).await;
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(answers::describe(&error, verb, subject)),
            Err(_) => Err(answers::timed_out(limit, verb, subject)),
        }
    }

    async fn request(&self, operation: Operation) -> Result<Answer, object_store::Error> {
        match operation {
            Operation::Put { name, create, object } => {
                let mode = if create { PutMode::Create } else { PutMode::Overwrite };
                let options = PutOptions { mode, ..PutOptions::default() };
                self.store.put_opts(&self.path(name), Bytes::from(object).into(), options).await?;
                Ok(Answer::Written)
            }
            Operation::Get { name, part } => self.read(&self.path(name), part).await,
            Operation::List { folder, after, most } => {
                let options = PaginatedListOptions {
                    offset: after.map(|name| self.place.key(name)),
                    max_keys: Some(most.min(MOST_NAMES)),
                    ..PaginatedListOptions::default()
                };
                let page = self.store.list_paginated(Some(&self.place.key(folder)), options).await?;
                let own = |key: &Path| ObjectName::parse(self.place.name(key.as_ref())?).ok();
                let names = page.result.objects.iter().filter_map(|object| own(&object.location)).collect();
                Ok(Answer::Names { names, more: page.page_token.is_some() })
            }
            Operation::Delete { names } => {
                let paths: Vec<_> = names.into_iter().map(|name| Ok(self.path(name))).collect();
                let mut gone = self.store.delete_stream(stream::iter(paths).boxed());
                while let Some(answer) = gone.next().await {
                    match answer {
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(Answer::Deleted)
            }
        }
    }

    async fn read(&self, path: &Path, part: Part) -> Result<Answer, object_store::Error> {
        let range = match part {
            Part::Whole => None,
            Part::Range { offset, length } => Some(GetRange::Bounded(offset..offset.saturating_add(length))),
            Part::Tail(length) => Some(GetRange::Suffix(length)),
        };
        let answer = self.store.get_opts(path, GetOptions { range, ..GetOptions::default() }).await?;
        let (length, range) = (answer.meta.size, answer.range.clone());
        let expected = range.end.saturating_sub(range.start);
        // objects of this project are not larger; another one must not take all memory
        if expected > MAX_OBJECT_BYTES {
            return Err(answers::too_large(expected));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        let mut parts = answer.into_stream();
        while let Some(part) = parts.next().await {
            bytes.extend_from_slice(&part?);
            if bytes.len() as u64 > expected {
                return Err(answers::cut(bytes.len() as u64, expected));
            }
        }
        if bytes.len() as u64 == expected { Ok(Answer::Read { bytes, length }) } else { Err(answers::cut(bytes.len() as u64, expected)) }
    }

    fn path(&self, name: ObjectName) -> Path {
        Path::from(self.place.key(name))
    }
}

#[cfg(test)]
mod tests;
