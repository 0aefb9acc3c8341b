//! `pool wipe`: makes unreferenced data unreadable on the devices.

use clap::{Args, ValueEnum};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::{WipeMode, WipePool, Wiping};

use crate::command::candidates;
use crate::command::destroy::wiping_line;
use crate::command::pool::jobs;
use crate::output::write_out;

/// Methods of a wipe.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Discard the data; overwrite it on devices that cannot discard
    Discard,
    /// Overwrite the data with zeroes
    Zero,
}

/// Overwrite or discard all unreferenced data on the devices of a pool
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool wipe tank -n
  millpond pool wipe tank --mode zero --wait
  millpond pool wipe tank --stop

When the wipe has ended, no device of the pool holds a block that was unreferenced when it began: destroyed, overwritten or discarded data, and
copies left behind by cleaning. Blocks that snapshots and clones share stay. Live data in the same segments is moved; guests have priority. A rewind
to earlier checkpoints is not possible afterwards. After a restart the wipe starts again; see docs/wipe.md.")]
pub struct Wipe {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Method
    #[arg(long, value_enum, default_value = "zero", conflicts_with = "stop")]
    mode: Mode,
    /// Stop the running wipe; wiped data stays wiped
    #[arg(long, conflicts_with_all = ["wait", "dry_run"])]
    stop: bool,
    /// Only report what would be wiped and moved
    #[arg(short = 'n', long, conflicts_with = "wait")]
    dry_run: bool,
    /// Wait until the wipe has ended
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
        let answer: Wiping = client.post(&format!("/v1/pools/{}/wipe", self.name), &request).await?;
        if !self.stop {
            let text = match self.format {
                crate::output::Format::Json => {
                    serde_json::to_string_pretty(&answer).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?
                }
                crate::output::Format::Table => wiping_line(&answer, self.dry_run),
            };
            write_out(&(text + "\n"))?;
        }
        if self.wait { jobs::wait_wipe(client, &self.name).await } else { Ok(()) }
    }
}
