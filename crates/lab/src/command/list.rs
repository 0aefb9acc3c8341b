//! `list`: lists experiments and targets.

use anyhow::Result;
use clap::{Args, ValueEnum};
use millpond_lab::experiment::EXPERIMENTS;
use millpond_lab::peer::{PEERS, make};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Lists experiments and contenders, with the reason if a contender cannot run here
#[derive(Args)]
#[command(after_help = "Example: millpond lab list --format json")]
pub struct List {
    /// A table, or one JSON document
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl List {
    /// Prints the list.
    ///
    /// # Errors
    /// The JSON cannot be encoded.
    pub fn run(self) -> Result<ExitCode> {
        let peers: Vec<(&str, Option<String>)> =
            PEERS.into_iter().map(|peer| (peer, make(peer).err().map(|reason| format!("{reason:#}")))).collect();
        if self.format == Format::Json {
            let experiments: Vec<Value> =
                EXPERIMENTS.iter().map(|e| json!({"name": e.name, "article": e.article, "about": e.about})).collect();
            let peers: Vec<Value> =
                peers.iter().map(|(name, reason)| json!({"name": name, "runs": reason.is_none(), "reason": reason})).collect();
            println!("{}", serde_json::to_string_pretty(&json!({"experiments": experiments, "peers": peers}))?);
            return Ok(ExitCode::SUCCESS);
        }
        println!("{:18} {:7} measurement", "experiment", "article");
        for experiment in EXPERIMENTS {
            println!("{:18} {:7} {}", experiment.name, experiment.article, experiment.about);
        }
        println!();
        for (peer, reason) in peers {
            println!("{peer:18} {}", reason.map_or("can run".to_owned(), |reason| format!("cannot run: {reason}")));
        }
        Ok(ExitCode::SUCCESS)
    }
}
