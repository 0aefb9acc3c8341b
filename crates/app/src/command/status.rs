//! `status`: shows the daemon, its pools and exports.

use std::time::Duration;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::size::Size;
use millpond_api::{Condition, Export, ExportState, IncompleteReceive, PoolHealth, RequestMemory, Status as Answer};

use super::check;
use super::columns::{CONDITION, EXPORT, POOL};
use crate::output::{Cell, Format, Listing, print, write_out};

/// Show the daemon, its pools and exports
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond status --wait 10\n  millpond status --check || mail -s 'millpond' root")]
pub struct Status {
    /// Wait up to this long until the daemon answers and is ready: each pool is in service, or the status shows why not
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Print only problems, one per line; exit code 0: none, 1: warnings, 4: a pool is degraded or worse, or an export is not served
    #[arg(short = 'x', long)]
    check: bool,
    #[command(flatten)]
    how: Listing,
}

impl Status {
    pub async fn run(self, client: &Client) -> Outcome {
        let status: Answer = match self.wait {
            Some(seconds) => client.wait(Duration::from_secs(seconds)).await?,
            None => client.get("/v1/status").await?,
        };
        if self.check {
            return check::end(&check::causes(&status.conditions), &self.how);
        }
        if self.how.format == Format::Json {
            let text = serde_json::to_string_pretty(&status).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        if !self.how.columns.is_empty() {
            return print(&status.pools, POOL, &self.how);
        }
        write_out(&format!(
            "millpond {}, pid {}, since {}\nsocket {}\nstate  {}\n",
            status.version,
            status.pid,
            status.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            status.socket,
            status.state_dir
        ))?;
        let RequestMemory { limit, used } = status.request_memory;
        write_out(&format!("memory of requests {} of {}\n", Size(used), Size(limit)))?;
        for pool in status.pools.iter().filter(|pool| pool.health != PoolHealth::Online || pool.reason.is_some()) {
            write_out(&format!("pool {} is {}{}\n", pool.name, pool.health, because(pool.reason.as_deref())))?;
        }
        for export in status.exports.iter().filter(|export| export.state != ExportState::Online) {
            write_out(&not_online(export))?;
        }
        for receive in &status.receives {
            write_out(&incomplete(receive))?;
        }
        if !status.pools.is_empty() {
            write_out("\n")?;
            print(&status.pools, POOL, &self.how)?;
        }
        if !status.exports.is_empty() {
            write_out("\n")?;
            print(&status.exports, EXPORT, &self.how)?;
        }
        let shown: Vec<Condition> = status.conditions.into_iter().filter(|condition| !condition.covered).collect();
        if !shown.is_empty() {
            write_out("\n")?;
            print(&shown, CONDITION, &self.how)?;
        }
        Ok(())
    }
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// Describes an incomplete receive.
pub fn incomplete(receive: &IncompleteReceive) -> String {
    format!(
        "receive of '{}' into {} is incomplete: {} of {}, last progress {}\n",
        receive.snapshot,
        receive.volume,
        Size(receive.received_bytes),
        Size(receive.size),
        Cell::Time(receive.progressed).show(false)
    )
}

/// Describes why an export is not online.
pub fn not_online(export: &Export) -> String {
    format!("export {} ({}) is {}{}\n", export.id, export.name, export.state, because(export.reason.as_deref()))
}
