//! `snapshot`, `rollback`, `clone` and `promote`.

use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::{now, parse_span};
use millpond_api::names::{self, Kind, SnapshotName, VolumeName};
use millpond_api::size::Size;
use millpond_api::{
    self, ClonePublication, CloneSnapshot, ClonedPublication, CopySnapshot, CreateSnapshots, Created, FullCopy, FullCopyState, Promoted,
    RolledBack, Volume,
};
use millpond_daemon::Signals;

use super::backup::fill::Filler;
use super::backup::target::blocking;
use super::candidates;
use super::consent::refused_for;
use super::globs::expand_new;
use super::image::Incomplete;
use super::published::Published;
use super::store::StoreOptions;
use crate::output::write_out;
use crate::progress::Progress;

/// Interval between queries of a copy's progress.
const LOOK: Duration = Duration::from_millis(200);

/// Take snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond snapshot tank/vm1@before-upgrade --expire 7d
  millpond snapshot --group tank/db@nightly tank/log@nightly
  millpond snapshot --group 'tank/vm*@nightly'
  millpond snapshot -r tank@nightly                           every volume of a pool at one instant
  millpond snapshot tank/vm1@audit --lock 30d                 it cannot be destroyed before
  millpond snapshot tank/vm1@clean --freeze /run/vm1.qga      while the guest agent has its filesystems frozen")]
pub struct Snapshot {
    /// POOL/VOL@SNAP, one or more; the part before the '@' may be a quoted pattern
    #[arg(required = true, value_name = "POOL/VOL@SNAP", add = candidates::new_snapshots())]
    names: Vec<String>,
    /// Take all snapshots at one instant
    #[arg(long)]
    group: bool,
    /// Names are POOL@SNAP: snapshot every volume of the pool at one instant
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Description, free text
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Destroy automatically after this time: 90s, 15m, 24h, 7d
    #[arg(long, value_name = "SPAN")]
    expire: Option<String>,
    /// Refuse release and destroy to everybody for this time, in which the pool is in service: 90s,
    /// 15m, 24h, 7d
    #[arg(long, value_name = "SPAN")]
    lock: Option<String>,
    /// Freeze the filesystems of the guest meanwhile: socket of its QEMU guest agent, in which
    /// {pool}, {volume} and {vmid} (100 of vm-100-disk-0) are replaced
    #[arg(long, value_name = "SOCKET")]
    freeze: Option<String>,
    /// Take no snapshot if a guest cannot be frozen [default: take it, and print a warning]
    #[arg(long, requires = "freeze")]
    freeze_required: bool,
}

impl Snapshot {
    pub async fn run(self, client: &Client) -> Outcome {
        let expires = from_now("--expire", self.expire.as_deref())?;
        let lock = from_now("--lock", self.lock.as_deref())?;
        if !self.recursive {
            let names = expand_new(client, &self.names).await?;
            return self.take(client, names, self.group, expires, lock).await;
        }
        let mut groups = Vec::with_capacity(self.names.len());
        for word in &self.names {
            groups.push(whole_pool(client, word).await?);
        }
        for names in groups {
            self.take(client, names, true, expires, lock).await?;
        }
        Ok(())
    }

    async fn take(&self, client: &Client, names: Vec<String>, group: bool, expires: Option<Timestamp>, lock: Option<Timestamp>) -> Outcome {
        let (description, freeze) = (self.description.clone(), self.freeze.clone());
        let request = CreateSnapshots {
            names,
            group,
            description,
            expires,
            lock,
            freeze,
            freeze_required: self.freeze_required,
            origin: None,
            export: None,
        };
        let created: Created = client.post("/v1/snapshots", &request).await?;
        created.not_frozen.iter().for_each(|reason| eprintln!("millpond: taken without freezing a guest: {reason}"));
        Ok(())
    }
}

/// Returns the time that lies `span` in the future.
fn from_now(option: &str, span: Option<&str>) -> Outcome<Option<Timestamp>> {
    let span = span.map(parse_span).transpose()?;
    let time = span.map(|span| now().checked_add(span)).transpose();
    time.map_err(|_| Failure::usage(format!("{option} is too far away; give a shorter time")))
}

/// Expands `POOL@SNAP` to a snapshot name for each volume.
async fn whole_pool(client: &Client, word: &str) -> Outcome<Vec<String>> {
    let Some((pool, snapshot)) = word.split_once('@').filter(|(pool, _)| !pool.contains('/')) else {
        return Err(Failure::usage(format!("'{word}' is not a pool's snapshot; with -r give POOL@SNAP")));
    };
    names::check(Kind::Pool, pool)?;
    names::check(Kind::Snapshot, snapshot)?;
    let volumes: Vec<Volume> = client.get(&format!("/v1/volumes?pool={}", quoted(pool))).await?;
    // a base cannot change, and has no snapshots of users
    let volumes: Vec<Volume> = volumes.into_iter().filter(|volume| volume.base.is_none()).collect();
    if volumes.is_empty() {
        return Err(Failure::failed(format!("pool '{pool}' has no volume to take a snapshot of; see 'millpond list'")));
    }
    Ok(volumes.into_iter().map(|volume| format!("{}@{snapshot}", volume.name)).collect())
}

/// Return a volume to a snapshot; newer snapshots stay, the old state is kept as a snapshot
///
/// Shut the guest down first: a filesystem that stays mounted during a rollback is destroyed by writes from its page cache.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond rollback tank/vm1@before-upgrade")]
pub struct Rollback {
    /// POOL/VOL@SNAP
    #[arg(add = candidates::snapshots())]
    name: String,
    /// Only report what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Roll back also while clients are connected
    #[arg(long)]
    force: bool,
    /// Accepted for symmetry with other commands; nothing is lost, so no confirmation is needed
    #[arg(short = 'y', long, hide = true)]
    _yes: bool,
}

impl Rollback {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        let request = millpond_api::Rollback { dry_run: self.dry_run, force: self.force, receive: false, export: None };
        let done: RolledBack = client.post(&format!("/v1/snapshots/{}/{}/rollback", name.of, name.snapshot), &request).await?;
        let kept = if self.dry_run { "would be kept" } else { "is kept" };
        write_out(&format!("the old head of {} {kept} as {}\n", name.of, done.kept_as))?;
        if self.dry_run && !self.force && !done.connected.is_empty() {
            return write_out(&refused_for(&done.connected));
        }
        Ok(())
    }
}

/// Create a writable volume from a snapshot or a publication
///
/// The clone shares blocks with the snapshot, which cannot be destroyed while the clone exists; see 'promote'. A clone of a publication
/// (see 'pool publish') can be used at once: its blocks are fetched when they are read, and kept. It needs the target until it has read
/// everything. With --full a clone is an independent copy; of a publication, the volume is called importing-NEW until it is complete.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond clone tank/golden@v3 tank/vm7
  millpond clone --full tank/golden@v3 ssd/vm8    copy every block, to any pool
  millpond clone --full -n tank/golden@v3 ssd/vm8
  millpond clone '/mnt/nas/images#golden@v3' ssd/vm9             blocks are fetched when they are read
  millpond clone --full '/mnt/nas/images#golden@v3' ssd/vm9
  millpond clone --full 's3://images/pond#tank/golden@v3' ssd/vm9 -o endpoint=https://store.example")]
pub struct Clone {
    /// POOL/VOL@SNAP; or TARGET#VOL@SNAP, TARGET#POOL/VOL@SNAP: a publication in a directory or s3://BUCKET/PREFIX
    #[arg(add = candidates::snapshots())]
    name: String,
    /// POOL/NEW; in the pool of the snapshot, unless --full is given
    #[arg(add = candidates::new_volumes())]
    new: String,
    /// Copy every block, to any pool: the new volume does not depend on the snapshot or publication
    #[arg(long)]
    full: bool,
    /// Only report what would be created
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Destroy what a clone of a publication that was killed has left, and start again
    #[arg(long, requires = "full")]
    restart: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl Clone {
    pub async fn run(self, client: &Client) -> Outcome {
        if Published::is(&self.name) {
            return self.published(client).await;
        }
        if self.store.are_given() || self.restart {
            return Err(Failure::usage("--restart, -o and --credentials are for publications; give TARGET#VOL@SNAP"));
        }
        let name: SnapshotName = self.name.parse()?;
        let new: VolumeName = self.new.parse()?;
        if self.dry_run && !self.full {
            return Err(Failure::usage("-n is for full copies and publications; give --full or TARGET#VOL@SNAP"));
        }
        if self.full {
            return full_copy(client, &name, &new, self.dry_run).await;
        }
        let request = CloneSnapshot { name: new.to_string() };
        client.post::<_, Volume>(&format!("/v1/snapshots/{}/{}/clone", name.of, name.snapshot), &request).await.map(drop)
    }

    /// Clones or copies a publication.
    async fn published(self, client: &Client) -> Outcome {
        let new: VolumeName = self.new.parse()?;
        let published = Published::parse(&self.name, self.store)?;
        if !self.full {
            return on_demand(client, &published, &new, self.dry_run).await;
        }
        let (target, name) = published.find().await?;
        let place = &published.place;
        let record = blocking(place, &target, move |target| target.record(&name)).await?;
        if self.dry_run {
            let volume = Incomplete::new(&new);
            if volume.check(client, self.restart).await? {
                write_out(&format!("would destroy {}\n", volume.part))?;
            }
            return write_out(&format!("would copy {} of {} to {new}\n", Size(record.size), self.name));
        }
        let mut signals = Signals::catch()?;
        let filler = Filler { place, target: &target, record: &record, verify: false };
        filler.volume(client, &mut signals, &new, self.restart).await
    }
}

/// Clones a publication whose blocks the daemon fetches when they are read.
async fn on_demand(client: &Client, published: &Published, new: &VolumeName, dry_run: bool) -> Outcome {
    let place = &published.place;
    let request = ClonePublication {
        name: new.to_string(),
        target: place.absolute(),
        publication: published.name.clone(),
        options: place.options(),
        credentials: place.credentials(),
        dry_run,
    };
    let cloned: ClonedPublication = client.post("/v1/publications/clone", &request).await?;
    if !dry_run {
        return Ok(());
    }
    let base = if cloned.new_base { format!("would create the base {}\n", cloned.base) } else { String::new() };
    write_out(&format!("{base}would clone {} of {} to {new}\n", Size(cloned.size), cloned.source.words()))
}

/// Starts a full copy in the daemon and shows its progress until the end. A signal cancels it.
async fn full_copy(client: &Client, name: &SnapshotName, new: &VolumeName, dry_run: bool) -> Outcome {
    let mut signals = Signals::catch()?;
    let request = CopySnapshot { name: new.to_string(), dry_run };
    let begun = Instant::now();
    let mut copy: FullCopy = client.post(&format!("/v1/snapshots/{}/{}/copy", name.of, name.snapshot), &request).await?;
    if dry_run {
        return write_out(&format!("would copy {} of {name} to {new}\n", Size(copy.total_bytes)));
    }
    let mut progress = Progress::new(format!("copy {new}"), copy.total_bytes);
    let mut turn = tokio::time::interval(LOOK);
    let path = format!("/v1/copies/{}", copy.id);
    while copy.state == FullCopyState::Running {
        copy = tokio::select! {
            () = signals.next() => client.delete(&path).await?,
            _ = turn.tick() => client.get(&path).await?,
        };
        progress.remaining(copy.total_bytes.saturating_sub(copy.done_bytes));
    }
    if let Some(why) = copy.error {
        progress.give_up();
        return Err(Failure::failed(format!("cannot copy '{name}' to '{new}': {why}")));
    }
    let rate = copy.done_bytes as f64 / begun.elapsed().as_secs_f64().max(0.001);
    progress.finish(&format!("{}, {}/s", Size(copy.done_bytes), Size(rate as u64)));
    Ok(())
}

/// Make a clone independent of its origin, which becomes a clone of it
///
/// The origin snapshot of the clone and older snapshots move to the clone; no block is copied. Their volume becomes a clone of the
/// newest of them, and can be destroyed with its remaining snapshots.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond promote -n tank/vm7\n  millpond promote tank/vm7 && millpond destroy -r tank/golden")]
pub struct Promote {
    /// POOL/VOL
    #[arg(add = candidates::volumes())]
    name: String,
    /// Only report which snapshots would move
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Promote {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let request = millpond_api::Promote { dry_run: self.dry_run };
        let done: Promoted = client.post(&format!("/v1/volumes/{name}/promote"), &request).await?;
        let (moves, becomes) = if self.dry_run { ("would move", "would become") } else { ("moved", "is now") };
        let moved = done.snapshots.iter().zip(&done.renamed).map(|(old, new)| format!("{moves} {old} to {new}\n"));
        let mut text: String = moved.collect();
        text += &format!("{} {becomes} a clone of {name}, which takes over {}\n", done.from, Size(done.moved_bytes));
        write_out(&text)
    }
}
