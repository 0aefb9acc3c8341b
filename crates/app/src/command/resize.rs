//! `resize`: a volume grows or shrinks, online.

use clap::Args;

use crate::api;
use crate::client::Client;
use crate::failure::Outcome;
use crate::names::VolumeName;
use crate::output::write_out;
use crate::size::{Size, SizeChange};

/// Change the size of a volume, online
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond resize tank/vm1 +5G")]
pub struct Resize {
    /// POOL/VOL
    name: String,
    /// New size, or what to add: 20G, +5G
    size: String,
    /// Agree to lose what is beyond a smaller size
    #[arg(long)]
    allow_shrink: bool,
    /// Only say what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Accepted for symmetry with other verbs; --allow-shrink is the word that counts
    #[arg(short = 'y', long, hide = true)]
    _yes: bool,
}

impl Resize {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        self.size.parse::<SizeChange>()?;
        let request = api::Resize { size: self.size, allow_shrink: self.allow_shrink, dry_run: self.dry_run };
        let resized: api::Resized = client.post(&format!("/v1/volumes/{name}/resize"), &request).await?;
        if !self.dry_run {
            return Ok(());
        }
        let lost = resized.old_size.saturating_sub(resized.size);
        write_out(&format!(
            "would resize {name} from {} to {}, {} at the end would be lost\n",
            Size(resized.old_size),
            Size(resized.size),
            Size(lost)
        ))
    }
}
