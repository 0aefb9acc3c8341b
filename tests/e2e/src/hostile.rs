//! Clients that send garbage, requests out of range, and damaged devices: the daemon refuses them
//! clearly, and continues to serve other clients.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Op, Rng};
use millpond_lab::peer::{Contender, DISK, Millpond, POOL};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
const HANDSHAKES: u64 = 10_000;

pub fn run(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let dir = subject.file("server");
    let millpond = subject.millpond()?;
    let mut witness = Witness::new(&endpoint)?;
    garbage(&endpoint, &mut witness)?;
    out_of_range(&endpoint, &mut witness)?;
    commands(millpond, &mut witness)?;
    drop(witness);
    devices(millpond, &dir)
}

/// A client at work that must not be disturbed.
struct Witness {
    client: Client,
    rng: Rng,
    last: Vec<u8>,
}

impl Witness {
    fn new(endpoint: &Endpoint) -> Result<Witness> {
        Ok(Witness { client: Client::connect(endpoint, 1, BLOCK, false)?, rng: Rng::new(5), last: vec![0; BLOCK] })
    }

    fn works(&mut self, during: &str) -> Result<()> {
        self.client.call(Op::Read, 0, BLOCK).with_context(|| format!("another client, {during}"))?;
        ensure!(self.client.data(0) == self.last, "{during}: another client reads something else than it wrote");
        self.rng.fill(&mut self.last);
        self.client.data(0).copy_from_slice(&self.last);
        self.client.call(Op::Write, 0, BLOCK).with_context(|| format!("another client, {during}"))
    }
}

fn garbage(endpoint: &Endpoint, witness: &mut Witness) -> Result<()> {
    let socket = endpoint.socket().context("a unix socket")?;
    let option = |kind: u32, length: u32| [b"\0\0\0\x03IHAVEOPT".as_slice(), &kind.to_be_bytes(), &length.to_be_bytes()].concat();
    let mut noise = vec![0; 256 << 10];
    Rng::new(17).fill(&mut noise);
    let greetings: [(&str, Vec<u8>); 6] = [
        ("a client that hangs up", Vec::new()),
        ("a client that sends noise", noise.clone()),
        ("an unknown option of 4 GiB", option(0xDEAD, u32::MAX)),
        ("an export name of 1 GiB", option(1, 1 << 30)),
        ("GO with a length of 3", [option(7, 3), vec![0; 3]].concat()),
        ("GO whose name is longer than the option", [option(7, 10), u32::MAX.to_be_bytes().to_vec(), vec![0; 6]].concat()),
    ];
    for (what, bytes) in greetings {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        let _ = stream.write_all(&bytes); // the server may hang up in the middle
        let _ = stream.read(&mut [0; 4096]);
        witness.works(what)?;
    }
    malformed_handshakes(socket, witness)?;
    for seed in 0..20 {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        let mut handshake = option(7, 6 + u32::try_from(DISK.len())?);
        handshake.extend_from_slice(&u32::try_from(DISK.len())?.to_be_bytes());
        handshake.extend_from_slice(DISK.as_bytes());
        handshake.extend_from_slice(&[0, 0]);
        stream.write_all(&handshake)?;
        Rng::new(seed).fill(&mut noise);
        let _ = stream.write_all(&noise); // garbage in place of requests
        witness.works("noise instead of requests")?;
    }
    Ok(())
}

/// Thousands of options with wrong lengths, names and queries, generated from seeds; one connection
/// each.
fn malformed_handshakes(socket: &Path, witness: &mut Witness) -> Result<()> {
    let mut rng = Rng::new(0x4e42);
    for round in 0..HANDSHAKES {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        for _ in 0..1 + rng.below(4) {
            let mut data = vec![0; rng.below(64) as usize];
            rng.fill(&mut data);
            // Small numbers are frequent at the places of lengths, and the export's name is used
            // now and then.
            for length in data.chunks_exact_mut(4) {
                if rng.below(2) == 0 {
                    length.copy_from_slice(&[0, 0, 0, rng.below(12) as u8]);
                }
            }
            if rng.below(3) == 0 {
                let name = [&(DISK.len() as u32).to_be_bytes(), DISK.as_bytes()].concat();
                data.splice(..0, name);
            }
            let claimed = if rng.below(8) == 0 { rng.below(1 << 33) as u32 } else { data.len() as u32 };
            bytes.extend([b"IHAVEOPT".as_slice(), &(rng.below(13) as u32).to_be_bytes(), &claimed.to_be_bytes()].concat());
            bytes.extend(data);
        }
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        let _ = stream.write_all(&bytes); // the server may disconnect in the middle
        if round % 500 == 0 {
            witness.works("malformed handshakes")?;
        }
    }
    witness.works("all malformed handshakes")
}

fn out_of_range(endpoint: &Endpoint, witness: &mut Witness) -> Result<()> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    let impossible =
        [(Op::Read, SIZE, BLOCK), (Op::Write, SIZE - 512, BLOCK), (Op::Trim, SIZE, 1 << 20), (Op::Read, u64::MAX - 4095, BLOCK)];
    for (op, offset, length) in impossible {
        ensure!(client.call(op, offset, length).is_err(), "{op:?} of {length} bytes at {offset} was accepted");
        client.call(Op::Read, 0, BLOCK).with_context(|| format!("after a refused {op:?} the connection is out of step"))?;
    }
    witness.works("requests out of range")
}

/// Runs a command that must be refused: exit code 1 or 2, and one line that begins with the
/// program's name.
fn refused(millpond: &Millpond, args: &[&str]) -> Result<String> {
    let output = millpond.command(args).output().context("starting millpond")?;
    let words = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    ensure!(matches!(output.status.code(), Some(1 | 2)), "millpond {args:?} ended with {}: {words}", output.status);
    if output.status.code() == Some(1) {
        ensure!(
            words.starts_with("millpond: ") && words.lines().count() == 1,
            "millpond {args:?} said more or less than one line: {words}"
        );
    }
    Ok(words)
}

fn commands(millpond: &Millpond, witness: &mut Witness) -> Result<()> {
    let wrong: [&[&str]; 9] = [
        &["create", DISK, "-L", "1G"],
        &["create", "lab/x", "-L", "0"],
        &["create", "lab/x", "-L", "99999999999T"],
        &["create", "nopool/x", "-L", "1G"],
        &["snapshot", "lab/none@s"],
        &["rollback", "lab/disk@none"],
        &["resize", DISK, "1M"],
        &["destroy", "lab/disk@none", "-y"],
        &["create", "l\u{430}b/x", "-L", "1G"],
    ];
    for args in wrong {
        refused(millpond, args)?;
        witness.works("a refused command")?;
    }
    Ok(())
}

fn devices(millpond: &mut Millpond, dir: &Path) -> Result<()> {
    let mut expected = vec![0; BLOCK];
    Rng::new(99).fill(&mut expected);
    let endpoint = millpond.endpoint()?;
    let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
    client.data(0).copy_from_slice(&expected);
    client.call(Op::Write, 8192, BLOCK)?;
    client.call(Op::Flush, 0, 0)?;
    drop(client);
    millpond.cli(&["pool", "export", POOL])?;
    let (good, spare) = (millpond.device(), dir.join("spare"));
    fs::copy(&good, &spare)?;
    let length = fs::metadata(&good)?.len();
    type Damage = fn(&Path, u64) -> Result<()>;
    let damages: [(&str, Damage); 4] = [
        ("empty", |path, length| Ok(File::create(path)?.set_len(length)?)),
        ("cut in half", |path, length| Ok(File::options().write(true).open(path)?.set_len(length / 2)?)),
        ("somebody else's", |path, _| Ok(fs::write(path, "not a pool\n".repeat(1_000_000))?)),
        ("too small for a label", |path, _| Ok(fs::write(path, [1; 100])?)),
    ];
    let folder = dir.display().to_string();
    for (what, damage) in damages {
        fs::copy(&spare, &good)?;
        damage(&good, length)?;
        let saved = dir.with_file_name("saved");
        fs::rename(&spare, &saved)?; // or the import would find this copy
        let outcome = refused(millpond, &["pool", "import", POOL, "-d", &folder]).with_context(|| format!("a device that is {what}"));
        fs::rename(&saved, &spare)?;
        outcome?;
        millpond.cli(&["status"]).with_context(|| format!("after a device that is {what}"))?;
    }
    bit_flips(millpond, &good, &spare, &folder)?;
    fs::copy(&spare, &good)?;
    fs::remove_file(&spare)?;
    millpond.cli(&["pool", "import", POOL, "-d", &folder])?;
    millpond.wait_export()?;
    let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
    client.call(Op::Read, 8192, BLOCK)?;
    ensure!(client.data(0) == expected, "the undamaged device lost what was written");
    Ok(())
}

/// Flipped bits anywhere: the pool is refused in one line, or imported correctly.
fn bit_flips(millpond: &mut Millpond, good: &Path, spare: &Path, folder: &str) -> Result<()> {
    let saved = spare.with_file_name("../saved");
    let mut rng = Rng::new(31);
    for round in 0..8 {
        fs::copy(spare, good)?;
        let mut file = File::options().read(true).write(true).open(good)?;
        for _ in 0..16 {
            let offset = rng.below(2 << 20);
            let mut byte = [0];
            file.seek(SeekFrom::Start(offset))?;
            file.read_exact(&mut byte)?;
            byte[0] ^= 1 << rng.below(8);
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(&byte)?;
        }
        drop(file);
        fs::rename(spare, &saved)?;
        let import = ["pool", "import", POOL, "-d", folder];
        let status = millpond.command(&import).output().context("starting millpond")?;
        fs::rename(&saved, spare)?;
        let words = String::from_utf8_lossy(&status.stderr).trim_end().to_owned();
        match status.status.code() {
            Some(0) => millpond.cli(&["pool", "export", POOL]).map(|_| ()).with_context(|| format!("flips {round}"))?,
            Some(1) => ensure!(words.lines().count() == 1, "flips {round}: more than one line: {words}"),
            code => anyhow::bail!("flips {round}: exit code {code:?}: {words}"),
        }
    }
    Ok(())
}
