//! `pool add`, `pool replace` and `pool remove`: change the devices of a pool.

use std::path::Path;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::device_words;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::show_span;
use millpond_api::names::{self, Kind};
use millpond_api::path::absolute;
use millpond_api::size::Size;
use millpond_api::{
    AddDevices, ClassSpec, Device, DeviceNamed, DeviceRemoval, DeviceSpec, Job, Pool, PoolLayout, RemovalPlan, RemoveDevice, ReplaceDevice,
    Replacement,
};

use super::create::describe;
use super::spec::{Spec, warn, warn_of_spare, warn_of_weakness};
use crate::command::candidates;
use crate::command::pool::jobs;
use crate::output::{Format, say, write_out};

/// Shortest prefix of a device ID that the daemon accepts.
const LEAST_DIGITS: usize = 4;

/// Add devices to a pool while it is in use
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond pool add tank mirror /dev/sdd /dev/sde\n  millpond pool add tank cache /dev/nvme0n1\n  millpond pool add tank spare /dev/sdf\n  millpond pool add -n tank /srv/more.img:20G"
)]
pub struct Add {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    #[command(flatten)]
    spec: Spec,
    /// Overwrite devices that contain data; allow groups with less redundancy than the others, and files below /dev
    #[arg(short = 'f', long)]
    force: bool,
    /// Check everything, change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Add {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let groups = self.spec.groups()?;
        let would = format!("would add {} to pool {}\n", describe(&groups), self.name);
        let request = AddDevices { groups, force: self.force, dry_run: self.dry_run };
        let pool = client.post::<_, Pool>(&format!("/v1/pools/{}/devices", self.name), &request).await?;
        if let Some(PoolLayout::Known(layout)) = pool.layout {
            warn_of_weakness(&request.groups, layout);
        }
        warn(&pool);
        if self.dry_run {
            return write_out(&would);
        }
        if request.groups.iter().any(|group| group.class == ClassSpec::Spare) {
            warn_of_spare(&pool);
        }
        Ok(())
    }
}

/// Replace a device of a pool in use by another device
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool replace tank /dev/sdb /dev/sdf -n   report the old and the new device
  millpond pool replace tank /dev/sdb /dev/sdf
  millpond pool replace tank 1f0a93c4 /dev/sdf      a missing device, by its ID in 'pool status'

The new device may be a spare of the pool, which is then no longer a spare. A path of two devices, a present one and a missing one, is refused: give
the ID of the device.")]
pub struct Replace {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// The old device, as 'pool status' shows it: ID (or the first four digits or more of it), path, or serial number
    #[arg(add = candidates::devices())]
    old: String,
    /// The new device: a block device, a file, or FILE:SIZE; or a spare of the pool, as 'pool status' shows it
    #[arg(add = candidates::devices_and_files())]
    new: String,
    /// Overwrite a device that contains data; allow a file below /dev
    #[arg(short = 'f', long)]
    force: bool,
    /// Check everything, change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Wait until all data is copied
    #[arg(short = 'w', long)]
    wait: bool,
}

impl Replace {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let new = match spare(client, &self.name, &self.new).await? {
            Some(path) => DeviceSpec { path, create: None },
            None => {
                let mut groups = device_words::parse(std::slice::from_ref(&self.new), None, None)?;
                let new = groups.pop().and_then(|mut group| group.devices.pop());
                new.ok_or_else(|| Failure::usage(format!("'{}' is not a device; give a path, or FILE:SIZE", self.new)))?
            }
        };
        let old = named(client, &self.name, &self.old).await?;
        let request = ReplaceDevice { old, new, force: self.force, dry_run: self.dry_run };
        let done: Replacement = client.post(&format!("/v1/pools/{}/replace", self.name), &request).await?;
        warn(&done.pool);
        let spare = if done.spare { "the spare " } else { "" };
        let by = format!("{} of pool {} by {spare}{}", done.old, self.name, done.new);
        if self.dry_run {
            return write_out(&format!("would replace {by}\n"));
        }
        say(&format!("replacing {by}"))?;
        if self.wait { jobs::wait_devices(client, &self.name).await } else { Ok(()) }
    }
}

/// Whether a word may be a device ID or its prefix.
fn is_id(word: &str) -> bool {
    (LEAST_DIGITS..=16).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a device in a form that the daemon accepts: an ID or its prefix, a serial number, the
/// name of a device node, or an absolute path. A word that exists as a file is a path, even if it
/// looks like an ID.
pub(super) async fn named(client: &Client, pool: &str, word: &str) -> Outcome<String> {
    let path = absolute(Path::new(word)).display().to_string();
    if word.contains('/') || Path::new(word).exists() {
        return Ok(path);
    }
    if is_id(word) || word.parse::<u16>().is_ok_and(|number| number.to_string() == word) {
        return Ok(word.to_ascii_lowercase());
    }
    let pool: Pool = client.get(&format!("/v1/pools/{pool}")).await?;
    Ok(if pool.devices.iter().any(|device| is_called(device, word)) { word.to_owned() } else { path })
}

/// Whether a word is the device's serial number, or the last part of its path below /dev.
fn is_called(device: &Device, word: &str) -> bool {
    let node = |path: &String| path.starts_with("/dev/") && path.rsplit('/').next() == Some(word);
    let paths = std::iter::once(&device.path).chain(&device.was);
    device.serial.as_ref().is_some_and(|serial| serial.eq_ignore_ascii_case(word)) || paths.into_iter().any(node)
}

/// Returns the path of the single spare that a word names by ID prefix, serial number or device
/// node; `None` if there is none.
async fn spare(client: &Client, pool: &str, word: &str) -> Outcome<Option<String>> {
    if word.contains(['/', ':']) || Path::new(word).exists() {
        return Ok(None);
    }
    let listed: Pool = client.get(&format!("/v1/pools/{pool}")).await?;
    let begins = |device: &Device| is_id(word) && device.id.starts_with(&word.to_ascii_lowercase());
    let mut meant = listed.devices.iter().filter(|device| begins(device) || is_called(device, word));
    match (meant.next(), meant.next()) {
        (Some(device), None) => Ok(Some(device.path.clone())),
        (Some(_), Some(_)) => Err(Failure::failed(format!("'{word}' matches several devices of pool '{pool}'; name one by its ID"))),
        (None, _) => Ok(None),
    }
}

/// Remove a device from a pool in use: its data moves to the other devices
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool remove tank /dev/sdb -n          report data, time, and other devices removed
  millpond pool remove tank /dev/sdb
  millpond pool remove tank /dev/sdb --stop

Afterwards the pool does not need the device, and its label is erased. The other devices of a mirror that would have too few copies are removed with it.
'pool status' shows the progress. A cache device is removed at once, because it holds only copies. So is a spare, which holds no data.")]
pub struct Remove {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// The device, as 'pool status' shows it: ID (or the first four digits or more of it), path, or serial number
    #[arg(add = candidates::devices())]
    device: String,
    /// Stop a running removal; the device stays in the pool
    #[arg(long)]
    stop: bool,
    /// Only report how much data would move, how long that takes, and which other devices are removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Wait until the device is removed
    #[arg(short = 'w', long)]
    wait: bool,
    /// Output format of -n
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
}

impl Remove {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let device = named(client, &self.name, &self.device).await?;
        let request = RemoveDevice { device, stop: self.stop, dry_run: self.dry_run };
        let answer: DeviceRemoval = client.post(&format!("/v1/pools/{}/remove", self.name), &request).await?;
        let (device, name) = (&answer.device, &self.name);
        match (self.dry_run, self.stop) {
            (true, true) if self.format == Format::Json => {
                let text =
                    serde_json::to_string_pretty(&answer.stops).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
                return write_out(&(text + "\n"));
            }
            (true, true) => return write_out(&answer.stops.iter().map(|job| stops(job, &answer.pool)).collect::<String>()),
            (true, false) if self.format == Format::Json => {
                let text =
                    serde_json::to_string_pretty(&answer.plan).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
                return write_out(&(text + "\n"));
            }
            (true, false) => {
                let plan = answer.plan.as_ref().map_or_else(String::new, takes);
                return write_out(&format!("would remove {device} from pool {name}\n{plan}"));
            }
            (false, true) => say(&format!("keeping {device} in pool {name}"))?,
            (false, false) => say(&format!("removing {device} from pool {name}"))?,
        }
        if !self.wait {
            return Ok(());
        }
        jobs::wait_devices(client, name).await?;
        if self.stop {
            return Ok(());
        }
        let pool: Pool = client.get(&format!("/v1/pools/{name}")).await?;
        if !device.id.is_empty() && pool.devices.iter().any(|listed| listed.id == device.id) {
            return Err(Failure::failed(format!(
                "{device} stays in pool {name}: there is not enough space for its data, or its removal was stopped; add a device, or destroy data, and try again"
            )));
        }
        match left_with(&answer) {
            others if others.is_empty() => say(&format!("removed {device} from pool {name}")),
            others => write_out(&format!(
                "removed {device} from pool {name}, and with it {}: too few devices stayed for their layout\n",
                others.join(", ")
            )),
        }
    }
}

/// Lists the devices that a removal takes along, with all their names if the pool still lists them.
fn left_with(answer: &DeviceRemoval) -> Vec<String> {
    let others = answer.plan.iter().flat_map(|plan| &plan.leaves_with_it);
    let named = |path: &String| {
        let listed = answer.pool.devices.iter().find(|device| device.path == *path);
        listed.map_or_else(|| path.clone(), |device| DeviceNamed { size: 0, ..DeviceNamed::of(device) }.to_string())
    };
    others.map(named).collect()
}

/// Describes the removal that `--stop` would end, for a dry run.
fn stops(job: &Job, pool: &Pool) -> String {
    let total = job.done_bytes + job.remaining_bytes;
    format!("would stop {}: {} of {} are moved, the device would stay in pool {}\n", job.id, Size(job.done_bytes), Size(total), pool.name)
}

/// Formats the plan of a removal.
fn takes(plan: &RemovalPlan) -> String {
    let mut text = String::new();
    if plan.moved_bytes > 0 {
        let (moved, rate, span) = (Size(plan.moved_bytes), Size(plan.rate), show_span(plan.seconds));
        text += &format!("{moved} would move to other devices: about {span} at {rate}/s ({})\n", plan.rate_of);
    }
    if plan.in_steps {
        text += "the others lack the space for all of it at once: it moves in steps, and some of it more than once\n";
    }
    for path in &plan.leaves_with_it {
        text += &format!("{path} would leave with it: too few devices stay for its layout\n");
    }
    text
}

#[cfg(test)]
mod tests {
    //! Tests of the output of `-n`.
    use super::*;

    #[test]
    fn a_rehearsal_says_how_much_how_long_and_what_else() {
        let mut plan = RemovalPlan {
            moved_bytes: 3 << 30,
            in_steps: true,
            leaves_with_it: vec!["/dev/sdc".to_owned()],
            rate: 40 << 20,
            rate_of: "job_rate".to_owned(),
            seconds: 77,
        };
        let text = takes(&plan);
        assert!(text.starts_with("3G would move to other devices: about 1 min 17 s at 40M/s (job_rate)\n"), "{text}");
        assert!(
            text.contains("in steps") && text.ends_with("/dev/sdc would leave with it: too few devices stay for its layout\n"),
            "{text}"
        );
        plan = RemovalPlan { moved_bytes: 0, in_steps: false, leaves_with_it: Vec::new(), ..plan };
        assert_eq!(takes(&plan), "");
    }
}
