//! `resize`: changes the size of a volume while it is in use.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::VolumeName;
use millpond_api::size::{Size, SizeChange};

use super::candidates;
use super::consent::refused_for;
use crate::output::{say, write_out};

/// Change the size of a volume
///
/// A guest over vhost-user sees the new size at once; a guest over NBD after a new connection (restart the guest, or detach and attach the disk).
/// Shrinking first takes a snapshot of the volume, @pre-shrink-TIME. Shut the guest down before.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond resize tank/vm1 +5G
  millpond resize tank/vm1 +5G --reconnect    a guest over NBD with a reconnect delay sees it without a restart")]
pub struct Resize {
    /// POOL/VOL
    #[arg(add = candidates::volumes())]
    name: String,
    /// New size, or increase: 20G, +5G
    size: String,
    /// Allow a smaller size; data beyond it is lost
    #[arg(long)]
    allow_shrink: bool,
    /// Take no snapshot before shrinking
    #[arg(long)]
    no_snapshot: bool,
    /// Shrink the volume also while clients are connected
    #[arg(long)]
    force: bool,
    /// End the connections of NBD clients afterwards: one that connects again (QEMU: reconnect-delay) sees the new size, any other one loses
    /// its disk
    #[arg(long)]
    reconnect: bool,
    /// Only report what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Accepted for symmetry with other commands; --allow-shrink is the option that permits a loss
    #[arg(short = 'y', long, hide = true)]
    _yes: bool,
}

impl Resize {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        self.size.parse::<SizeChange>()?;
        let request = millpond_api::Resize {
            size: self.size,
            allow_shrink: self.allow_shrink,
            no_snapshot: self.no_snapshot,
            force: self.force,
            reconnect: self.reconnect,
            dry_run: self.dry_run,
            export: None,
        };
        let resized: millpond_api::Resized = client.post(&format!("/v1/volumes/{name}/resize"), &request).await?;
        let (old, new) = (Size(resized.old_size), Size(resized.size));
        let kept =
            resized.kept_as.map(|kept| format!("; its present state {} kept as {kept}", if self.dry_run { "would be" } else { "is" }));
        let kept = kept.unwrap_or_default();
        if self.dry_run {
            let lost = Size(resized.old_size.saturating_sub(resized.size));
            write_out(&format!("would resize {name} from {old} to {new}, {lost} at the end would be lost{kept}\n"))?;
        } else if !kept.is_empty() {
            write_out(&format!("{name} shrank from {old} to {new}{kept}\n"))?;
        } else {
            say(&format!("{name} has {new} now, it had {old}"))?;
        }
        if resized.connected.is_empty() || resized.old_size == resized.size {
            return Ok(());
        }
        match self.dry_run {
            true if resized.size < resized.old_size && !self.force => write_out(&refused_for(&resized.connected)),
            true => Ok(()),
            false if self.reconnect => Ok(()),
            false => {
                eprintln!("guests over vhost-user see the new size at once, those over NBD when they connect again");
                Ok(())
            }
        }
    }
}
