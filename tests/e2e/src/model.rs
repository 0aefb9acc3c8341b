//! Random writes, zeroes, discards, snapshots, rollbacks, clean restarts and kills, compared with
//! bytes in memory.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Op, Rng};
use millpond_lab::peer::DISK;
use std::collections::BTreeMap;

const SIZE: usize = 16 << 20;
const SECTOR: usize = 512;
const MAX_REQUEST: usize = 256 << 10;
const STEPS: usize = 3000;
const SEED: u64 = 0x6D70;

struct World {
    rng: Rng,
    client: Option<Client>,
    disk: Vec<u8>,
    snapshots: BTreeMap<String, Vec<u8>>,
    taken: usize,
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE as u64)?;
    let mut world = World { rng: Rng::new(SEED), client: None, disk: vec![0; SIZE], snapshots: BTreeMap::new(), taken: 0 };
    for step in 0..STEPS {
        world.step(subject, &endpoint).with_context(|| format!("step {step}"))?;
    }
    world.check_disk(&endpoint)?;
    let names: Vec<String> = world.snapshots.keys().cloned().collect();
    for name in names {
        world.check_snapshot(subject, &name)?;
    }
    Ok(())
}

impl World {
    fn step(&mut self, subject: &mut Subject, endpoint: &Endpoint) -> Result<()> {
        match self.rng.below(1000) {
            0..=699 => self.write(endpoint),
            700..=799 => self.clear(endpoint, Op::WriteZeroes, SECTOR),
            800..=879 => self.clear(endpoint, Op::Trim, 4096),
            880..=919 => Ok(self.client(endpoint)?.call(Op::Flush, 0, 0)?),
            920..=949 => self.snapshot(subject),
            950..=964 => self.destroy(subject),
            965..=974 => self.rollback(subject),
            975..=984 => self.check_some_snapshot(subject),
            985..=991 => self.check_disk(endpoint),
            992..=996 => {
                self.client = None;
                subject.server().kill9()?;
                subject.server().restart()?;
                self.check_disk(endpoint)
            }
            _ => {
                self.client = None;
                subject.server().stop()?;
                subject.server().restart()?;
                self.check_disk(endpoint)
            }
        }
    }

    fn client(&mut self, endpoint: &Endpoint) -> Result<&mut Client> {
        if self.client.is_none() {
            self.client = Some(Client::connect(endpoint, 1, 1 << 20, false)?);
        }
        self.client.as_mut().context("just connected")
    }

    fn range(&mut self, grain: usize) -> (usize, usize) {
        let most = if self.rng.below(4) == 0 { MAX_REQUEST } else { 16 << 10 };
        let length = (1 + self.rng.below((most / grain) as u64) as usize) * grain;
        let offset = self.rng.below(((SIZE - length) / grain + 1) as u64) as usize * grain;
        (offset, length)
    }

    fn write(&mut self, endpoint: &Endpoint) -> Result<()> {
        let (offset, length) = self.range(SECTOR);
        let mut data = vec![0; length];
        self.rng.fill(&mut data);
        let client = self.client(endpoint)?;
        client.data(0)[..length].copy_from_slice(&data);
        client.call(Op::Write, offset as u64, length)?;
        self.disk[offset..offset + length].copy_from_slice(&data);
        Ok(())
    }

    fn clear(&mut self, endpoint: &Endpoint, op: Op, grain: usize) -> Result<()> {
        let (offset, length) = self.range(grain);
        self.client(endpoint)?.call(op, offset as u64, length)?;
        self.disk[offset..offset + length].fill(0);
        Ok(())
    }

    fn snapshot(&mut self, subject: &mut Subject) -> Result<()> {
        self.taken += 1;
        let name = format!("s{}", self.taken);
        subject.server().snapshot(&name)?;
        self.snapshots.insert(name, self.disk.clone());
        if self.snapshots.len() > 12 {
            self.destroy(subject)?; // bounds the memory of the test
        }
        Ok(())
    }

    fn any(&mut self) -> Option<String> {
        let count = self.snapshots.len() as u64;
        let at = self.rng.below(count) as usize;
        self.snapshots.keys().nth(at).cloned()
    }

    fn destroy(&mut self, subject: &mut Subject) -> Result<()> {
        let Some(name) = self.any() else { return Ok(()) };
        subject.millpond()?.cli(&["destroy", &format!("{DISK}@{name}"), "-y"])?;
        self.snapshots.remove(&name);
        Ok(())
    }

    fn rollback(&mut self, subject: &mut Subject) -> Result<()> {
        let Some(name) = self.any() else { return Ok(()) };
        self.client = None;
        subject.server().rollback(&name)?;
        self.disk = self.snapshots.get(&name).context("just found")?.clone();
        Ok(())
    }

    fn check_some_snapshot(&mut self, subject: &mut Subject) -> Result<()> {
        match self.any() {
            Some(name) => self.check_snapshot(subject, &name),
            None => Ok(()),
        }
    }

    fn check_snapshot(&mut self, subject: &mut Subject, name: &str) -> Result<()> {
        let full = format!("{DISK}@{name}");
        let millpond = subject.millpond()?;
        let (endpoint, id) = millpond.export_with_id(&full)?;
        compare(&mut Client::connect(&endpoint, 1, 1 << 20, false)?, self.snapshots.get(name).context("unknown snapshot")?)
            .with_context(|| full)?;
        millpond.cli(&["unexport", &id, "--force"]).map(|_| ())
    }

    fn check_disk(&mut self, endpoint: &Endpoint) -> Result<()> {
        self.client(endpoint)?;
        let client = self.client.as_mut().context("connected")?;
        compare(client, &self.disk).context(DISK)
    }
}

fn compare(client: &mut Client, expected: &[u8]) -> Result<()> {
    ensure!(client.size() == expected.len() as u64, "{} bytes instead of {}", client.size(), expected.len());
    for (index, chunk) in expected.chunks(1 << 20).enumerate() {
        let offset = index << 20;
        client.call(Op::Read, offset as u64, chunk.len())?;
        let data = &client.data(0)[..chunk.len()];
        if let Some(at) = data.iter().zip(chunk).position(|(found, wanted)| found != wanted) {
            anyhow::bail!("byte {} is {:#x} instead of {:#x}", offset + at, data[at], chunk[at]);
        }
    }
    Ok(())
}
