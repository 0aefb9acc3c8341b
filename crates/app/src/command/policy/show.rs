//! `policy list` and `policy show`.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{Policy, PolicyVolume};

use crate::command::candidates;
use crate::output::{Cell, Column, Format, Listing, Shown, print, print_pairs, write_out};

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn span(seconds: Option<u64>) -> Cell {
    seconds.map_or(Cell::None, Cell::Seconds)
}

/// Columns of policies.
const POLICY: &[Column<Policy>] = &[
    Column { name: "name", cell: |p| text(&p.name), shown: Shown::Always },
    Column { name: "keep", cell: |p| text(&p.keep), shown: Shown::Always },
    Column { name: "at", cell: |p| Cell::text_or_none(p.at.as_deref()), shown: Shown::Always },
    Column { name: "zone", cell: |p| text(&p.zone), shown: Shown::Always },
    Column { name: "group", cell: |p| text(if p.group { "on" } else { "off" }), shown: Shown::Always },
    Column { name: "lock_seconds", cell: |p| span(p.lock_seconds), shown: Shown::Always },
    Column { name: "expire_seconds", cell: |p| span(p.expire_seconds), shown: Shown::OnRequest },
    Column { name: "prune", cell: |p| p.prune.map_or(Cell::None, |order| Cell::Count(order.into())), shown: Shown::OnRequest },
    Column { name: "template", cell: |p| text(&p.template), shown: Shown::OnRequest },
    Column { name: "freeze", cell: |p| Cell::text_or_none(p.freeze.as_deref()), shown: Shown::OnRequest },
    Column { name: "freeze_required", cell: |p| text(if p.freeze_required { "on" } else { "off" }), shown: Shown::OnRequest },
    Column { name: "keeps", cell: |p| Cell::Count(p.keeps), shown: Shown::OnRequest },
    Column { name: "volumes", cell: |p| Cell::Count(p.volumes.len() as u64), shown: Shown::Always },
    Column { name: "state", cell: |p| text(p.state.as_str()), shown: Shown::Always },
    Column { name: "send", cell: |p| Cell::text_or_none(p.send.as_deref()), shown: Shown::Always },
    Column { name: "lag_seconds", cell: |p| span(p.lag_seconds), shown: Shown::Always },
    Column { name: "reason", cell: |p| Cell::text_or_none(p.reason.as_deref()), shown: Shown::OnRequest },
    Column { name: "taken", cell: |p| Cell::Count(p.taken), shown: Shown::OnRequest },
    Column { name: "destroyed", cell: |p| Cell::Count(p.destroyed), shown: Shown::OnRequest },
    Column { name: "missed", cell: |p| Cell::Count(p.missed), shown: Shown::OnRequest },
    Column { name: "not_frozen", cell: |p| Cell::Count(p.not_frozen), shown: Shown::OnRequest },
];

/// Columns of the volumes of a policy.
const VOLUME: &[Column<PolicyVolume>] = &[
    Column { name: "name", cell: |v| text(&v.name), shown: Shown::Always },
    Column { name: "state", cell: |v| text(v.state.as_str()), shown: Shown::Always },
    Column { name: "snapshots", cell: |v| v.snapshots.map_or(Cell::None, Cell::Count), shown: Shown::Always },
    Column { name: "oldest", cell: |v| v.oldest.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "newest", cell: |v| v.newest.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "next", cell: |v| v.next.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "at_target", cell: |v| Cell::text_or_none(v.send.as_ref().and_then(|s| s.newest.as_deref())), shown: Shown::OnRequest },
    Column { name: "sent", cell: |v| v.send.as_ref().and_then(|s| s.sent).map_or(Cell::None, Cell::Time), shown: Shown::OnRequest },
    Column { name: "lag_seconds", cell: |v| span(v.send.as_ref().and_then(|s| s.lag_seconds)), shown: Shown::OnRequest },
    Column { name: "sending", cell: sending, shown: Shown::OnRequest },
    Column { name: "send_error", cell: |v| Cell::text_or_none(v.send.as_ref().and_then(|s| s.error.as_deref())), shown: Shown::OnRequest },
    Column { name: "reason", cell: |v| Cell::text_or_none(v.reason.as_deref()), shown: Shown::OnRequest },
    Column { name: "not_frozen", cell: |v| Cell::text_or_none(v.not_frozen.as_deref()), shown: Shown::OnRequest },
];

/// State of the running send.
fn sending(volume: &PolicyVolume) -> Cell {
    let send = volume.send.as_ref();
    let running = send.filter(|send| send.running).map(|send| send.progress.as_deref().unwrap_or("begins"));
    let waits = send.filter(|send| send.retry.is_some()).map(|_| "waits to try again");
    Cell::text_or_none(running.or(waits))
}

/// Columns of sends, shown for policies that send.
const SENDS: [&str; 6] = ["name", "at_target", "sent", "lag_seconds", "sending", "send_error"];

/// List policies
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy list\n  millpond policy list --format json")]
pub struct List {
    #[command(flatten)]
    how: Listing,
}

impl List {
    pub async fn run(self, client: &Client) -> Outcome {
        let policies: Vec<Policy> = client.get("/v1/policies").await?;
        print(&policies, POLICY, &self.how)
    }
}

/// Show a policy, its volumes, and when it runs next
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond policy show continuous\n  millpond policy show continuous --format json")]
pub struct Show {
    /// Name of the policy
    #[arg(add = candidates::policies())]
    name: String,
    #[command(flatten)]
    how: Listing,
}

impl Show {
    pub async fn run(self, client: &Client) -> Outcome {
        let policy: Policy = client.get(&super::verbs::path(&self.name)?).await?;
        let columns: Vec<Column<Policy>> =
            POLICY.iter().map(|column| Column { name: column.name, cell: column.cell, shown: Shown::Always }).collect();
        if self.how.format == Format::Json && self.how.columns.is_empty() {
            let all = serde_json::to_string_pretty(&policy).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(all + "\n"));
        }
        print_pairs(&policy, &columns, &self.how)?;
        if !self.how.columns.is_empty() || self.how.no_header {
            return Ok(());
        }
        if policy.volumes.is_empty() {
            return write_out(&format!("\nno volume is attached; to attach one: millpond policy attach {} POOL/VOL\n", policy.name));
        }
        write_out("\n")?;
        print(&policy.volumes, VOLUME, &self.how)?;
        if policy.send.is_none() {
            return Ok(());
        }
        write_out("\n")?;
        let sends: Vec<Column<PolicyVolume>> = VOLUME
            .iter()
            .filter(|column| SENDS.contains(&column.name))
            .map(|column| Column { name: column.name, cell: column.cell, shown: Shown::Always })
            .collect();
        print(&policy.volumes, &sends, &self.how)
    }
}
