//! Buckets: the probe against servers that run here, and a client behind a proxy that loses, delays,
//! cuts and invents answers.

use super::bucket_proxy::{Fault, Proxy};
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_bucket::{Answer, Bucket, Created, Creation, Credentials, ErrorKind, Operation, Part, Place};
use millpond_format::{Holder, ObjectHead, ObjectName, PoolId, Term};
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::{Daemon, find_tool};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const POOL: PoolId = PoolId([7; 16]);
/// Names of the checks of the probe.
const CHECKS: [&str; 10] = ["create", "create-again", "race", "read", "range", "suffix", "absent", "list", "delete", "delete-again"];

/// An object store, with the bucket `pond` in a directory.
pub struct Store {
    /// Where it listens.
    pub address: SocketAddr,
    data: PathBuf,
    _server: Daemon,
}

impl Store {
    /// Starts a server.
    pub fn start(subject: &Subject, program: &str) -> Result<Store> {
        let data = subject.file("store");
        std::fs::create_dir_all(data.join("pond"))?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(find_tool(program).with_context(|| format!("{program} is not installed"))?);
        let listen = address.to_string();
        match program {
            "versitygw" => command.args(["-p", &listen, "-a", "test", "-s", "testtest", "--quiet", "posix"]),
            "minio" => command.args(["server", "--quiet", "--address", &listen]),
            _ => bail!("no store {program}"),
        };
        // the directory of its settings, and the credentials
        command.arg(&data).env("HOME", subject.dir()).env("MINIO_ROOT_USER", "test").env("MINIO_ROOT_PASSWORD", "testtest");
        let mut server = Daemon::spawn(&mut command, &subject.file("store.log"))?;
        server.wait_ready(Duration::from_secs(60), || TcpStream::connect(address).is_ok())?;
        Ok(Store { address, data, _server: server })
    }

    /// Directory with the objects of the bucket.
    pub fn dir(&self) -> PathBuf {
        self.data.join("pond")
    }
}

fn probe(address: SocketAddr, bucket: &str, secret: &str) -> Result<Output> {
    let endpoint = format!("endpoint=http://{address}");
    let url = format!("s3://{bucket}/a/b");
    let mut command = Command::new(millpond_binary()?);
    command.args(["bucket", "probe", &url, "-o", &endpoint, "--format", "json"]);
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", secret).env_remove("AWS_SESSION_TOKEN");
    command.output().context("starting the probe")
}

fn document(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON: {}", String::from_utf8_lossy(&output.stderr)))
}

fn refused(output: &Output, words: &str) -> Result<()> {
    let line = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && line.lines().count() == 1 && line.contains(words), "{}: {line}", output.status);
    Ok(())
}

/// A store that the probe has to find usable, and wrong credentials and buckets.
fn usable(store: &Store) -> Result<()> {
    let output = probe(store.address, "pond", "testtest")?;
    let found = document(&output)?;
    ensure!(output.status.success() && found["usable"] == true, "{found:#}");
    for (check, name) in found["checks"].as_array().into_iter().flatten().zip(CHECKS) {
        ensure!(check["check"] == name && check["state"] == "ok", "{check}");
    }
    ensure!(found["checks"].as_array().map(Vec::len) == Some(CHECKS.len()), "{found:#}");
    ensure!(found["put_p50_nanos"].as_u64().is_some_and(|nanos| nanos > 0), "{found:#}");
    ensure!(found["left_behind"].is_null(), "{found:#}");
    refused(&probe(store.address, "pond", "wrong")?, "check the credentials")?;
    refused(&probe(store.address, "pool", "testtest")?, "create the bucket first")
}

/// Files below a directory.
fn files(dir: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

/// versitygw: the probe, and stores that a proxy makes worse.
pub fn versitygw(subject: &mut Subject) -> Result<()> {
    let store = Store::start(subject, "versitygw")?;
    usable(&store)?;
    ensure!(files(&store.dir())? == 0, "the probe left files behind");
    let proxy = Proxy::start(store.address)?;
    for (fault, lacks) in [
        (Fault::HideExists, &["create-if-absent", "one-winner"][..]),
        (Fault::ForgetListed, &["lists"]),
        (Fault::WholeForParts, &["ranges", "suffixes"]),
    ] {
        proxy.always(Some(fault));
        let output = probe(proxy.address(), "pond", "testtest")?;
        let found = document(&output)?;
        ensure!(found["usable"] == false && found["lacks"] == serde_json::json!(lacks), "{fault:?}: {found:#}");
        refused(&output, &lacks.join(", ")).with_context(|| format!("{fault:?}"))?;
        ensure!(files(&store.dir())? == 0, "{fault:?}: the probe left files behind");
    }
    proxy.always(None);
    doubts(&proxy)
}

/// MinIO: the probe.
pub fn minio(subject: &mut Subject) -> Result<()> {
    usable(&Store::start(subject, "minio")?)
}

/// A client behind the proxy, and a runtime to wait for it.
struct Client {
    bucket: Bucket,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    fn carry_out(&self, operation: Operation) -> Result<Answer, ErrorKind> {
        self.runtime.block_on(self.bucket.carry_out(operation)).map_err(|error| error.kind)
    }

    /// Creates an object; returns the end, and the kinds of the errors before it.
    fn create(&self, term: u32, session: u8) -> Result<(Created, Vec<ErrorKind>)> {
        let mut creation = Creation::new(object(term, session))?;
        let mut errors = Vec::new();
        for _ in 0..20 {
            let answer = self.carry_out(creation.operation());
            errors.extend(answer.as_ref().err());
            match creation.answer(&answer) {
                Created::Next => {}
                Created::Later(_) => std::thread::sleep(Duration::from_millis(50)),
                end => return Ok((end, errors)),
            }
        }
        bail!("the create does not end: {errors:?}")
    }
}

fn object(term: u32, session: u8) -> Vec<u8> {
    let holder = Holder { host: [session; 16], name: format!("host{session}"), session: [session; 16] };
    ObjectHead::seal(POOL, Term(term), holder, ObjectName::Term(Term(term)), b"content")
}

/// Every doubt is settled, and each error has its kind.
fn doubts(proxy: &Proxy) -> Result<()> {
    let place = Place::parse("s3://pond/tank", &[format!("endpoint=http://{}", proxy.address())], None)?;
    let credentials = Credentials::from_text("AWS_ACCESS_KEY_ID=test\nAWS_SECRET_ACCESS_KEY=testtest")?;
    let bucket = Bucket::new(place, &credentials).map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client { bucket, runtime };
    use ErrorKind::{Away, Exists, Missing, Throttled, Unknown};
    for (number, (faults, errors)) in [
        (&[][..], &[][..]),
        (&[Fault::LoseAnswer], &[Unknown]),
        (&[Fault::ResetAfter], &[Unknown]),
        (&[Fault::LoseRequest], &[Unknown, Missing]),
        (&[Fault::LoseAnswer, Fault::LoseAnswer], &[Unknown, Away]),
        (&[Fault::DoLate], &[Unknown, Missing]),
        (&[Fault::Refuse(503, "SlowDown")], &[Throttled]),
        (&[Fault::Refuse(409, "ConditionalRequestConflict")], &[Unknown, Missing]),
        (&[Fault::Refuse(412, "PreconditionFailed")], &[Exists, Missing]),
        (&[Fault::RefuseAfter(503, "SlowDown")], &[Throttled, Exists]),
        (&[Fault::RefuseAfter(500, "InternalError")], &[Unknown]),
        (&[Fault::Delay], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let term = u32::try_from(number)? + 1;
        proxy.next(faults);
        let (end, found) = client.create(term, 1)?;
        ensure!(end == Created::Own && found == errors, "{faults:?}: {end:?} after {found:?} instead of {errors:?}");
        // one more request, which may be the one that is done late
        match client.create(term, 2)? {
            (Created::Other(head), errors) if head.holder.session == [1; 16] && errors == [Exists] => {}
            other => bail!("{faults:?}: another session gets {other:?}"),
        }
    }
    ensure!(proxy.release()? == 1, "one request was held");
    let read = || Operation::Get { name: ObjectName::Term(Term(6)), part: Part::Whole };
    let expected = object(6, 1);
    proxy.next(&[Fault::CutBody, Fault::LoseAnswer]);
    for error in [Away, Away] {
        ensure!(client.carry_out(read()) == Err(error), "a cut object was returned");
    }
    let length = expected.len() as u64;
    ensure!(client.carry_out(read()) == Ok(Answer::Read { bytes: expected, length }), "a late request changed an object");
    Ok(())
}
