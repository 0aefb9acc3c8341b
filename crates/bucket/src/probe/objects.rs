//! The objects of a probe: names of their own, and requests with some patience.

use std::time::Duration;

use millpond_format::{Holder, ObjectHead, ObjectId, ObjectName, PoolId, Term};

use crate::{Answer, Bucket, BucketError, ErrorKind, Operation, Part};

/// Times that a request is repeated where the store asks for fewer requests, and the wait before.
const PATIENCE: u32 = 5;
const PAUSE: Duration = Duration::from_millis(400);

/// The objects of one probe.
#[derive(Debug)]
pub struct Objects<'a> {
    pub bucket: &'a Bucket,
    pub id: ObjectId,
    pub holder: Holder,
}

impl Objects<'_> {
    /// Deletes objects with one request, which is repeated if its answer is lost.
    pub async fn delete(&self, names: &[ObjectName]) -> Result<(), BucketError> {
        match self.patiently(Operation::Delete { names: names.to_vec() }).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == ErrorKind::Unknown => self.patiently(Operation::Delete { names: names.to_vec() }).await.map(drop),
            Err(error) => Err(error),
        }
    }

    /// Carries out an operation, again and again where the store asks for fewer requests.
    pub async fn patiently(&self, operation: Operation) -> Result<Answer, BucketError> {
        for attempt in 1..=PATIENCE {
            match self.bucket.carry_out(operation.clone()).await {
                Err(error) if error.kind == ErrorKind::Throttled => tokio::time::sleep(PAUSE * attempt).await,
                other => return other,
            }
        }
        self.bucket.carry_out(operation).await
    }

    /// Name of an object.
    pub fn name(&self, number: u32) -> ObjectName {
        ObjectName::Probe(self.id, number)
    }

    /// An object of 4 KiB and the payload. Objects of several writers differ by `writer`.
    pub fn object(&self, number: u32, writer: u8, payload: &[u8]) -> Vec<u8> {
        let holder = Holder { host: [writer; 16], ..self.holder.clone() };
        ObjectHead::seal(PoolId(self.id.0), Term::default(), holder, self.name(number), payload)
    }

    /// Creates an object.
    pub async fn create(&self, number: u32, writer: u8, payload: &[u8]) -> Result<(), BucketError> {
        let object = self.object(number, writer, payload);
        self.patiently(Operation::Put { name: self.name(number), create: true, object }).await.map(drop)
    }

    /// Reads a part of an object; returns the length of the whole object, too.
    pub async fn read(&self, number: u32, part: Part) -> Result<(Vec<u8>, u64), BucketError> {
        match self.patiently(Operation::Get { name: self.name(number), part }).await? {
            Answer::Read { bytes, length } => Ok((bytes, length)),
            _ => Ok((Vec::new(), 0)),
        }
    }
}
