//! Certificates that are renewed while clients connect, and exports that only some clients of a CA
//! may use.

use super::PATIENCE;
use super::subject::Subject;
use super::tls::{Bench, authority, logged, refused, uri, written};
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::Millpond;
use millpond_lab::process::{find_tool, run_tool, wait_until};
use std::fs;
use std::process::{Command, Stdio};

const SIZE: u64 = 16 << 20;

pub fn run(subject: &mut Subject) -> Result<()> {
    subject.start(SIZE)?;
    let bench = Bench::new(subject)?;
    let (old, new) = (authority(&bench, "old")?, authority(&bench, "new")?);
    let live = subject.file("live");
    fs::create_dir(&live)?;
    let install = |from: &str, names: &[&str]| -> Result<()> {
        for name in names {
            // Like programs that renew certificates: a new file, and a rename.
            let beside = live.join("beside");
            fs::copy(format!("{from}/{name}"), &beside)?;
            fs::rename(&beside, live.join(name))?;
        }
        Ok(())
    };
    install(&old, &["server-cert.pem", "server-key.pem", "ca-cert.pem"])?;
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/secret", "-L", &SIZE.to_string()])?;
    names(subject, &live.display().to_string(), &old)?;
    let millpond = subject.millpond()?;
    let (_, port) = export(millpond, &live.display().to_string(), &[])?;
    let client = |dir: &str| format!("nbds://localhost:{port}/?tls-certificates={dir}");
    run_tool("nbdinfo", &[client(&old)])?;
    refused("nbdinfo", &[&client(&new)])?;
    // A client that stays connected.
    let object = format!("tls-creds-x509,id=creds,endpoint=client,dir={old}");
    let image = format!("driver=nbd,tls-creds=creds,server.type=inet,server.host=localhost,server.port={port}");
    let mut guest = Command::new(find_tool("qemu-io").context("qemu-io is not installed")?);
    guest.args(["--object", &object, "--image-opts", &image, "-c", "write -P 7 0 1M", "-c", "sleep 12000", "-c", "read -P 7 0 1M"]);
    let before = written(millpond)?;
    let mut guest = guest.stdout(Stdio::piped()).spawn().context("starting qemu-io")?;
    wait_until("its first write", PATIENCE, || written(millpond).is_ok_and(|bytes| bytes >= before + (1 << 20)))?;
    ensure!(guest.try_wait()?.is_none(), "qemu-io ended at once");
    // A renewal of only the certificate changes nothing.
    install(&new, &["server-cert.pem"])?;
    logged(subject, "the previous credentials stay in force")?;
    run_tool("nbdinfo", &[client(&old)])?;
    install(&new, &["server-key.pem", "ca-cert.pem"])?;
    let served = || run_tool("nbdinfo", &[client(&new)]).is_ok();
    wait_until("the renewed certificate", PATIENCE, served)?;
    refused("nbdinfo", &[&client(&old)])?;
    logged(subject, "renewed TLS credentials are in force")?;
    let output = guest.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && !said.contains("failed"), "who was connected noticed: {said}");
    Ok(())
}

/// Exports the disk; returns the id and the port.
fn export(millpond: &Millpond, dir: &str, more: &[&str]) -> Result<(String, String)> {
    let words = ["export", "nbd", "lab/secret", "--force", "--tcp", "127.0.0.1:0", "--tls-dir", dir, "--tls-verify-peer"];
    millpond.cli(&[&words[..], more].concat())?;
    let (id, address) = uri(millpond, "nbds://127.0.0.1:")?;
    Ok((id.to_string(), address.rsplit(':').next().context("no port")?.to_owned()))
}

/// A client of the CA is served if its name is listed, and refused otherwise; the list survives a
/// restart.
fn names(subject: &mut Subject, live: &str, pki: &str) -> Result<()> {
    let millpond = subject.millpond()?;
    let (id, port) = export(millpond, live, &["--tls-clients", "somebody,client"])?;
    run_tool("nbdinfo", &[format!("nbds://localhost:{port}/?tls-certificates={pki}")])?;
    millpond.cli(&["unexport", &id, "--force"])?;
    ensure!(
        millpond.cli(&["export", "nbd", "lab/secret", "--force", "--tls-dir", live, "--tls-clients", "client"]).is_err(),
        "names without proof"
    );
    let (id, _) = export(millpond, live, &["--tls-clients", "somebody,else"])?;
    subject.server().stop()?;
    subject.server().restart()?;
    let millpond = subject.millpond()?;
    let (_, address) = uri(millpond, "nbds://127.0.0.1:")?;
    let port = address.rsplit(':').next().context("no port")?;
    refused("nbdinfo", &[&format!("nbds://localhost:{port}/?tls-certificates={pki}")])?;
    let object = format!("tls-creds-x509,id=creds,endpoint=client,dir={pki}");
    let image = format!("driver=nbd,tls-creds=creds,server.type=inet,server.host=localhost,server.port={port}");
    refused("qemu-img", &["info", "--object", &object, "--image-opts", &image])?;
    logged(subject, "of none of the clients that are allowed: client")?;
    subject.millpond()?.cli(&["unexport", &id, "--force"]).map(drop)
}
