//! `receive`: makes snapshots of a stream that `send` wrote, in a new volume or in one that has the
//! snapshot on which the stream builds.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{RECEIVING_VOLUME, Receiving, ResumeToken, is_failover};
use millpond_api::names::VolumeName;
use millpond_api::size::Size;
use millpond_api::{SetProperties, Snapshot, VolumeCache};
use millpond_daemon::Signals;
use millpond_images::copy::CopyProgress;
use millpond_images::pipe::InputReader;
use millpond_images::stream::{
    Checks, FrameReader, Received, Receiver, Reception, StreamHead, StreamSnapshot, Target, abandon, incomplete, resumable, settle,
};

use super::image::{Total, watched};
use super::{candidates, create};
use crate::output::{say, write_out};

mod live;

use live::destroy_new;
pub use live::{LiveTarget, incomplete_name, snapshots_of};

/// Bytes that are read from the input at once.
const BUFFER: usize = 1 << 20;

/// Make snapshots of a stream from 'millpond send'
///
/// A full stream makes a new volume. A stream of changes goes to a volume that has the snapshot on which it builds and was not
/// written since. A snapshot gets its name when its data was read back; an interrupted receive continues with --resume.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond receive tank/vm1 --from vm1.stream
  ssh host millpond send tank/vm1@monday%friday | millpond receive tank/vm1
  millpond receive tank/vm1 --token             the token of an interrupted receive
  millpond receive tank/vm1 --abandon           give it up: back to the last complete snapshot

A new volume is called receiving-VOL until its first snapshot is complete.")]
pub struct Receive {
    /// POOL/VOL
    #[arg(add = candidates::new_volumes())]
    name: String,
    /// File to read, or - for standard input
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    from: PathBuf,
    /// Continue the interrupted receive that has this token, and no other
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
    /// Roll the volume back to the snapshot on which the stream builds; its state is kept as a snapshot
    #[arg(long)]
    force: bool,
    /// Set a property of the new volume
    #[arg(short = 'o', value_name = "PROP=VAL", add = candidates::settings(create::settable()))]
    properties: Vec<String>,
    /// Only print the token of an interrupted receive
    #[arg(long, conflicts_with_all = ["abandon", "resume", "force", "properties"])]
    token: bool,
    /// Give an interrupted receive up: destroy a new volume, or go back to the snapshot before
    #[arg(long, conflicts_with_all = ["resume", "force", "properties"])]
    abandon: bool,
    /// With --abandon: go back to this snapshot, where the one before is gone
    #[arg(long, value_name = "SNAP", requires = "abandon")]
    to: Option<String>,
}

impl Receive {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let during = |failure: Failure| failure.during(format!("cannot receive '{name}'"));
        if name.volume.starts_with(RECEIVING_VOLUME) {
            return Err(during(Failure::usage(format!(
                "'{RECEIVING_VOLUME}' begins the names of incomplete receives; choose another name"
            ))));
        }
        if name.volume.len() > live::LONGEST {
            return Err(during(Failure::usage(format!(
                "a name of more than {} characters has no room for '{RECEIVING_VOLUME}'",
                live::LONGEST
            ))));
        }
        if self.token {
            return write_out(&format!("{}\n", look(client, &name, resumable).await?.1.token()));
        }
        if self.abandon {
            return self.give_up(client, &name).await.map_err(during);
        }
        let token = self.resume.as_deref().map(str::parse::<ResumeToken>).transpose();
        let token = token.map_err(|e| Failure::usage(format!("--resume: {e}")))?;
        let mut properties = SetProperties::default();
        self.properties.iter().try_for_each(|word| create::assign(word, &mut properties))?;
        if properties.readonly == Some(true) {
            return Err(Failure::usage("a read-only volume cannot be received; set readonly=on afterwards"));
        }
        let (input, total) = self.input()?;
        let mut signals = Signals::catch()?;
        let (client_there, handle, into) = (client.clone(), tokio::runtime::Handle::current(), name.clone());
        let shown = if total > 0 { Total::Of(total) } else { Total::Unknown };
        let how = Reception { resume: token, force: self.force, checks: Checks::ALL, turn_bytes: None };
        let begun = Arc::new(AtomicBool::new(false));
        let has_begun = Arc::clone(&begun);
        let work = move |progress: &CopyProgress| {
            let input = BufReader::with_capacity(BUFFER, InputReader::new(input, progress));
            let (mut frames, head) = FrameReader::new(input).map_err(|e| Failure::failed(format!("cannot read the stream: {e}")))?;
            let mut target = LiveTarget::open(client_there, handle, into, &new_volume(&head, properties))?;
            has_begun.store(true, Relaxed);
            let free = if how.force { Ok(()) } else { refuse_failed_over(&mut target, &head) };
            let received = free.and_then(|()| Receiver::new(&mut target, head, how).run(&mut frames, progress));
            let closed = target.close();
            received.and_then(|received| closed.map(|()| received))
        };
        let (_, received) = watched(format!("receive {name}"), (shown, all_of), &mut signals, work).await;
        match received {
            Ok(received) => report(&name, &received),
            Err(failure) if begun.load(Relaxed) => Err(during(explain(client, &name, failure).await)),
            Err(failure) => Err(during(failure)),
        }
    }

    /// Opens the input; returns its length in bytes, 0 where that is not known.
    fn input(&self) -> Outcome<(File, u64)> {
        if self.from == std::path::Path::new("-") {
            if io::stdin().is_terminal() {
                return Err(Failure::usage("a stream does not come from a terminal; give --from FILE, or a pipe from 'millpond send'"));
            }
            let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            return input.map(|file| (file, 0)).map_err(|e| Failure::failed(format!("cannot use standard input: {e}")));
        }
        let cannot = |e| Failure::failed(format!("cannot read {}: {e}; give another file", self.from.display()));
        let file = File::open(&self.from).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        Ok((file, if meta.is_file() { meta.len() } else { 0 }))
    }

    /// Gives up the incomplete receive of a volume that had snapshots before.
    async fn give_up_changes(&self, client: &Client, name: &VolumeName) -> Outcome {
        let (client, handle, of, to) = (client.clone(), tokio::runtime::Handle::current(), name.clone(), self.to.clone());
        let done = tokio::task::spawn_blocking(move || {
            let mut target = LiveTarget::existing(client, handle, of)?;
            let kept = abandon(&mut target, to.as_deref());
            let closed = target.close();
            kept.and_then(|kept| closed.map(|()| kept))
        });
        let kept = done.await.map_err(|e| Failure::failed(format!("the work failed: {e}; run the command again")))??;
        say_kept(name, kept.as_deref());
        Ok(())
    }

    /// Gives an incomplete receive up.
    async fn give_up(&self, client: &Client, name: &VolumeName) -> Outcome {
        let (of, receiving) = look(client, name, incomplete).await?;
        if of != *name {
            let snapshots = snapshots_of(client, &of).await?.unwrap_or_default();
            if snapshots.iter().any(|snapshot| snapshot.received) {
                let (client, handle, named) = (client.clone(), tokio::runtime::Handle::current(), name.clone());
                let settled = tokio::task::spawn_blocking(move || {
                    let mut target = LiveTarget::unnamed(client, handle, named)?;
                    let settled = settle(&mut target);
                    let closed = target.close();
                    settled.and(closed)
                });
                settled.await.map_err(|e| Failure::failed(format!("the work failed: {e}; run the command again")))??;
                return say(&format!("its snapshot was complete: '{name}' has it"));
            }
            if snapshots.iter().any(|snapshot| snapshot.identity.is_some()) {
                return Err(Failure::failed(format!("'{of}' has snapshots that are no part of it; rename or destroy the volume")));
            }
            let destroyed = destroy_new(client, name).await?;
            return say(&format!("destroyed {}", destroyed.join(" ")));
        }
        self.give_up_changes(client, name).await?;
        say(&format!("gave up the receive of {}; '{name}' is as before it", receiving.identity))
    }
}

/// Reports the snapshot that keeps the state of a volume whose receive was given up.
pub fn say_kept(name: &VolumeName, kept: Option<&str>) {
    if let Some(kept) = kept {
        eprintln!("millpond: data came after the last progress, or from others; it is kept as '{name}@{kept}'");
    }
}

/// Refuses a stream that goes on from a snapshot before a failover: the work went on here since.
fn refuse_failed_over(target: &mut LiveTarget, head: &StreamHead) -> Outcome {
    let there = target.snapshots()?;
    let of_stream = |snapshot: &Snapshot| {
        let same = |one: &StreamSnapshot| Some(&one.identity) == snapshot.identity.as_ref();
        head.base.iter().chain(&head.snapshots).any(same)
    };
    let newest = there.iter().rposition(of_stream).map_or(0, |newest| newest + 1);
    match there.iter().skip(newest).find(|snapshot| is_failover(snapshot)) {
        Some(begun) => Err(Failure::failed(format!(
            "the volume was failed over since ('{}'), and the work goes on here; 'millpond failback' brings it to the other side, or \
             --force receives anyway",
            begun.name
        ))),
        None => Ok(()),
    }
}

/// Returns the volume of the incomplete receive, and its state, as `find` finds it.
async fn look(client: &Client, name: &VolumeName, find: fn(&[Snapshot]) -> Option<&Receiving>) -> Outcome<(VolumeName, Receiving)> {
    for of in [name.clone(), incomplete_name(name)] {
        if let Some(snapshots) = snapshots_of(client, &of).await?
            && let Some(receiving) = find(&snapshots)
        {
            return Ok((of, receiving.clone()));
        }
    }
    Err(Failure::failed(format!("'{name}' has no incomplete receive")))
}

/// Adds to a failure how the receive continues.
async fn explain(client: &Client, name: &VolumeName, failure: Failure) -> Failure {
    match look(client, name, resumable).await {
        Ok((_, receiving)) => {
            let line = format!(
                "{failure}; {} of the snapshot are received, continue with --resume {} of 'millpond send' and of this command",
                Size(receiving.position),
                receiving.token()
            );
            Failure::failed(line)
        }
        Err(_) => failure,
    }
}

/// Returns the properties of a new volume: those of the stream, and those that the user gives.
fn new_volume(head: &StreamHead, given: SetProperties) -> live::New {
    let mut properties = given;
    if properties.cache.is_none() {
        // the mode that loses acknowledged writes is taken over from nobody
        properties.cache = Some(head.cache.clone()).filter(|cache| *cache != VolumeCache::Unsafe);
        if properties.cache.is_none() {
            eprintln!("millpond: the stream is of a volume with cache=unsafe; the new one has the default cache mode");
        }
    }
    properties.compression = properties.compression.or_else(|| Some(head.compression.clone()));
    live::New { size: head.snapshots.first().map_or(0, |snapshot| snapshot.size), sector: head.sector.clone(), properties }
}

fn report(name: &VolumeName, received: &Received) -> Outcome {
    for kept in &received.kept {
        eprintln!("millpond: '{name}' was rolled back first; its state is kept as '{name}@{kept}'");
    }
    if received.there > 0 {
        eprintln!("millpond: {} snapshots of the stream were there already", received.there);
    }
    received.snapshots.iter().try_for_each(|snapshot| say(&format!("received {name}@{snapshot}")))
}

fn all_of(total: u64, _: &CopyProgress) -> String {
    format!("{} of stream", Size(total))
}
