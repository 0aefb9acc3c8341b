//! `files`: runs in a guest; writes files, or reads them back and compares.

use anyhow::Result;
use clap::Args;
use millpond_lab::load::{Content, DiskUse, FileSet};
use millpond_lab::monitor::{Disks, Traffic};
use millpond_lab::scene::drop_caches;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes files of 102,400 bytes, a hundred per directory, and prints the time
#[derive(Args)]
pub struct Files {
    /// Directory below which the files are written
    dir: PathBuf,
    /// Number of files
    #[arg(long)]
    count: u64,
    /// Content: a byte in hexadecimal such as ff, or random:SEED
    #[arg(long)]
    content: Content,
    /// Read and compare the files instead of writing them
    #[arg(long)]
    check: bool,
}

impl Files {
    /// Writes or checks the files.
    ///
    /// # Errors
    /// A file cannot be written, or has other content than expected.
    pub fn run(self) -> Result<ExitCode> {
        let files = FileSet::new(&self.dir, self.count);
        drop_caches();
        if self.check {
            files.check(self.content)?;
        } else {
            let before = Disks::All.read();
            let mut round = files.write(self.content)?;
            round.disk = before.zip(Disks::All.read()).map(|(before, now)| disk_use(&before, &now, round.secs));
            println!("ROUND {}", serde_json::to_string(&round)?);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn disk_use(before: &Traffic, now: &Traffic, secs: f64) -> DiskUse {
    let requests = now.reads - before.reads + now.writes - before.writes;
    DiskUse {
        await_ms: (now.wait_millis - before.wait_millis) / requests.max(1.0),
        writes_s: (now.writes - before.writes) / secs,
        write_bytes_s: (now.write_bytes - before.write_bytes) / secs,
    }
}
