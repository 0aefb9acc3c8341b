//! A disk of a running server, in the form of a [`Contender`] for measurements.

use crate::load::Endpoint;
use crate::peer::Contender;
use anyhow::{Result, bail};
use std::path::Path;

const RUNS: &str = "it runs already and is only looked at";

/// A disk of a running server; see the module.
pub struct LookedAt {
    endpoint: Endpoint,
    pid: u32,
}

impl LookedAt {
    /// Makes a target of the disk at an endpoint, served by process `pid`.
    pub fn new(endpoint: Endpoint, pid: u32) -> LookedAt {
        LookedAt { endpoint, pid }
    }
}

impl Contender for LookedAt {
    fn name(&self) -> &'static str {
        "millpond"
    }

    fn start(&mut self, _: &Path, _: u64) -> Result<()> {
        bail!(RUNS)
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(self.endpoint.clone())
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.pid)
    }

    fn kill9(&mut self) -> Result<()> {
        bail!(RUNS)
    }

    fn restart(&mut self) -> Result<()> {
        bail!(RUNS)
    }

    fn stop(&mut self) -> Result<()> {
        bail!(RUNS)
    }
}
