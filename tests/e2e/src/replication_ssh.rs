//! A policy that sends through `ssh` to a second daemon, with a `sshd` of this test on loopback.
//!
//! `ssh` does not look at HOME, so a program `ssh` that is first in the PATH of the daemon gives it the
//! configuration that a user has in `~/.ssh/config`; the rest of its command line is the daemon's.

use super::PATIENCE;
use super::replication::{VOLUME, arrives, fill, is_receiving, run_policy, state};
use super::send_receive::{SIZE, host, host_of, same, snapshots};
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use millpond_lab::process::{Daemon, find_tool, run_command, run_tool, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Directory that `sshd` needs as root; the service of the package makes it at its start.
const SEPARATION: &str = "/run/sshd";
/// Attempts to find a port that nothing else takes before `sshd` listens.
const PORTS: usize = 5;
/// Alias of the second host in the configuration of `ssh`.
const ALIAS: &str = "replica";

/// A `sshd` with its own keys, for the user of this test.
struct Sshd {
    daemon: Daemon,
    port: u16,
    made_separation: bool,
}

impl Sshd {
    /// Starts it; it lets the key `user_key` in, and commands find the daemon with this control socket.
    fn start(room: &Path, control: &Path) -> Result<Sshd> {
        for key in ["host_key", "user_key"] {
            run_tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &text(&room.join(key))])?;
        }
        fs::copy(room.join("user_key.pub"), room.join("authorized_keys"))?;
        let bin = room.join("there");
        fs::create_dir_all(&bin)?;
        symlink(fs::canonicalize(millpond_binary()?)?, bin.join("millpond"))?;
        let made_separation = rustix::process::geteuid().is_root() && !Path::new(SEPARATION).exists();
        if made_separation {
            fs::create_dir(SEPARATION).with_context(|| format!("making {SEPARATION}"))?;
            fs::set_permissions(SEPARATION, fs::Permissions::from_mode(0o755))?;
        }
        let program = find_tool("sshd").context("sshd is not installed")?;
        let mut refusal = None;
        for _ in 0..PORTS {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let config = room.join("sshd_config");
            fs::write(&config, server_config(room, &bin, control, port))?;
            let mut daemon = Daemon::spawn(Command::new(&program).args(["-D", "-e", "-f"]).arg(&config), &room.join("sshd.log"))?;
            match daemon.wait_ready(PATIENCE, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()) {
                Ok(_) => return Ok(Sshd { daemon, port, made_separation }),
                Err(error) => refusal = Some(error),
            }
        }
        remove_separation(made_separation);
        Err(refusal.context("no attempt was made")?)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // the test has its result; a server that is left would keep the directory
        let _ = self.daemon.kill9();
        remove_separation(self.made_separation);
    }
}

fn remove_separation(was_made: bool) {
    if was_made {
        let _ = fs::remove_dir(SEPARATION);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn server_config(room: &Path, bin: &Path, control: &Path, port: u16) -> String {
    let (room, bin, control) = (room.display(), bin.display(), control.display());
    format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {room}/host_key\nAuthorizedKeysFile {room}/authorized_keys\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
         LogLevel VERBOSE\nSetEnv PATH={bin}:/usr/bin:/bin MILLPOND_SOCKET={control}\n"
    )
}

/// Writes the configuration of `ssh`, and a program that runs `ssh` with it and notes its id and the
/// command for the other end. Returns the directory of the program.
fn client(room: &Path, port: u16, user: &str) -> Result<PathBuf> {
    let host_key = fs::read_to_string(room.join("host_key.pub"))?;
    fs::write(room.join("known_hosts"), format!("[127.0.0.1]:{port} {host_key}"))?;
    let room = room.display();
    let config = format!(
        "Host {ALIAS}\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n\
         Host {ALIAS} 127.0.0.1\n  IdentityFile {room}/user_key\n  IdentitiesOnly yes\n  IdentityAgent none\n\
         \x20 UserKnownHostsFile {room}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    );
    let script = format!(
        "#!/bin/sh\nfor last; do :; done\n\
         case \"$last\" in 'millpond receive '*) echo $$ > {room}/pid.new; mv {room}/pid.new {room}/pid;; esac\n\
         echo \"$last\" >> {room}/commands\n\
         exec {ssh} -F {room}/ssh_config \"$@\"\n",
        ssh = text(&find_tool("ssh").context("ssh is not installed")?),
    );
    let room = PathBuf::from(room.to_string());
    fs::write(room.join("ssh_config"), config)?;
    let bin = room.join("here");
    fs::create_dir_all(&bin)?;
    fs::write(bin.join("ssh"), script)?;
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755))?;
    Ok(bin)
}

/// Checks that a user reaches the other end as the documents say.
fn probe(room: &Path, bin: &Path) -> Result<()> {
    let listed = run_command(Command::new(bin.join("ssh")).args(["-o", "BatchMode=yes", ALIAS, "millpond pool list -H"]));
    match listed {
        Ok(listed) if listed.contains("tank") => Ok(()),
        Ok(listed) => bail!("the other end has no pool: {listed}"),
        Err(error) => Err(error.context(fs::read_to_string(room.join("sshd.log")).unwrap_or_default())),
    }
}

/// Kills the `ssh` of a receive while data comes, and only that one.
fn kill_ssh(room: &Path, here: &Millpond, there: &Millpond) -> Result<()> {
    wait_until("data comes", PATIENCE, || {
        let listed = there.json(&["list", "tank", "-o", "name,referenced_bytes"]);
        let has_data = |one: &serde_json::Value| one["referenced_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20);
        is_receiving(there) && listed.is_ok_and(|listed| listed.as_array().is_some_and(|all| all.iter().any(has_data)))
    })?;
    let pid: i32 = fs::read_to_string(room.join("pid"))?.trim().parse()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).context("ssh has ended before it was killed")?;
    let config = text(&room.join("ssh_config"));
    ensure!(words.split(|byte| *byte == 0).any(|word| word == config.as_bytes()), "process {pid} is not the ssh of this test");
    kill_process(Pid::from_raw(pid).context("an impossible process id")?, Signal::KILL)?;
    wait_until("the send fails", PATIENCE, || {
        state(here).is_ok_and(|state| state["failed"].as_u64() > Some(0) && state["error"].is_string())
    })
    .map(drop)
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let room = subject.file("room");
    fs::create_dir_all(&room)?;
    let mut there = host(&subject.file("there"))?;
    let sshd = Sshd::start(&room, &there.control_socket())?;
    let user = run_tool("id", &["-un"])?.trim().to_owned();
    let bin = client(&room, sshd.port, &user)?;
    probe(&room, &bin)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)))?;
    let mut here = host_of(Millpond::new(millpond_binary()?).with_path(path), &subject.file("here"))?;
    here.cli(&["create", VOLUME, "-L", &SIZE.to_string()])?;
    let socket = room.join("disk.sock");
    here.cli(&["export", "nbd", VOLUME, "--unix", &text(&socket)])?;
    fill(&socket, 0)?;

    // by the alias; the device of the target is slow, so that the send has a middle
    let device = text(&subject.file("there").join("pool.img"));
    there.cli(&["pool", "device-limit", "tank", &device, "--bps", "8M"])?;
    here.cli(&["policy", "create", "replica", "--keep", "1s:1d", "--at", "yearly", "--send", &format!("ssh://{ALIAS}/tank")])?;
    here.cli(&["policy", "attach", "replica", VOLUME])?;
    let first = run_policy(&here)?;
    kill_ssh(&room, &here, &there)?;
    there.cli(&["pool", "device-limit", "tank", &device, "--bps", "none"])?;
    let is_there = snapshots(&there, VOLUME).is_ok_and(|all| all.contains(&first));
    ensure!(!is_there, "it was complete before the kill");
    arrives(&here, &there, &first)?;
    same([(&here, VOLUME), (&there, VOLUME)], &first, &room)?;
    let commands = fs::read_to_string(room.join("commands"))?;
    let receives = || commands.lines().filter(|command| command.starts_with("millpond receive "));
    ensure!(receives().count() > 1 && receives().any(|command| command.contains("--resume")), "nothing was continued:\n{commands}");

    // by user and port
    fill(&socket, 1)?;
    here.cli(&["policy", "set", &format!("send=ssh://{user}@127.0.0.1:{}/tank", sshd.port), "replica"])?;
    // names of snapshots have the time to the second
    std::thread::sleep(Duration::from_millis(1100));
    let second = run_policy(&here)?;
    arrives(&here, &there, &second)?;
    same([(&here, VOLUME), (&there, VOLUME)], &second, &room)?;
    here.stop()?;
    there.stop()
}
