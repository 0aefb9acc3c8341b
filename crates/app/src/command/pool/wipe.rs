//! `pool wipe`: makes unreferenced data unreadable on the devices.

use clap::{Args, ValueEnum};

use crate::api::{WipeMode, WipePool, Wiping};
use crate::client::Client;
use crate::command::destroy::wiping_line;
use crate::command::pool::jobs;
use crate::failure::{Failure, Outcome};
use crate::names::{self, Kind};
use crate::output::write_out;

/// In which way.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Ask the devices to discard it; overwrite what cannot
    Discard,
    /// Overwrite it with zeroes
    Zero,
}

/// Make what nothing refers to any more unreadable on the devices
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool wipe tank -n
  millpond pool wipe tank --mode zero --wait
  millpond pool wipe tank --stop

When it has ended no block is on any device of the pool that nothing referred to when it began: of what was destroyed, overwritten or discarded, and
copies left behind by cleaning. What snapshots and clones share stays. What lives beside it is moved, guests first. Checkpoints from before
are nothing to go back to any more. After a restart it begins anew; see docs/wipe.md.")]
pub struct Wipe {
    /// Name of the pool
    name: String,
    /// In which way
    #[arg(long, value_enum, default_value = "zero", conflicts_with = "stop")]
    mode: Mode,
    /// End the one that runs; what was wiped stays so
    #[arg(long, conflicts_with_all = ["wait", "dry_run"])]
    stop: bool,
    /// Only say what it would do
    #[arg(short = 'n', long, conflicts_with = "wait")]
    dry_run: bool,
    /// Wait until it has ended
    #[arg(short = 'w', long)]
    wait: bool,
    /// table or json
    #[arg(long, value_enum, default_value = "table")]
    format: crate::output::Format,
}

impl Wipe {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let mode = match self.mode {
            Mode::Discard => WipeMode::Discard,
            Mode::Zero => WipeMode::Zero,
        };
        let request = WipePool { mode, stop: self.stop, dry_run: self.dry_run };
        let told: Wiping = client.post(&format!("/v1/pools/{}/wipe", self.name), &request).await?;
        if !self.stop {
            let text = match self.format {
                crate::output::Format::Json => {
                    serde_json::to_string_pretty(&told).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?
                }
                crate::output::Format::Table => wiping_line(&told, self.dry_run),
            };
            write_out(&(text + "\n"))?;
        }
        if self.wait { jobs::wait_wipe(client, &self.name).await } else { Ok(()) }
    }
}
