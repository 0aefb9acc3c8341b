//! `run`: runs one experiment or all of them.

use super::called;
use anyhow::{Result, bail};
use clap::Args;
use millpond_lab::experiment::{EXPERIMENTS, Experiment, Media, Setup};
use millpond_lab::peer::PEERS;
use millpond_lab::report::{Book, Results};
use millpond_lab::scene;
use millpond_lab::units::parse_size;
use std::path::PathBuf;
use std::process::ExitCode;

/// Seconds of a measurement at scale 1, and the minimum at smaller scales.
const SECONDS: f64 = 1.5;
const LEAST_SECONDS: f64 = 0.3;
/// Repetitions by default, and at small scales.
const REPETITIONS: usize = 5;
const FEW_REPETITIONS: usize = 2;

/// Runs an experiment (or `all`); writes results.json, results.csv and report.html, and prints the table
#[derive(Args)]
#[command(after_help = "\
Example:
  millpond lab run all --scale 0.01 --out lab-results
  millpond lab run nbd-speed --peers millpond,qsd-raw --media disk --reps 5")]
pub struct Run {
    /// Name of the experiment, or `all`
    name: String,
    /// Multiplies counts, sizes and durations; 1 is full scale, 0.01 a short run
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Contenders to measure, separated by commas
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Repetitions [default: 5, below scale 0.1: 2, of long experiments 1]
    #[arg(long)]
    reps: Option<usize>,
    /// Directory for the reports
    #[arg(long, default_value = "lab-results")]
    out: PathBuf,
    /// Directory for pools and images
    #[arg(long, value_enum, default_value = "shm")]
    media: Media,
    /// Directory for `--media disk`
    #[arg(long, default_value = "/var/tmp")]
    disk_dir: PathBuf,
    /// Seconds of one measurement [default: 1.5 times the scale, at least 0.3]
    #[arg(long)]
    secs: Option<f64>,
    /// Size of the volume, for example 512m
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Seed of the first repetition
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Exit with 1 when a goal is missed, or could not be measured; goals that are meant for a larger scale do not count
    #[arg(long)]
    strict: bool,
}

impl Run {
    /// Runs the experiments, writes the reports and prints the tables; exit code 2 if a name is
    /// unknown.
    ///
    /// # Errors
    /// An experiment failed (the rest of `all` runs nevertheless), or the reports cannot be
    /// written.
    pub fn run(self) -> Result<ExitCode> {
        let chosen: Vec<&Experiment> = EXPERIMENTS.iter().filter(|e| self.name == "all" || e.is_called(&self.name)).collect();
        if chosen.is_empty() {
            return Ok(wrong(&format!("there is no experiment '{}'; `{} list` lists them", self.name, called())));
        }
        if let Some(unknown) = self.peers.iter().find(|p| !PEERS.contains(&p.as_str())) {
            return Ok(wrong(&format!("there is no contender '{unknown}'; `{} list` lists them", called())));
        }
        if !(self.scale > 0.0 && self.scale.is_finite()) || self.reps == Some(0) {
            return Ok(wrong("nothing would be measured; give --scale and --reps above 0"));
        }
        let setup = self.setup();
        let (mut missed, mut failed) = (false, Vec::new());
        for experiment in chosen {
            let results = self.one(&setup, experiment, &mut failed)?;
            missed |= results.verdicts.iter().any(|v| v.verdict.is_failure());
            println!("{}", results.table(false));
        }
        Book::read(&self.out)?.write(&self.out)?;
        println!("The report is {}.", self.out.join("report.html").display());
        if !failed.is_empty() {
            bail!("not all of it could be measured: {}", failed.join("; "));
        }
        Ok(if missed && self.strict { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn setup(&self) -> Setup {
        let look = self.scale < 0.1;
        Setup {
            media: self.media,
            dir: if self.media == Media::Shm { PathBuf::from("/dev/shm") } else { self.disk_dir.clone() },
            reps: self.reps.unwrap_or(if look { FEW_REPETITIONS } else { REPETITIONS }),
            long_reps: self.reps.unwrap_or(if look { 1 } else { REPETITIONS }),
            secs: self.secs.unwrap_or((SECONDS * self.scale.min(1.0)).max(LEAST_SECONDS)),
            size: self.size,
            scale: self.scale,
            peers: self.peers.clone(),
            seed: self.seed,
        }
    }

    fn one(&self, setup: &Setup, experiment: &Experiment, failed: &mut Vec<String>) -> Result<Results> {
        let command = std::env::args().skip(1).fold(called().to_owned(), |text, word| text + " " + &word);
        let mut results = Results::new(experiment.name, scene::look(command, &setup.dir)).in_dir(&self.out);
        experiment.about.clone_into(&mut results.about);
        (results.began, results.scale) = (scene::now(), setup.scale);
        results.disturbed.extend(scene::others());
        results.note(&scene::pauses());
        if let Err(error) = experiment.run(setup, &mut results) {
            results.note(&format!("ended early: {error:#}"));
            failed.push(format!("{}: {error:#}", experiment.name));
        }
        results.took = results.age();
        results.write()?;
        Ok(results)
    }
}

/// Prints an error of usage in one line; returns exit code 2.
fn wrong(words: &str) -> ExitCode {
    let name = called().split(' ').next().unwrap_or_default();
    eprintln!("{name}: {words}");
    ExitCode::from(2)
}
