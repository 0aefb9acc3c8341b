//! Subcommands of `policy`.

use clap::{Args, Subcommand};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::{PolicyRun, PolicyVolumes, RunPolicy, SetPolicy};

use super::properties::{Create, SETTABLE, assign};
use super::show::{List, Show};
use crate::command::candidates;
use crate::command::globs::{Wanted, expand};
use crate::output::{Column, Format, Listing, Shown, print, write_out};

/// Verbs.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Example:\n  millpond policy create hourly --keep '1h:2d 1d:30d'\n  millpond policy attach hourly tank/vm1\n  millpond policy list"
)]
pub enum Policy {
    Create(Create),
    Attach(Attach),
    List(List),
    Show(Show),
    Set(Set),
    Detach(Detach),
    Destroy(Destroy),
    Run(Run),
}

impl Policy {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Policy::Create(create) => client.post::<_, millpond_api::Policy>("/v1/policies", &create.request()?).await.map(drop),
            Policy::Attach(attach) => attach.run(client).await,
            Policy::List(list) => list.run(client).await,
            Policy::Show(show) => show.run(client).await,
            Policy::Set(set) => set.run(client).await,
            Policy::Detach(detach) => detach.run(client).await,
            Policy::Destroy(destroy) => destroy.run(client).await,
            Policy::Run(run) => run.run(client).await,
        }
    }
}

/// Returns the path of a policy.
///
/// # Errors
/// Wrong usage, when it cannot be a name.
pub fn path(name: &str) -> Outcome<String> {
    names::check(Kind::Snapshot, name)?;
    Ok(format!("/v1/policies/{name}"))
}

/// Put volumes under a policy
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy attach continuous tank/vm1 tank/vm2\n  millpond policy attach continuous 'tank/vm*'")]
pub struct Attach {
    /// Name of the policy
    #[arg(add = candidates::policies())]
    name: String,
    /// POOL/VOL, one or more, or quoted patterns
    #[arg(required = true, value_name = "POOL/VOL", add = candidates::volumes())]
    volumes: Vec<String>,
}

impl Attach {
    async fn run(self, client: &Client) -> Outcome {
        let volumes = expand(client, &self.volumes, Wanted::Volumes).await?;
        client.post::<_, millpond_api::Policy>(&format!("{}/attach", path(&self.name)?), &PolicyVolumes { volumes }).await.map(drop)
    }
}

/// Remove volumes from a policy; their snapshots stay, and are no longer thinned
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy detach continuous tank/vm1")]
pub struct Detach {
    /// Name of the policy
    #[arg(add = candidates::policies())]
    name: String,
    /// POOL/VOL, one or more
    #[arg(required = true, value_name = "POOL/VOL", add = candidates::volumes())]
    volumes: Vec<String>,
}

impl Detach {
    async fn run(self, client: &Client) -> Outcome {
        let request = PolicyVolumes { volumes: self.volumes };
        client.post::<_, millpond_api::Policy>(&format!("{}/detach", path(&self.name)?), &request).await.map(drop)
    }
}

/// Change properties of a policy: keep, group, at, zone, lock, expire, prune, template, freeze, freeze_required, send
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond policy set keep='1h:7d 1d:60d' hourly
  millpond policy set lock=7d expire=none hourly     for snapshots that are taken later
  millpond policy set send=ssh://host2/tank hourly   and send=none
  millpond policy set -n keep=1h:1d hourly           what its next run would destroy then")]
pub struct Set {
    /// PROP=VAL, followed by the name of the policy
    #[arg(value_name = "PROP=VAL NAME", num_args = 1.., required = true, add = candidates::settings_of_policies(SETTABLE))]
    words: Vec<String>,
    /// Change nothing; only list the snapshots that the next run would take and destroy then
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Set {
    async fn run(self, client: &Client) -> Outcome {
        let (assignments, names): (Vec<&String>, Vec<&String>) = self.words.iter().partition(|word| word.contains('='));
        let [name] = names.as_slice() else {
            return Err(Failure::usage("give PROP=VAL and then the name of one policy"));
        };
        if assignments.is_empty() {
            return Err(Failure::usage(format!("nothing is set; give for example keep='1h:7d 1d:60d' {name}")));
        }
        let mut change = SetPolicy::default();
        assignments.iter().try_for_each(|word| assign(word, &mut change))?;
        if self.dry_run {
            let request = RunPolicy { dry_run: true, change: Some(change) };
            let done = client.post(&format!("{}/run", path(name)?), &request).await?;
            return report(done, true, &Listing::default());
        }
        client.patch::<_, millpond_api::Policy>(&path(name)?, &change).await.map(drop)
    }
}

/// Destroy a policy; its snapshots stay
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy destroy hourly")]
pub struct Destroy {
    /// Name of the policy
    #[arg(add = candidates::policies())]
    name: String,
    /// Only report what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Accepted for symmetry with other commands; no snapshot is lost, so no confirmation is needed
    #[arg(short = 'y', long, hide = true)]
    _yes: bool,
}

impl Destroy {
    async fn run(self, client: &Client) -> Outcome {
        let of = if self.dry_run { "?dry_run=true" } else { "" };
        let policy: millpond_api::Policy = client.delete(&format!("{}{of}", path(&self.name)?)).await?;
        if self.dry_run {
            let names: Vec<&str> = policy.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let volumes = if names.is_empty() { "no volume".to_owned() } else { names.join(", ") };
            return write_out(&format!("would destroy policy {}, with {volumes}; the snapshots would stay\n", policy.name));
        }
        Ok(())
    }
}

/// Run a policy now: take snapshots, and destroy superfluous ones
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy run -n hourly     what would be taken and destroyed\n  millpond policy run hourly")]
pub struct Run {
    /// Name of the policy
    #[arg(add = candidates::policies())]
    name: String,
    /// Only report what would be taken and destroyed
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    how: Listing,
}

/// A line of the report.
#[derive(serde::Serialize)]
struct Done {
    action: &'static str,
    name: String,
}

const DONE: &[Column<Done>] = &[
    Column { name: "action", cell: |d| crate::output::Cell::Text(d.action.to_owned()), shown: Shown::Always },
    Column { name: "name", cell: |d| crate::output::Cell::Text(d.name.clone()), shown: Shown::Always },
];

impl Run {
    async fn run(self, client: &Client) -> Outcome {
        let request = RunPolicy { dry_run: self.dry_run, change: None };
        let done: PolicyRun = client.post(&format!("{}/run", path(&self.name)?), &request).await?;
        report(done, self.dry_run, &self.how)
    }
}

/// Prints the result of a run, or of a dry run.
fn report(done: PolicyRun, dry_run: bool, how: &Listing) -> Outcome {
    if how.format == Format::Json && how.columns.is_empty() {
        let all = serde_json::to_string_pretty(&done).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
        return write_out(&(all + "\n"));
    }
    let words = if dry_run { ["would take", "would destroy", "would keep"] } else { ["taken", "destroyed", "kept"] };
    done.not_frozen.iter().for_each(|reason| eprintln!("millpond: a guest was not frozen: {reason}"));
    if !done.sending.is_empty() {
        eprintln!("millpond: sending {}; 'millpond policy show' has the state", done.sending.join(", "));
    }
    let lists = words.into_iter().zip([done.taken, done.destroyed, done.kept]);
    let rows: Vec<Done> = lists.flat_map(|(action, names)| names.into_iter().map(move |name| Done { action, name })).collect();
    print(&rows, DONE, how)
}
