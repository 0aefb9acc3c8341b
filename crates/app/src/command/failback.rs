//! `failback`: brings the work back to the volume that was sent, from where it was failed over to.

use std::path::Path;
use std::process::Stdio;

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{FAILBACK, FAILBACK_MARK, SnapshotIdentity, is_failover};
use millpond_api::instant;
use millpond_api::names::VolumeName;
use millpond_api::send_target::{OwnProgram, SendTarget};
use millpond_api::{DiffExtent, Export, Rename, Snapshot};
use millpond_images::stream::{StreamSnapshot, incomplete};
use tokio::process::Command;

use super::candidates;
use super::consent::Consent;
use super::receive::snapshots_of;
use crate::output::write_out;

/// Start of the new names of snapshots whose names the other side has used again.
const BEFORE: &str = "before-failback-";

/// Bring the work back to a volume, from where it was failed over to
///
/// Rolls the volume back to the newest snapshot that both sides have, and receives everything newer from the other side, with a last
/// snapshot 'failback-TIME'. The state of this side since then stays as a snapshot 'pre-rollback-TIME'.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond failback -n tank/vm1 --from ssh://host2/tank    what each side has that the other lacks
  millpond failback -y tank/vm1 --from ssh://host2/tank

End the guest at the other side first. A policy that sends the volume there goes on with its next run.")]
pub struct Failback {
    /// POOL/VOL
    #[arg(add = candidates::volumes())]
    name: String,
    /// Where the volume is now: POOL, ssh://[USER@]HOST[:PORT]/POOL, or unix:/path/of/socket/POOL
    #[arg(long, value_name = "TARGET")]
    from: String,
    #[command(flatten)]
    consent: Consent,
}

/// Both sides of a volume.
struct Sides {
    here: Vec<Snapshot>,
    there: Vec<Snapshot>,
    /// The newest snapshot that both have, and its name there.
    common: (StreamSnapshot, StreamSnapshot),
}

/// Returns the part of a snapshot's name after `@`.
fn part(snapshot: &Snapshot) -> &str {
    snapshot.name.rsplit_once('@').map_or("", |(_, name)| name)
}

impl Sides {
    fn of(here: Vec<Snapshot>, there: Vec<Snapshot>) -> Outcome<Sides> {
        let find = |identity: &SnapshotIdentity| here.iter().filter_map(StreamSnapshot::of).find(|own| own.identity == *identity);
        let common = there.iter().filter_map(StreamSnapshot::of).rev().find_map(|other| Some((find(&other.identity)?, other)));
        let common =
            common.ok_or_else(|| Failure::failed("the two sides have no snapshot in common; send the volume whole, to a new name"))?;
        Ok(Sides { here, there, common })
    }

    fn newer<'s>(all: &'s [Snapshot], than: &SnapshotIdentity) -> impl Iterator<Item = &'s Snapshot> {
        let at = all.iter().rposition(|snapshot| snapshot.identity.as_ref() == Some(than));
        all.iter().skip(at.map_or(0, |at| at + 1)).filter(|snapshot| StreamSnapshot::of(snapshot).is_some())
    }

    /// Snapshots that only this side has since the common one.
    fn only_here(&self) -> Vec<&Snapshot> {
        Sides::newer(&self.here, &self.common.0.identity).collect()
    }

    /// Snapshots that only the other side has since then.
    fn only_there(&self) -> Vec<&Snapshot> {
        Sides::newer(&self.there, &self.common.0.identity).collect()
    }

    /// Refuses to roll the side back on which the work goes on.
    fn check_direction(&self, other: &Other<'_>) -> Outcome {
        if let Some(begun) = self.only_here().into_iter().find(|snapshot| is_failover(snapshot)) {
            let next = "run 'millpond failback' at the other side";
            return Err(Failure::failed(format!("the work goes on here since '{}', and would be rolled back; {next}", begun.name)));
        }
        if !self.there.iter().any(is_failover) {
            let next = "nothing is to be brought back; 'millpond failover' there comes first";
            return Err(Failure::failed(format!("'{}' was not failed over, so {next}", other.name)));
        }
        Ok(())
    }

    /// Snapshots of this side whose names the other side has given to newer ones.
    fn in_the_way(&self) -> Vec<&Snapshot> {
        let there = self.only_there();
        let taken = |snapshot: &&Snapshot| there.iter().any(|other| part(other) == part(snapshot) && other.identity != snapshot.identity);
        self.here.iter().filter(taken).collect()
    }
}

impl Failback {
    pub async fn run(self, client: &Client, socket: &Path) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let target: SendTarget = self.from.parse::<SendTarget>().map_err(|error| Failure::usage(error.message))?;
        let Some(pool) = target.pool() else {
            return Err(Failure::usage("a backup has no volume that goes on; give the pool to which the volume was failed over"));
        };
        let program = std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
        let own = OwnProgram { program: program.display().to_string(), socket: socket.to_owned() };
        let there = format!("{pool}/{}", name.volume);
        if target == SendTarget::Pool(name.pool.clone()) {
            return Err(Failure::usage("the other side is the same pool; give the pool to which the volume was failed over"));
        }
        let other = Other { target: &target, own: &own, name: there };
        self.fail_back(client, &name, &other).await.map_err(|failure| failure.during(format!("cannot fail back '{name}'")))
    }

    async fn fail_back(&self, client: &Client, name: &VolumeName, other: &Other<'_>) -> Outcome {
        let here = snapshots_of(client, name).await?;
        let here = here.ok_or_else(|| Failure::failed(format!("there is no such volume; see 'millpond list {}'", name.pool)))?;
        let token = incomplete(&here).map(|receiving| receiving.token().to_string());
        let sides = Sides::of(here, other.snapshots().await?)?;
        sides.check_direction(other)?;
        let written = token.is_none() && is_written(client, name, &sides.common.0).await?;
        describe(name, other, &sides, written)?;
        let in_use = self.check_use(client, name, other).await;
        if self.consent.dry_run {
            return in_use.or_else(|failure| line(&format!("it would be refused: {failure}")));
        }
        in_use?;
        if written {
            let lost = format!("the present state of {name} since '{}' (a snapshot keeps it)", sides.common.0.name);
            self.consent.ask("fail back", &lost)?;
        }
        for snapshot in sides.in_the_way() {
            let to = format!("{name}@{BEFORE}{}", part(snapshot));
            let path = format!("/v1/snapshots/{name}/{}/rename", part(snapshot));
            client.post::<_, ()>(&path, &Rename { name: to.clone(), ..Rename::default() }).await?;
            line(&format!("renamed {} to {to}", snapshot.name))?;
        }
        let last = instant::now().strftime(&format!("{FAILBACK}%Y%m%dT%H%M%S%3fZ")).to_string();
        other.output(&["snapshot", &format!("{}@{last}", other.name), "--description", FAILBACK_MARK]).await?;
        let range = format!("{}@{}%{last}", other.name, sides.common.1.name);
        let resume: Vec<&str> = token.iter().flat_map(|token| ["--resume", token.as_str()]).collect();
        let sender = other.target.command(other.own, &[&["send", range.as_str()], resume.as_slice()].concat());
        let receive = name.to_string();
        let receiver = other.own.here(&[&["receive", receive.as_str(), "--force"], resume.as_slice()].concat());
        transfer(&sender, &receiver).await?;
        line(&format!("{name} has the state of {}@{last}; leave the volume there unwritten, and policies send to it again", other.name))
    }

    /// Refuses a volume that is in use at either side.
    async fn check_use(&self, client: &Client, name: &VolumeName, other: &Other<'_>) -> Outcome {
        let exports: Vec<Export> = client.get("/v1/exports").await?;
        // a transfer of an earlier attempt ends its own
        let is_users =
            |export: &&Export| export.name == name.to_string() && !export.unix.as_ref().is_some_and(|unix| unix.contains("/transient-"));
        if let Some(export) = exports.iter().find(is_users) {
            return Err(Failure::failed(format!("export {} serves it; run 'millpond unexport {}' first", export.id, export.id)));
        }
        let there: Vec<OtherExport> = other.list(&["exports", "--format", "json"]).await?;
        if let Some(export) = there.iter().find(|export| export.name == other.name && export.clients > 0) {
            let why = format!("clients use '{}' at the other side (export {}); end the guest there first", other.name, export.id);
            return Err(Failure::failed(why));
        }
        Ok(())
    }
}

/// The columns of an export of the other side that matter.
#[derive(serde::Deserialize)]
struct OtherExport {
    id: u64,
    name: String,
    clients: u64,
}

/// The volume at the other side.
struct Other<'a> {
    target: &'a SendTarget,
    own: &'a OwnProgram,
    name: String,
}

impl Other<'_> {
    async fn snapshots(&self) -> Outcome<Vec<Snapshot>> {
        parsed(&run(&self.target.list_command(self.own, &self.name)).await?)
    }

    async fn output(&self, words: &[&str]) -> Outcome<Vec<u8>> {
        run(&self.target.command(self.own, words)).await
    }

    async fn list<T: serde::de::DeserializeOwned>(&self, words: &[&str]) -> Outcome<T> {
        parsed(&self.output(words).await?)
    }
}

fn parsed<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Outcome<T> {
    serde_json::from_slice(bytes).map_err(|e| Failure::failed(format!("cannot read the answer of the other side: {e}")))
}

fn process(command: &[String]) -> Outcome<Command> {
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::failed("no command"))?;
    let mut process = Command::new(program);
    process.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    Ok(process)
}

/// Runs a command of the other side; returns its output.
async fn run(command: &[String]) -> Outcome<Vec<u8>> {
    let ended = process(command)?.output().await.map_err(|e| Failure::failed(format!("cannot run a command: {e}")))?;
    if ended.status.success() {
        return Ok(ended.stdout);
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.trim().lines().last().unwrap_or("it gives no reason");
    Err(Failure::failed(format!("the other side: {}", last.strip_prefix("millpond: ").unwrap_or(last))))
}

/// Runs two commands, the output of the first of which is the input of the second. Their messages
/// are shown.
async fn transfer(sender: &[String], receiver: &[String]) -> Outcome {
    let cannot = |e: std::io::Error| Failure::failed(format!("cannot run a command: {e}"));
    let (reader, writer) = std::io::pipe().map_err(cannot)?;
    let mut receiver = process(receiver)?.stdin(reader).spawn().map_err(cannot)?;
    let mut sender = process(sender)?.stdout(writer).spawn().map_err(cannot)?;
    let (sent, received) = tokio::join!(sender.wait(), receiver.wait());
    match [sent, received].into_iter().all(|ended| ended.is_ok_and(|status| status.success())) {
        true => Ok(()),
        false => Err(Failure::failed("not everything arrived, for the reason above; run the command again, it goes on there")),
    }
}

fn line(text: &str) -> Outcome {
    write_out(&format!("{text}\n"))
}

/// True if the volume was written since a snapshot.
async fn is_written(client: &Client, name: &VolumeName, since: &StreamSnapshot) -> Outcome<bool> {
    let older = quoted(&format!("{name}@{}", since.name));
    let extents: Vec<DiffExtent> = client.get(&format!("/v1/diff?older={older}&newer={}", quoted(&name.to_string()))).await?;
    Ok(!extents.is_empty())
}

/// Lists what each side has that the other lacks.
fn describe(name: &VolumeName, other: &Other<'_>, sides: &Sides, written: bool) -> Outcome {
    let since = sides.common.0.created.strftime("%Y-%m-%dT%H:%M:%S%.3fZ");
    line(&format!("newest common snapshot: {name}@{} of {since}", sides.common.0.name))?;
    for snapshot in sides.only_here() {
        line(&format!("only here, stays as a snapshot: {}", snapshot.name))?;
    }
    if written {
        line(&format!("only here: what was written since; it stays as a snapshot {name}@pre-rollback-TIME"))?;
    }
    for snapshot in sides.only_there() {
        line(&format!("only there, is received: {}", snapshot.name))?;
    }
    for snapshot in sides.in_the_way() {
        line(&format!("gets another name here, because the other side has one of this name: {}", snapshot.name))?;
    }
    line(&format!("only there, is received: a new snapshot {}@failback-TIME of the state there", other.name))
}

#[cfg(test)]
mod tests;
