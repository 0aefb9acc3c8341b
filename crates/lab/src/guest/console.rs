//! QEMU with the serial console of its guest on standard input and output.

use crate::process::tail;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A running QEMU; it is killed on drop.
#[derive(Debug)]
pub struct Console {
    qemu: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    transcript: String,
}

impl Console {
    /// Starts QEMU. The command has the option `-serial stdio`.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn start(command: &mut Command, errors: impl Into<Stdio>) -> Result<Console> {
        let mut qemu = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn().context("starting QEMU")?;
        let input = qemu.stdin.take().context("no console")?;
        let output = qemu.stdout.take().context("no console")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Console { qemu, input, lines, transcript: String::new() })
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Writes a line to the guest.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).context("speaking to the guest")
    }

    /// Returns the next line of the guest.
    ///
    /// # Errors
    /// There is none within `limit`, or QEMU has ended.
    pub fn read_line(&mut self, limit: Duration) -> Result<String, RecvTimeoutError> {
        let line = self.lines.recv_timeout(limit)?;
        self.transcript.push_str(&line);
        self.transcript.push('\n');
        Ok(line)
    }

    /// Returns about the last `limit` bytes that were read.
    pub fn transcript(&self, limit: usize) -> &str {
        tail(&self.transcript, limit)
    }

    /// Waits for the end of QEMU.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&mut self) -> Result<()> {
        let status = self.qemu.wait().context("waiting for QEMU")?;
        ensure!(status.success(), "QEMU: {status}");
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
