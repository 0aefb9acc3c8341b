//! Test suites of other projects: fsx on a file of a mount, and nbd's test client.

use super::fuse::mount;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Endpoint;
use millpond_lab::process::{find_tool, run_command, run_tool};
use std::fs;
use std::process::Command;

const SIZE: u64 = 2 << 20;
const OPERATIONS: &str = "8000";
/// A file of fixed size (`blockmode`), which fsx treats like a device: it is never truncated or
/// extended. Shared mappings are left out, because the kernel refuses them for files that it does
/// not cache.
const CONFIGURATION: &str = "\
blockmode = true
[opsize]
max = 131072
[weights]
read = 10
write = 10
mapread = 0
mapwrite = 0
truncate = 0
punch_hole = 3
fsync = 0.2
fdatasync = 0.2
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

/// fsx: random operations; each read is compared with the data that fsx expects.
/// `MILLPOND_FSX=100000` runs more operations.
pub fn fsx(subject: &mut Subject) -> Result<()> {
    let operations = std::env::var("MILLPOND_FSX").unwrap_or_else(|_| OPERATIONS.to_owned());
    let dir = mount(subject, SIZE)?;
    let (configuration, artifacts) = (subject.file("fsx.toml"), subject.file("artifacts"));
    fs::write(&configuration, CONFIGURATION)?;
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(find_tool("fsx").context("fsx is not installed")?);
    command.arg("-f").arg(&configuration).arg("-P").arg(&artifacts).args(["-N", &operations, "-S", "1"]).arg(dir.join("disk"));
    let said = run_command(&mut command)?;
    ensure!(said.contains("All operations completed"), "{said}");
    Ok(())
}

/// nbd's test client: reads, writes, flushes, invalid handshakes, and a recorded log of requests
/// that is replayed with every block verified.
///
/// Its test of oversized requests is left out: it waits for data after an error reply, and sends
/// requests that begin within a sector.
pub fn nbd_tester(subject: &mut Subject) -> Result<()> {
    let small = subject.start(4 << 20)?;
    let tester = find_tool("nbd-tester-client").context("nbd-tester-client is not installed")?;
    let logs = tester.parent().context("its directory")?.to_owned();
    let play = |endpoint: &Endpoint, words: &[&str]| -> Result<()> {
        let socket = endpoint.socket().context("a unix socket")?.display().to_string();
        run_tool("nbd-tester-client", &[words, &["-N", endpoint.export(), "-u", &socket]].concat()).map(drop)
    };
    for words in [&[][..], &["-w"], &["-w", "-f"], &["-h"]] {
        play(&small, words).with_context(|| format!("nbd-tester-client {words:?}"))?;
    }
    let millpond = subject.millpond()?;
    for log in ["integrity-test.tr", "integrityhuge-test.tr"] {
        // The logs compare blocks that were never written, too, so each needs a disk of its own.
        let name = format!("lab/{}", log.replace('.', "-"));
        millpond.cli(&["create", &name, "-L", "50M"])?;
        let file = logs.join(log).display().to_string();
        play(&millpond.export(&name)?, &["-i", "-t", &file]).with_context(|| log.to_owned())?;
    }
    Ok(())
}
