//! `find-publication` and `fetch-chunks`: processes that read targets of publications for the daemon. Only
//! the daemon starts them.

use std::io::{self, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use clap::{Args, ValueHint};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_api::{BaseSource, FoundPublication, instant};
use millpond_backup::{ChunkId, Fetched, Fetcher, Pin, Purpose};
use millpond_daemon::chunk_wire::{ChunkAnswer, ChunkRequest};
use millpond_daemon::host_name;

use super::backup::target::{Empty, Place, blocking};
use super::published::Published;
use super::store::StoreOptions;
use crate::output::write_out;

/// Chunks that are read at a time. A store takes some milliseconds for each.
const AT_ONCE: usize = 8;

/// Finds a publication, and prints what a base of it needs as JSON
#[derive(Debug, Args)]
pub struct FindPublication {
    /// TARGET#VOL@SNAP, or TARGET#POOL/VOL@SNAP
    #[arg(value_hint = ValueHint::DirPath)]
    word: String,
    #[command(flatten)]
    store: StoreOptions,
    /// Id of a pool: note in the target that it has clones which read the publication
    #[arg(long, requires = "pool")]
    pin: Option<String>,
    /// Name of that pool
    #[arg(long)]
    pool: Option<String>,
}

impl FindPublication {
    pub async fn run(self) -> Outcome {
        let published = Published::parse(&self.word, self.store)?;
        let (target, name) = published.find().await?;
        let wanted = name.clone();
        let record = blocking(&published.place, &target, move |target| target.record(&wanted)).await?;
        let publication = record.publication.clone().unwrap_or_default();
        if let (Some(pool_id), Some(pool)) = (self.pin, self.pool) {
            let (name, publication): (SnapshotName, String) = (name.clone(), publication.clone());
            let pin = Pin { pool_id, pool, host: host_name(), created: instant::now() };
            let stop = AtomicBool::new(false);
            blocking(&published.place, &target, move |target| target.pin(&name, &publication, &pin, &stop)).await?;
        }
        let (place, head) = (&published.place, target.head());
        let source = BaseSource {
            format: BaseSource::FORMAT,
            target: place.name().to_owned(),
            options: place.options(),
            credentials: place.credentials(),
            target_id: head.id.clone(),
            publication,
            name: record.name,
            root: record.root.to_string(),
        };
        let unit = u32::try_from(head.chunk).map_err(|_| Failure::failed("its chunks are too large"))?;
        let found = FoundPublication {
            source,
            unit,
            size: record.size,
            sector: record.sector,
            cache: record.cache,
            compression: record.compression,
        };
        write_out(&serde_json::to_string(&found).map_err(|error| Failure::failed(error.to_string()))?)
    }
}

/// Reads chunks of publications: requests on standard input, answers on standard output
#[derive(Debug, Args)]
pub struct FetchChunks {
    #[command(flatten)]
    place: Place,
    /// Id of the target; another one is refused
    #[arg(long)]
    id: String,
}

impl FetchChunks {
    pub async fn run(self) -> Outcome {
        let target = self.place.open(Purpose::Publications, Empty::Refuse).await?;
        if target.head().id != self.id {
            return Err(Failure::failed(format!("{}: another target is there now; is the right disk mounted?", self.place.name())));
        }
        let (to, requests) = channel();
        let shared = Arc::new(Shared { fetcher: Fetcher::new(target), requests: Mutex::new(requests) });
        for _ in 0..AT_ONCE {
            let shared = Arc::clone(&shared);
            // they end with the process: a target may not answer for long
            let worker = thread::Builder::new().name("fetch".to_owned()).spawn(move || shared.work());
            worker.map_err(|error| Failure::failed(format!("no thread: {error}")))?;
        }
        let read = tokio::task::spawn_blocking(move || take_requests(&to)).await;
        read.map_err(|error| Failure::failed(error.to_string()))?.map_err(|error| Failure::failed(format!("no request: {error}")))
    }
}

/// Takes requests until the daemon closes its end.
fn take_requests(to: &Sender<ChunkRequest>) -> io::Result<()> {
    let mut input = io::stdin().lock();
    loop {
        let mut bytes = [0; ChunkRequest::BYTES];
        match input.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        if to.send(ChunkRequest::decode(&bytes)).is_err() {
            return Ok(());
        }
    }
}

struct Shared {
    fetcher: Fetcher,
    requests: Mutex<Receiver<ChunkRequest>>,
}

impl Shared {
    fn work(&self) {
        loop {
            let next = self.requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(request) = next else { return };
            let answer = match self.fetcher.fetch(ChunkId::from_bytes(request.root), request.size, request.chunk) {
                Ok(Fetched::Zero) => ChunkAnswer::Zero,
                Ok(Fetched::Data(data)) => ChunkAnswer::Data(data),
                Ok(Fetched::Missing) => ChunkAnswer::Missing,
                Ok(Fetched::Damaged(why)) => ChunkAnswer::Damaged(why),
                Err(error) => ChunkAnswer::Again(error.to_string()),
            };
            let bytes = answer.encode(request.id);
            let mut stdout = io::stdout().lock();
            // without the daemon the process ends
            if stdout.write_all(&bytes).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
    }
}
