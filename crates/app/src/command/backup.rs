//! `backup`: incremental backups in a directory or a bucket.

use clap::Subcommand;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;

pub mod bases;
pub mod create;
pub mod fill;
pub mod list;
pub mod make;
mod mount;
mod prune;
mod restore;
pub mod target;
pub mod verify;

/// Verbs.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  millpond backup create /mnt/nas/backup tank/vm1                every time: what changed since the last one
  millpond backup create /mnt/nas/backup 'tank/*' --keep '1h:2d 1d:30d 1mo:1y'
  millpond backup list /mnt/nas/backup
  millpond backup restore /mnt/nas/backup tank/vm1 tank/vm1-restored
  millpond backup verify s3://backups/pond -o endpoint=https://store.example

Each backup is whole: any other one can be deleted.")]
pub enum Backup {
    Create(create::Create),
    List(list::List),
    Verify(verify::Verify),
    Restore(restore::Restore),
    Mount(mount::Mount),
    Prune(prune::Prune),
}

impl Backup {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Backup::Create(create) => create.run(client).await,
            Backup::List(list) => list.run().await,
            Backup::Verify(verify) => verify.run().await,
            Backup::Restore(restore) => restore.run(client).await,
            Backup::Mount(mount) => mount.run().await,
            Backup::Prune(prune) => prune.run().await,
        }
    }
}
