//! `drives`: serves simulated drives as files, for any program.

use anyhow::Result;
use clap::Args;
use millpond_lab::drive::{MODELS, Sized, serve};
use std::path::PathBuf;
use std::process::ExitCode;

/// Serves simulated drives as the files disk0, disk1, … of a directory, until it is unmounted (root)
#[derive(Args)]
#[command(
    after_help = format!(
        "Models: {MODELS}.\n\n\
         Example:\n  \
         millpond lab drives /mnt/drives --backing /dev/shm/drives mn08aca14t=4G sata-ssd=1G '6*st14000nm001g/raid6:64k=4G'\n  \
         fio --name=x --filename=/mnt/drives/disk0 --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=32\n  \
         umount /mnt/drives"
    )
)]
pub struct Drives {
    /// An empty directory
    mount: PathBuf,
    /// Directory for the drives' data, as sparse files: use a filesystem in memory, so that it adds no latency
    #[arg(long)]
    backing: PathBuf,
    /// MODEL=SIZE
    #[arg(required = true)]
    drives: Vec<Sized>,
}

impl Drives {
    /// Serves until unmounted.
    ///
    /// # Errors
    /// Not root, or the mount cannot be made.
    pub fn run(self) -> Result<ExitCode> {
        serve(&self.mount, &self.backing, &self.drives)?;
        Ok(ExitCode::SUCCESS)
    }
}
