//! Simulated drives below a pool: they keep their data, also after a remount, and requests take the
//! time of the model.

use super::PATIENCE;
use super::fio::fio;
use super::lab::program;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::Contender;
use millpond_lab::process::{Daemon, run_tool};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes per second of the slow drive.
const RATE: f64 = 10e6;

/// Mounted drives, unmounted on drop.
struct Mounted {
    dir: PathBuf,
    server: Daemon,
}

impl Mounted {
    fn new(dir: &Path, backing: &Path) -> Result<Mounted> {
        let mut command = program()?;
        command.arg("drives").arg(dir).arg("--backing").arg(backing).args(["cap:10m=64M", "nvme=768M", "6*nvme/raid6:64k=64M"]);
        let mut server = Daemon::spawn(&mut command, &backing.join("drives.log"))?;
        server.wait_ready(PATIENCE, || dir.join("disk2").exists())?;
        Ok(Mounted { dir: dir.to_owned(), server })
    }

    /// Unmounts; the server must exit by itself.
    fn unmount(mut self) -> Result<()> {
        run_tool("umount", &[&self.dir])?;
        millpond_lab::process::wait_until("the server's end", PATIENCE, || !self.server.is_running()).map(|_| ())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run_tool("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
    }
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let (dir, backing, server) = (subject.file("drives"), subject.file("backing"), subject.file("server"));
    for made in [&dir, &backing, &server] {
        fs::create_dir_all(made)?;
    }
    let mounted = Mounted::new(&dir, &backing)?;
    let slow = File::options().read(true).write(true).open(dir.join("disk0")).context("opening a drive")?;
    let (begin, data) = (Instant::now(), vec![0x5a; 4 << 20]);
    slow.write_all_at(&data, 1 << 20)?;
    slow.sync_all()?;
    let (took, least) = (begin.elapsed().as_secs_f64(), data.len() as f64 / RATE);
    ensure!(took >= least, "4 MiB at 10 MB/s took {took} s");
    let mut found = vec![0; data.len()];
    slow.read_exact_at(&mut found, 1 << 20)?;
    ensure!(found == data, "a drive holds something else than was written");
    ensure!(slow.write_all_at(&[1; 4096], 64 << 20).is_err(), "a write behind the end");
    drop(slow);
    File::options().write(true).open(dir.join("disk2"))?.write_all_at(&[0xa5; 12288], 4096).context("writing to drives that are joined")?;

    let millpond = subject.millpond()?;
    millpond.start_with(&server, &["linear".to_owned(), dir.join("disk1").display().to_string()], 64 << 20)?;
    let uri = millpond.endpoint()?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["pool", "export", "lab"])?;
    mounted.unmount()?;

    let mounted = Mounted::new(&dir, &backing)?;
    let mut found = [0; 12288];
    File::open(dir.join("disk2"))?.read_exact_at(&mut found, 4096)?;
    ensure!(found == [0xa5; 12288], "drives that are joined forgot");
    millpond.cli(&["pool", "import", "lab", "-d", &dir.display().to_string()])?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])?;
    millpond.stop()?;
    mounted.unmount()
}
