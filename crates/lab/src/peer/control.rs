//! Client of the daemon's control socket: HTTP/1.1 and JSON over a unix socket, on one connection
//! that is kept open. Used to measure latencies, because starting a program per request would be
//! measured, too.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MAX_BODY: usize = 256 << 20; // the list of 10,000 snapshots is a few MiB

/// A connection to the control socket.
#[derive(Debug)]
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Connects.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub fn connect(socket: &Path) -> Result<Control> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Sends `GET path` and returns the JSON of the reply.
    ///
    /// # Errors
    /// The connection broke, or the daemon returned an error.
    pub fn get(&mut self, path: &str) -> Result<Value> {
        self.call("GET", path, None)
    }

    /// Sends `POST path` with a JSON body and returns the JSON of the reply.
    ///
    /// # Errors
    /// The connection broke, or the daemon returned an error.
    pub fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", path, Some(body))
    }

    fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all((head + &body).as_bytes()).with_context(|| format!("asking for {path}"))?;
        let status = self.line()?;
        let mut length = None;
        let mut chunked = false;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(':') {
                None => break,
                Some(("content-length", value)) => length = value.trim().parse::<usize>().ok(),
                Some(("transfer-encoding", value)) => chunked = value.contains("chunked"),
                Some(_) => {}
            }
        }
        let no_body = status.contains(" 204");
        let answer =
            if chunked { self.chunks()? } else { self.bytes(if no_body { 0 } else { length.context("an answer without a length")? })? };
        if !status.contains(" 20") {
            bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
        }
        if answer.is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&answer).with_context(|| format!("{path} answered no JSON"))
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).context("waiting for the daemon")? == 0 {
            bail!("the daemon closed the control connection");
        }
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        if length > MAX_BODY {
            bail!("an answer of {length} bytes");
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).context("reading the answer")?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let length = usize::from_str_radix(self.line()?.split(';').next().unwrap_or_default(), 16).context("no chunk length")?;
            all.extend(self.bytes(length)?);
            self.line()?;
            if length == 0 {
                return Ok(all);
            }
        }
    }
}
