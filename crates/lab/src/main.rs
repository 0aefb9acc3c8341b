//! `millpond-lab`: loads and experiments from the command line.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use millpond_lab::experiment::{EXPERIMENTS, Media, Setup};
use millpond_lab::load::{self, Access, Dialect, Durability, Endpoint, LoadSpec};
use millpond_lab::peer::{PEERS, make, serve_ceiling};
use millpond_lab::report::Results;
use millpond_lab::scene;
use millpond_lab::units::parse_size;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures Millpond and the servers people use today, side by side.
#[derive(Parser)]
#[command(version, after_help = "Example: millpond-lab run nbd-speed --media shm --reps 5 --out results")]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Lists experiments and contenders, and why a contender cannot run here
    List,
    /// Runs an experiment (or `all`) and writes NAME.json and NAME.md
    Run(RunArgs),
    /// Puts a load on one export and prints what it measured as JSON
    Load(LoadArgs),
    /// Serves plain memory over NBD: the contender `ceiling`
    #[command(hide = true)]
    Ceiling {
        /// Bytes
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// Where to listen
        socket: PathBuf,
    },
}

#[derive(Args)]
struct RunArgs {
    /// Name of the experiment, or `all`
    name: String,
    /// Where pools and images live
    #[arg(long, value_enum, default_value = "shm")]
    media: Media,
    /// Directory for `--media disk`
    #[arg(long, default_value = "/var/tmp")]
    disk_dir: PathBuf,
    /// Repetitions
    #[arg(long, default_value_t = 5)]
    reps: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 1.5)]
    secs: f64,
    /// Size of the volume, for example 512m
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Multiplies counts and durations of the long experiments
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Contenders to take, separated by commas
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Seed of the first repetition
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the reports
    #[arg(long, default_value = "lab-results")]
    out: PathBuf,
    /// Exit with 1 when a goal is missed
    #[arg(long)]
    strict: bool,
}

#[derive(Args)]
struct LoadArgs {
    /// `nbd:/socket?export`, `nbd:host:port?export`, or `vhost-user:/socket[?poll]`
    endpoint: Endpoint,
    /// read, write, randread, randwrite, rw, randrw, trim, randtrim
    #[arg(long, default_value = "randread")]
    rw: String,
    /// Reads in a hundred for rw and randrw
    #[arg(long, default_value_t = 50)]
    mix: u8,
    /// Which blocks: uniform, 80/20, zipf:EXPONENT (random loads)
    #[arg(long)]
    access: Option<Access>,
    /// Request size
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    bs: u64,
    /// Requests in flight per job
    #[arg(long, default_value_t = 1)]
    qd: usize,
    /// Connections
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Seconds before that are not counted
    #[arg(long, default_value_t = 0.3)]
    ramp: f64,
    /// First byte of the range
    #[arg(long, default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Bytes of the range, 0 = to the end
    #[arg(long, default_value = "0", value_parser = parse_size)]
    size: u64,
    /// A flush after every write
    #[arg(long)]
    sync: bool,
    /// FUA on every write
    #[arg(long)]
    fua: bool,
    /// Every block of the range once
    #[arg(long)]
    once: bool,
    /// End after this many requests per job
    #[arg(long, default_value_t = 0)]
    ops: u64,
    /// Seed of the choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Words of the protocol: simple replies, structured ones, or everything (extended headers, a metadata context)
    #[arg(long, value_enum, default_value = "simple")]
    dialect: Dialect,
    /// Milliseconds of an interval of the series
    #[arg(long, default_value_t = 0)]
    series: u64,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Verb::List => list(),
        Verb::Run(args) => run(&args),
        Verb::Load(args) => put_load(&args),
        Verb::Ceiling { size, socket } => serve_ceiling(&socket, size).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millpond-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<ExitCode> {
    for experiment in EXPERIMENTS {
        println!("{:16} {}", experiment.name, experiment.about);
    }
    println!();
    for peer in PEERS {
        match make(peer) {
            Ok(_) => println!("{peer:16} can run"),
            Err(reason) => println!("{peer:16} cannot run: {reason:#}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(args: &RunArgs) -> Result<ExitCode> {
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(|e| args.name == "all" || args.name == e.name).collect();
    if chosen.is_empty() {
        bail!("no experiment '{}'; `millpond-lab list` names them", args.name);
    }
    if let Some(unknown) = args.peers.iter().find(|p| !PEERS.contains(&p.as_str())) {
        bail!("no contender '{unknown}'; `millpond-lab list` names them");
    }
    let dir = if args.media == Media::Shm { PathBuf::from("/dev/shm") } else { args.disk_dir.clone() };
    let setup = Setup {
        media: args.media,
        dir,
        reps: args.reps,
        secs: args.secs,
        size: args.size,
        scale: args.scale,
        peers: args.peers.clone(),
        seed: args.seed,
    };
    let command = std::env::args().skip(1).fold("millpond-lab".to_owned(), |text, word| text + " " + &word);
    let mut missed = false;
    for experiment in chosen {
        let mut results = Results::new(experiment.name, scene::look(command.clone(), &setup.dir));
        results.note(&scene::pauses());
        let outcome = experiment.run(&setup, &mut results);
        if let Err(error) = &outcome {
            results.note(&format!("ended early: {error:#}"));
        }
        results.write(&args.out)?;
        println!("{}", results.markdown());
        missed |= results.verdicts.iter().any(|v| !v.met);
        outcome.with_context(|| format!("experiment {}", experiment.name))?;
    }
    Ok(if missed && args.strict { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn put_load(args: &LoadArgs) -> Result<ExitCode> {
    let mut spec = LoadSpec {
        block: usize::try_from(args.bs)?,
        depth: args.qd,
        jobs: args.jobs,
        secs: args.secs,
        ramp: if args.once { 0.0 } else { args.ramp },
        offset: args.offset,
        size: args.size,
        once: args.once,
        ops: args.ops,
        seed: args.seed,
        series_ms: args.series,
        dialect: args.dialect,
        durability: match (args.sync, args.fua) {
            (true, true) => bail!("--sync and --fua: one of them"),
            (true, false) => Durability::Flush,
            (false, true) => Durability::Fua,
            (false, false) => Durability::Acknowledged,
        },
        ..LoadSpec::default()
    }
    .with_rw(&args.rw, args.mix)?;
    match args.access {
        Some(_) if spec.access == Access::Sequential => bail!("--access needs a random load"),
        Some(access) => spec.access = access,
        None => {}
    }
    let result = load::run(&args.endpoint, &spec)?;
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(if result.errors > 0 { ExitCode::from(3) } else { ExitCode::SUCCESS })
}
