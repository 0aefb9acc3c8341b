//! TLS with common clients: GnuTLS in libnbd and QEMU.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::load::{Client, Endpoint, Op, Rng};
use millpond_lab::peer::Millpond;
use millpond_lab::process::{find_tool, run_tool, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;

/// Image and clients, shared by the tests of keys and of certificates.
pub struct Bench {
    dir: PathBuf,
    image: String,
}

impl Bench {
    /// Makes the image.
    pub fn new(subject: &Subject) -> Result<Bench> {
        let dir = subject.file("tls");
        fs::create_dir_all(&dir)?;
        let mut bytes = vec![0; SIZE as usize];
        Rng::new(11).fill(&mut bytes[5 << 20..30 << 20]);
        let image = dir.join("image.raw");
        fs::write(&image, bytes)?;
        Ok(Bench { image: image.display().to_string(), dir })
    }

    /// Returns the path of a file of the test.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Copies the image to the export with libnbd's client, compares it with QEMU's, and copies it
    /// back over several connections.
    fn round_trip(&self, uri: &str, object: &str, options: &str) -> Result<()> {
        run_tool("nbdcopy", &[&self.image, uri])?;
        let remote = format!("driver=nbd,tls-creds=creds,{options}");
        let local = format!("driver=raw,file.driver=file,file.filename={}", self.image);
        run_tool("qemu-img", &["compare", "--object", object, "--image-opts", &remote, &local])?;
        let back = self.path("back.raw");
        run_tool("nbdcopy", &["--connections=4", uri, &back])?;
        ensure!(fs::read(&back)? == fs::read(&self.image)?, "another image came back over {uri}");
        Ok(())
    }
}

/// Runs a client that must fail.
pub fn refused(program: &str, args: &[&str]) -> Result<()> {
    let path = find_tool(program).with_context(|| format!("{program} is not installed"))?;
    let output = Command::new("timeout").arg(PATIENCE.as_secs().to_string()).arg(path).args(args).output()?;
    match output.status.code() {
        Some(0) => bail!("{program} {args:?} was served"),
        Some(124) => bail!("{program} {args:?} was neither served nor refused"),
        _ => Ok(()),
    }
}

/// Returns the bytes written by clients of all exports.
pub fn written(millpond: &Millpond) -> Result<u64> {
    let exports = millpond.json(&["exports"])?;
    Ok(exports.as_array().into_iter().flatten().filter_map(|export| export["io"]["write_bytes"].as_u64()).sum())
}

/// Waits for a text in the daemon's log.
pub fn logged(subject: &Subject, words: &str) -> Result<()> {
    let log = subject.file("server").join("millpond.log");
    let is_there = || fs::read_to_string(&log).is_ok_and(|text| text.contains(words));
    wait_until(&format!("'{words}' in the log"), PATIENCE, is_there).map(|_| ())
}

/// Returns the id of the last export, and its URI of a kind.
pub fn uri(millpond: &Millpond, kind: &str) -> Result<(u64, String)> {
    let exports = millpond.json(&["exports"])?;
    let export = exports.as_array().and_then(|list| list.last()).context("no export")?;
    let uris = export["uris"].as_array().into_iter().flatten().filter_map(|uri| uri.as_str());
    let uri = uris.map(str::to_owned).find(|uri| uri.starts_with(kind)).with_context(|| format!("no {kind} URI"))?;
    Ok((export["id"].as_u64().context("an export without id")?, uri))
}

/// A client of an unencrypted export that must not be disturbed.
fn witness(endpoint: &Endpoint) -> Result<Client> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    client.call(Op::Read, 0, BLOCK)?;
    Ok(client)
}

/// Tests pre-shared keys.
pub fn keys(subject: &mut Subject) -> Result<()> {
    let plain = subject.start(SIZE)?;
    let bench = Bench::new(subject)?;
    let (keys, wrong) = (bench.path("keys.psk"), bench.path("wrong"));
    run_tool("psktool", &["-u", "alice", "-p", &keys])?;
    fs::create_dir_all(&wrong)?;
    run_tool("psktool", &["-u", "alice", "-p", &format!("{wrong}/keys.psk")])?;
    run_tool("psktool", &["-u", "mallory", "-p", &format!("{wrong}/keys.psk")])?;
    let socket = bench.path("tls.sock");
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/secret", "-L", &SIZE.to_string()])?;
    millpond.cli(&[
        "export",
        "nbd",
        "lab/secret",
        "--force",
        "--unix",
        &socket,
        "--tcp",
        "127.0.0.1:0",
        "--tls",
        "require",
        "--tls-psk",
        &keys,
    ])?;
    let (id, over_unix) = uri(millpond, "nbds+unix://alice@")?;
    let (_, over_tcp) = uri(millpond, "nbds://alice@")?;
    let mut other = witness(&plain)?;
    let object = |dir: &Path, user: &str| format!("tls-creds-psk,id=creds,endpoint=client,dir={},username={user}", dir.display());
    let options = format!("server.type=unix,server.path={socket}");
    bench.round_trip(&over_unix, &object(&bench.dir, "alice"), &options)?;
    run_tool("nbdinfo", &[&over_tcp])?;
    let lines = subject.millpond()?.json(&["exports", &id.to_string()])?;
    ensure!(lines["lines"]["qemu"].as_str().is_some_and(|line| line.contains("tls-creds-psk")), "no line for QEMU: {lines}");
    // Another key, another identity, no key, and no encryption.
    refused("nbdinfo", &[&over_unix.replace(&keys, &format!("{wrong}/keys.psk"))])?;
    logged(subject, "the client's key is another one")?;
    refused("nbdinfo", &[&over_unix.replace(&keys, &format!("{wrong}/keys.psk")).replace("alice@", "mallory@")])?;
    logged(subject, "the client has none of the keys")?;
    let image = format!("driver=nbd,tls-creds=creds,{options}");
    refused("qemu-img", &["info", "--object", &object(Path::new(&wrong), "mallory"), "--image-opts", &image])?;
    refused("qemu-img", &["info", "--image-opts", &format!("driver=nbd,{options}")])?;
    refused("nbdinfo", &[&format!("nbd+unix:///?socket={socket}")])?;
    logged(subject, "it did not ask for TLS, which is required")?;
    other.call(Op::Read, 0, BLOCK).context("another client")?;
    drop(other);
    reconnects(subject, &object(&bench.dir, "alice"), &options)?;
    // With `allow`, clients with and without encryption are served.
    let millpond = subject.millpond()?;
    millpond.cli(&["unexport", &id.to_string(), "--force"])?;
    millpond.cli(&["export", "nbd", "lab/secret", "--force", "--unix", &socket, "--tls", "allow", "--tls-psk", &keys])?;
    run_tool("nbdinfo", &[&over_unix])?;
    run_tool("nbdinfo", &[&format!("nbd+unix:///?socket={socket}")])?;
    Ok(())
}

/// QEMU's client negotiates TLS again with a restarted daemon, and continues.
fn reconnects(subject: &mut Subject, object: &str, options: &str) -> Result<()> {
    let image = format!("driver=nbd,tls-creds=creds,reconnect-delay=60,{options}");
    let mut client = Command::new(find_tool("qemu-io").context("qemu-io is not installed")?);
    client.args(["--object", object, "--image-opts", &image, "-c", "write -P 7 0 1M", "-c", "sleep 4000", "-c", "write -P 8 1M 1M"]);
    client.args(["-c", "read -P 7 0 1M", "-c", "read -P 8 1M 1M", "-c", "flush"]);
    let millpond = subject.millpond()?;
    let before = written(millpond)?;
    let mut client = client.stdout(Stdio::piped()).spawn().context("starting qemu-io")?;
    wait_until("its first write", PATIENCE, || written(millpond).is_ok_and(|bytes| bytes >= before + (1 << 20)))?;
    ensure!(client.try_wait()?.is_none(), "qemu-io ended before the server did");
    subject.server().stop()?;
    subject.server().restart()?;
    let output = client.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && !said.contains("failed"), "qemu-io: {}: {said}", output.status);
    Ok(())
}

/// Makes a CA and certificates signed by it, in the layout of QEMU and libnbd.
pub fn authority(bench: &Bench, dir: &str) -> Result<String> {
    let dir = bench.path(dir);
    fs::create_dir_all(&dir)?;
    let at = |name: &str| format!("{dir}/{name}");
    let templates = [
        ("ca", "cn=lab\nca\ncert_signing_key\n"),
        ("server", "cn=localhost\ndns_name=localhost\nip_address=127.0.0.1\ntls_www_server\nencryption_key\nsigning_key\n"),
        ("client", "cn=client\ntls_www_client\nencryption_key\nsigning_key\n"),
    ];
    for (name, template) in templates {
        let (key, cert, info) = (at(&format!("{name}-key.pem")), at(&format!("{name}-cert.pem")), at(&format!("{name}.info")));
        fs::write(&info, template)?;
        run_tool("certtool", &["--generate-privkey", "--key-type", "ecdsa", "--outfile", &key])?;
        if name == "ca" {
            run_tool("certtool", &["--generate-self-signed", "--load-privkey", &key, "--template", &info, "--outfile", &cert])?;
        } else {
            let (ca, ca_key) = (at("ca-cert.pem"), at("ca-key.pem"));
            let signed = ["--generate-certificate", "--load-ca-certificate", &ca, "--load-ca-privkey", &ca_key];
            run_tool("certtool", &[&signed[..], &["--load-privkey", &key, "--template", &info, "--outfile", &cert]].concat())?;
        }
    }
    Ok(dir)
}

/// Tests certificates of server and clients.
pub fn certificates(subject: &mut Subject) -> Result<()> {
    let plain = subject.start(SIZE)?;
    let bench = Bench::new(subject)?;
    let (pki, foreign) = (authority(&bench, "pki")?, authority(&bench, "foreign")?);
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/secret", "-L", &SIZE.to_string()])?;
    let outside = ["export", "nbd", "lab/secret", "--force", "--tcp", "0.0.0.0:0", "--tls", "allow", "--tls-dir", &pki];
    ensure!(millpond.cli(&outside).is_err(), "an address that other machines reach was served without TLS being required");
    let inside =
        ["export", "nbd", "lab/secret", "--force", "--tcp", "127.0.0.1:0", "--tls", "require", "--tls-dir", &pki, "--tls-verify-peer"];
    millpond.cli(&inside)?;
    // The export and its certificates survive a restart.
    subject.server().stop()?;
    subject.server().restart()?;
    let millpond = subject.millpond()?;
    let (_, address) = uri(millpond, "nbds://127.0.0.1:")?;
    let port = address.rsplit(':').next().context("no port")?.to_owned();
    let mut other = witness(&plain)?;
    let uri = |dir: &str| format!("nbds://localhost:{port}/?tls-certificates={dir}");
    let options = format!("server.type=inet,server.host=localhost,server.port={port}");
    let object = |dir: &str| format!("tls-creds-x509,id=creds,endpoint=client,dir={dir}");
    bench.round_trip(&uri(&pki), &object(&pki), &options)?;
    let connections = subject.millpond()?.json(&["exports"])?;
    ensure!(connections.to_string().contains("\"credentials\":\"certificate\""), "{connections}");
    // A certificate of another CA; no certificate; and no encryption.
    fs::copy(format!("{pki}/ca-cert.pem"), format!("{foreign}/ca-cert.pem"))?;
    refused("nbdinfo", &[&uri(&foreign)])?;
    logged(subject, "TLS handshake failed")?;
    fs::remove_file(format!("{foreign}/client-cert.pem"))?;
    fs::remove_file(format!("{foreign}/client-key.pem"))?;
    refused("qemu-img", &["info", "--object", &object(&foreign), "--image-opts", &format!("driver=nbd,tls-creds=creds,{options}")])?;
    refused("nbdinfo", &[&format!("nbd://localhost:{port}")])?;
    logged(subject, "it did not ask for TLS, which is required")?;
    other.call(Op::Read, 0, BLOCK).context("another client")?;
    Ok(())
}
