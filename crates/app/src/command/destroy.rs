//! `destroy`: destroys volumes, snapshots and ranges of snapshots.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::Doomed;
use millpond_api::size::Size;

use super::candidates;
use super::consent::Consent;
use super::globs::{Wanted, expand};
use super::pool::jobs::{wait_reclaimed, wait_wipe};
use crate::output::{Format, write_out};

/// Destroy volumes, snapshots, and ranges of snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond destroy -n tank/vm1@monday%friday    report what would be destroyed and freed
  millpond destroy -y tank/vm1@%                all snapshots of a volume
  millpond destroy -y -r tank/vm1               a volume with its snapshots
  millpond destroy -y -w --wipe zero tank/vm1   also overwrite its data on the devices
  millpond destroy -n 'tank/vm*@auto-*'         a quoted pattern: all matches, or none
  millpond destroy -y -r --unexport tank/vm1    end its exports first

Snapshots with holds are never destroyed; see 'millpond release --help'. --wipe: see 'millpond pool wipe --help'.")]
pub struct Destroy {
    /// POOL/VOL, POOL/VOL@SNAP, POOL/VOL@FIRST%LAST, POOL/VOL@%, one or more, or quoted patterns
    #[arg(required = true, value_name = "NAME", add = candidates::names())]
    names: Vec<String>,
    /// Destroy volumes together with their snapshots
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Also destroy clones
    #[arg(short = 'R', long)]
    clones: bool,
    /// End exports of the destroyed objects first; refused while clients are connected
    #[arg(long)]
    unexport: bool,
    /// With --unexport: disconnect connected clients
    #[arg(long, requires = "unexport")]
    force: bool,
    /// none, discard or zero: make the destroyed data unreadable on the devices, as a background job
    #[arg(long, short_alias = 'o', value_name = "MODE")]
    wipe: Option<String>,
    #[command(flatten)]
    consent: Consent,
    /// Wait until the space is free, and wiped with --wipe
    #[arg(short = 'w', long)]
    wait: bool,
    /// Do not wait (the default)
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Exact numbers
    #[arg(short = 'p', long)]
    parsable: bool,
}

impl Destroy {
    pub async fn run(self, client: &Client) -> Outcome {
        let wipe = self.wipe.as_deref().map_or(Ok(None), wipe_of)?;
        let names = expand(client, &self.names, Wanted::Doomed).await?;
        let pools = by_pool(names)?;
        let mut planned = nothing(true);
        for names in pools.values() {
            add(&mut planned, client.post("/v1/destroy", &self.request(names, wipe, true)).await?);
        }
        if self.consent.dry_run {
            return self.tell(&planned);
        }
        if !planned.destroyed.is_empty() {
            self.consent.ask_for_all("destroy", &planned.destroyed)?;
        }
        let mut done = nothing(false);
        for names in pools.values() {
            match client.post("/v1/destroy", &self.request(names, wipe, false)).await {
                Ok(gone) => add(&mut done, gone),
                Err(failure) => {
                    // report what other pools have destroyed, although this pool failed
                    if !done.destroyed.is_empty() {
                        self.tell(&done)?;
                    }
                    return Err(failure);
                }
            }
        }
        self.tell(&done)?;
        if self.wait {
            for pool in pools.keys() {
                wait_reclaimed(client, pool).await?;
                if wipe.is_some() {
                    wait_wipe(client, pool).await?;
                }
            }
        }
        Ok(())
    }

    fn request(&self, names: &[String], wipe: Option<millpond_api::WipeMode>, dry_run: bool) -> millpond_api::Destroy {
        let (name, more) = names.split_first().map(|(name, more)| (name.clone(), more.to_vec())).unwrap_or_default();
        let (recursive, clones, unexport, force) = (self.recursive, self.clones, self.unexport, self.force);
        millpond_api::Destroy { name, more, recursive, clones, unexport, force, wipe, dry_run, receive: false, export: None }
    }

    fn tell(&self, what: &millpond_api::Destroyed) -> Outcome {
        if self.format == Format::Json {
            let text = serde_json::to_string_pretty(what).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        let (destroyed, frees) = if what.dry_run { ("would destroy", "would free") } else { ("destroyed", "freed") };
        let mut text = String::new();
        let ended = if what.dry_run { "would end" } else { "ended" };
        for id in &what.unexported {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{ended} export {id}");
        }
        for name in &what.destroyed {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{destroyed} {name}");
        }
        let least = if what.exact { "" } else { "at least " };
        let bytes = what.freed_bytes;
        let _ = match self.parsable {
            false if bytes == 0 && what.exact => writeln!(text, "{frees} 0B"),
            // space that several snapshots share is known only after they are destroyed
            false if bytes == 0 => writeln!(text, "{frees} blocks that only they share, which are not counted beforehand"),
            false if bytes < 1024 => writeln!(text, "{frees} {least}{}", Size(bytes)),
            true => writeln!(text, "{frees} {least}{bytes}"),
            false => writeln!(text, "{frees} {least}{} ({bytes} bytes)", Size(bytes)),
        };
        if let Some(wiping) = &what.wiping {
            let _ = writeln!(text, "{}", wiping_line(wiping, what.dry_run));
        }
        write_out(&text)
    }
}

/// Groups names by pool, because each pool decides on all of its names in one request.
fn by_pool(names: Vec<String>) -> Outcome<BTreeMap<String, Vec<String>>> {
    let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names {
        let pool = name.parse::<Doomed>()?.of().pool.clone();
        pools.entry(pool).or_default().push(name);
    }
    Ok(pools)
}

fn nothing(dry_run: bool) -> millpond_api::Destroyed {
    millpond_api::Destroyed { destroyed: Vec::new(), freed_bytes: 0, exact: true, wiping: None, unexported: Vec::new(), dry_run }
}

/// Adds the result of another pool.
fn add(sum: &mut millpond_api::Destroyed, more: millpond_api::Destroyed) {
    sum.destroyed.extend(more.destroyed);
    sum.freed_bytes += more.freed_bytes;
    sum.exact &= more.exact;
    sum.unexported.extend(more.unexported);
    sum.wiping = match (sum.wiping.take(), more.wiping) {
        (Some(a), Some(b)) => {
            Some(millpond_api::Wiping { moved_bytes: a.moved_bytes + b.moved_bytes, erased_bytes: a.erased_bytes + b.erased_bytes })
        }
        (a, b) => a.or(b),
    };
}

/// Parses the value of `--wipe`, or of `-o`.
fn wipe_of(option: &str) -> Result<Option<millpond_api::WipeMode>, Failure> {
    match option.strip_prefix("wipe=").unwrap_or(option) {
        "none" => Ok(None),
        "discard" => Ok(Some(millpond_api::WipeMode::Discard)),
        "zero" => Ok(Some(millpond_api::WipeMode::Zero)),
        _ => Err(Failure::usage(format!("'{option}' is not a wipe mode; give none, discard or zero"))),
    }
}

/// Describes a wipe.
pub fn wiping_line(wiping: &millpond_api::Wiping, dry_run: bool) -> String {
    let (moved, erased) = (Size(wiping.moved_bytes), Size(wiping.erased_bytes));
    match dry_run {
        true => format!("would wipe about {erased} on each copy, and move {moved} of live data in the same segments"),
        false => {
            format!("wiping about {erased} on each copy, and moving {moved} of live data in the same segments; see 'millpond pool jobs'")
        }
    }
}
