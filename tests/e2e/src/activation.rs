//! Socket activation: the test acts as the service manager. It makes the sockets, starts the daemon
//! with them, and keeps them.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Op};
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::{Daemon, run_command};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Moves the sockets from standard input and output to descriptors 3 and 4, as the activation
/// protocol requires, and sets the daemon's process id in the environment.
const PASS_ON: &str = r#"exec 3<&0 4<&1 </dev/null >/dev/null; export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=control:disk; exec "$@""#;

struct Manager {
    dir: PathBuf,
    control: UnixListener,
    disk: UnixListener,
    notices: UnixDatagram,
}

impl Manager {
    fn new(dir: &Path) -> Result<Manager> {
        fs::create_dir_all(dir.join("state"))?;
        let notices = UnixDatagram::bind(dir.join("notify"))?;
        notices.set_read_timeout(Some(PATIENCE))?;
        let bind = |name: &str| UnixListener::bind(dir.join(name)).with_context(|| format!("binding {name}"));
        Ok(Manager { dir: dir.to_owned(), control: bind("control.sock")?, disk: bind("disk.sock")?, notices })
    }

    fn start(&self) -> Result<Daemon> {
        let mut command = Command::new("sh");
        command.args(["-c", PASS_ON, "sh"]).arg(millpond_binary()?).arg("serve");
        command.arg("--socket").arg(self.dir.join("control.sock")).arg("--state").arg(self.dir.join("state"));
        command.env("NOTIFY_SOCKET", self.dir.join("notify"));
        let pass = |listener: &UnixListener| Ok::<Stdio, std::io::Error>(OwnedFd::from(listener.try_clone()?).into());
        let daemon = Daemon::spawn_with(&mut command, pass(&self.control)?, pass(&self.disk)?, &self.dir.join("millpond.log"))?;
        ensure!(self.notice()? == "READY=1", "the daemon did not say that it is ready");
        Ok(daemon)
    }

    fn notice(&self) -> Result<String> {
        let mut bytes = [0; 256];
        let count = self.notices.recv(&mut bytes).context("no notice from the daemon")?;
        Ok(String::from_utf8_lossy(&bytes[..count]).trim().to_owned())
    }

    fn cli(&self, args: &[&str]) -> Result<String> {
        run_command(Command::new(millpond_binary()?).arg("--socket").arg(self.dir.join("control.sock")).args(args))
    }
}

/// Connects while no daemon runs; the next daemon must answer.
fn patient(endpoint: Endpoint) -> thread::JoinHandle<Result<()>> {
    thread::spawn(move || {
        let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
        client.call(Op::Read, 0, BLOCK)?;
        ensure!(client.data(0) == [0x5a; BLOCK], "another block than was written");
        Ok(())
    })
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let manager = Manager::new(&subject.file("server"))?;
    let endpoint = Endpoint::unix(&manager.dir.join("disk.sock"), "lab/disk");
    let text = |name: &str| manager.dir.join(name).display().to_string();
    let mut daemon = manager.start()?;
    manager.cli(&["pool", "create", "lab", &format!("{}:256M", text("device0"))])?;
    manager.cli(&["create", "lab/disk", "-L", "64M"])?;
    manager.cli(&["export", "nbd", "lab/disk", "--unix", &text("disk.sock")])?;
    let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
    client.data(0).copy_from_slice(&[0x5a; BLOCK]);
    client.call(Op::Write, 0, BLOCK)?;
    drop(client);
    for clean in [true, false, true] {
        if clean {
            let status = daemon.terminate(PATIENCE)?;
            ensure!(status.success(), "the daemon ended with {status}");
            ensure!(manager.notice()? == "STOPPING=1", "the daemon did not say that it stops");
        } else {
            daemon.kill9()?;
        }
        let clients: Vec<_> = (0..3).map(|_| patient(endpoint.clone())).collect();
        thread::sleep(Duration::from_millis(100));
        ensure!(clients.iter().all(|client| !client.is_finished()), "a client was not kept waiting");
        daemon = manager.start()?;
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        manager.cli(&["status"])?;
    }
    manager.cli(&["unexport", "1"])?;
    daemon.terminate(PATIENCE)?;
    ensure!(manager.dir.join("disk.sock").exists() && manager.dir.join("control.sock").exists(), "a socket of the manager was removed");
    Ok(())
}
