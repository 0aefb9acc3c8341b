//! The server stops and restarts while QEMU's client has a deep queue: requests in flight are sent
//! again, and no error is reported.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Op};
use millpond_lab::process::find_tool;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 128 << 20;
const BLOCK: usize = 1 << 20;
const PATTERN: u8 = 0xa7;

/// Every block of the disk is written once, with flushes in between, while the server is stopped
/// three times and killed once. If a server refuses requests while it stops, QEMU passes the error
/// to its guest, and `qemu-img bench` fails.
pub fn run(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let socket = endpoint.socket().context("a unix socket")?.display().to_string();
    let image = format!("driver=nbd,server.type=unix,server.path={socket},export={},reconnect-delay=60", endpoint.export());
    let mut bench = Command::new(find_tool("qemu-img").context("qemu-img is not installed")?);
    bench.args(["bench", "-w", "-d", "32", "-s", "4096", "-S", "4096", "--flush-interval=32", "--no-drain", "--pattern=167"]);
    bench.args(["-c", &(SIZE / 4096).to_string(), "--image-opts", &image]);
    let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().context("starting qemu-img")?;
    let mut under_load = 0;
    for clean in [true, true, false, true] {
        thread::sleep(Duration::from_millis(250));
        under_load += u32::from(bench.try_wait()?.is_none());
        if clean {
            subject.server().stop()?;
        } else {
            subject.server().kill9()?;
        }
        subject.server().restart()?;
    }
    let status = bench.wait()?;
    ensure!(status.success(), "qemu-img: {status}");
    ensure!(under_load >= 2, "the writing was over before the server went");
    let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
    for offset in (0..SIZE).step_by(BLOCK) {
        client.call(Op::Read, offset, BLOCK)?;
        ensure!(client.data(0).iter().all(|byte| *byte == PATTERN), "a write at {offset} or behind it was lost");
    }
    Ok(())
}
