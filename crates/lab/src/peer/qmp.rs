//! Client for the monitor protocol of QEMU's programs: JSON commands and replies over a unix socket
//! (QEMU docs/interop/qmp-spec).

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A monitor connection.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Qmp {
    /// Connects and enters command mode.
    ///
    /// # Errors
    /// The socket cannot be reached, or it is no monitor.
    pub fn connect(socket: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut qmp = Qmp { lines: BufReader::new(stream), events: Vec::new() };
        qmp.receive()?;
        qmp.call("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// The connection broke or the command was refused.
    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let message = json!({"execute": command, "arguments": arguments});
        writeln!(self.lines.get_mut(), "{message}").with_context(|| format!("sending {command}"))?;
        loop {
            let mut reply = self.receive()?;
            if let Some(error) = reply.get("error") {
                bail!("{command}: {}", error.get("desc").and_then(Value::as_str).unwrap_or("refused"));
            }
            match reply.get_mut("return") {
                Some(value) => return Ok(value.take()),
                None => self.events.push(reply),
            }
        }
    }

    /// Returns an event of this name, received already or awaited.
    ///
    /// # Errors
    /// The connection broke, or nothing was received for two minutes.
    pub fn event(&mut self, name: &str) -> Result<Value> {
        loop {
            if let Some(at) = self.events.iter().position(|e| e.get("event").and_then(Value::as_str) == Some(name)) {
                return Ok(self.events.remove(at));
            }
            let next = self.receive()?;
            self.events.push(next);
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).context("waiting for the monitor")? == 0 {
            bail!("the monitor closed the connection");
        }
        serde_json::from_str(&line).context("the monitor sent no JSON")
    }
}
