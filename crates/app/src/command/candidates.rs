//! Candidates for words of the command line: names that the daemon knows, and known words.
//!
//! A shell waits for them after each press of the tab key, so the daemon gets [`PATIENCE`] for its
//! answer, and every failure means no candidates.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use millpond_api::client::{Client, quoted};
use millpond_api::{Export, Job, Policy, Pool, Snapshot, Token, Volume};
use serde::de::DeserializeOwned;

use crate::config::socket_path;

/// Time limit for all requests to the daemon of one completion.
const PATIENCE: Duration = Duration::from_millis(700);
/// Words before devices in the arguments of `pool create` and `pool add`.
const SPEC_WORDS: [&str; 9] = ["linear", "stripe", "mirror", "parity1", "parity2", "special", "log", "cache", "spare"];

/// Names of pools.
pub fn pools() -> ArgValueCompleter {
    of(|_| pool_names(""))
}

/// Names of pools, each followed by the slash before a new volume's name.
pub fn new_volumes() -> ArgValueCompleter {
    of(|_| pool_names("/"))
}

/// Names of volumes, after those of pools with the slash before a volume's name.
pub fn old_and_new_volumes() -> ArgValueCompleter {
    of(|word| if word.contains('/') { volume_names("") } else { pool_names("/") })
}

/// Names of volumes.
pub fn volumes() -> ArgValueCompleter {
    of(|_| volume_names(""))
}

/// Names of volumes, each followed by the character before a new snapshot's name.
pub fn new_snapshots() -> ArgValueCompleter {
    of(|_| volume_names("@"))
}

/// Names of snapshots: of volumes first, because there may be very many snapshots.
pub fn snapshots() -> ArgValueCompleter {
    of(|word| if word.contains('@') { snapshot_names(word) } else { volume_names("@") })
}

/// Names of volumes and snapshots; of snapshots after an `@` only.
pub fn names() -> ArgValueCompleter {
    of(|word| if word.contains('@') { snapshot_names(word) } else { volume_names("") })
}

/// Names of pools, volumes and snapshots.
pub fn scopes() -> ArgValueCompleter {
    of(|word| match word {
        _ if word.contains('@') => snapshot_names(word),
        _ if word.contains('/') => volume_names(""),
        _ => pool_names("").into_iter().chain(volume_names("")).collect(),
    })
}

/// Devices of the pools that the command line names before.
pub fn devices() -> ArgValueCompleter {
    of(|_| device_names())
}

/// Devices of the pools that the command line names before, and files.
pub fn devices_and_files() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| with_files(word, device_names()))
}

/// Words of a device specification, and files.
pub fn spec() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| with_files(word, SPEC_WORDS.into_iter().map(CompletionCandidate::new).collect()))
}

/// Numbers of exports, with their addresses.
pub fn exports() -> ArgValueCompleter {
    of(|_| {
        let exports: Vec<Export> = ask("/v1/exports");
        exports.iter().map(|export| candidate(export.id.to_string(), format!("{} {}", export.name, export.address))).collect()
    })
}

/// Names of policies.
pub fn policies() -> ArgValueCompleter {
    of(|_| policy_names())
}

/// Names of tokens.
pub fn tokens() -> ArgValueCompleter {
    of(|_| {
        let tokens: Vec<Token> = ask("/v1/tokens");
        tokens.into_iter().map(|token| CompletionCandidate::new(token.name)).collect()
    })
}

/// Ids of jobs.
pub fn jobs() -> ArgValueCompleter {
    of(|_| {
        let jobs: Vec<Job> = ask("/v1/jobs");
        jobs.into_iter().map(|job| CompletionCandidate::new(job.id)).collect()
    })
}

/// Words that are known without a daemon.
pub fn words(known: impl IntoIterator<Item = &'static str>) -> ArgValueCompleter {
    let known: Vec<&str> = known.into_iter().collect();
    of(move |_| known.iter().map(CompletionCandidate::new).collect())
}

/// Settings `PROP=`.
pub fn settings(known: impl IntoIterator<Item = &'static str>) -> ArgValueCompleter {
    let known: Vec<&str> = known.into_iter().collect();
    of(move |_| assignments(&known))
}

/// Settings `PROP=`, and names of volumes.
pub fn settings_of_volumes(known: impl IntoIterator<Item = &'static str>) -> ArgValueCompleter {
    let known: Vec<&str> = known.into_iter().collect();
    of(move |_| assignments(&known).into_iter().chain(volume_names("")).collect())
}

/// Settings `PROP=`, and names of policies.
pub fn settings_of_policies(known: impl IntoIterator<Item = &'static str>) -> ArgValueCompleter {
    let known: Vec<&str> = known.into_iter().collect();
    of(move |_| assignments(&known).into_iter().chain(policy_names()).collect())
}

fn assignments(known: &[&str]) -> Vec<CompletionCandidate> {
    known.iter().map(|name| CompletionCandidate::new(format!("{name}="))).collect()
}

fn of(candidates: impl Fn(&str) -> Vec<CompletionCandidate> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(move |word: &OsStr| word.to_str().map_or_else(Vec::new, |text| starting_with(word, candidates(text))))
}

fn starting_with(word: &OsStr, mut candidates: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let start = word.as_encoded_bytes();
    candidates.retain(|candidate| candidate.get_value().as_encoded_bytes().starts_with(start));
    candidates
}

fn with_files(word: &OsStr, candidates: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let mut candidates = starting_with(word, candidates);
    if !word.is_empty() {
        candidates.extend(PathCompleter::any().complete(word));
    }
    candidates
}

fn candidate(value: String, help: String) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.into()))
}

fn pool_names(end: &str) -> Vec<CompletionCandidate> {
    let pools: Vec<Pool> = ask("/v1/pools");
    pools.into_iter().map(|pool| CompletionCandidate::new(pool.name + end)).collect()
}

fn volume_names(end: &str) -> Vec<CompletionCandidate> {
    let volumes: Vec<Volume> = ask("/v1/volumes");
    volumes.into_iter().map(|volume| CompletionCandidate::new(volume.name + end)).collect()
}

fn policy_names() -> Vec<CompletionCandidate> {
    let policies: Vec<Policy> = ask("/v1/policies");
    policies.into_iter().map(|policy| CompletionCandidate::new(policy.name)).collect()
}

/// Snapshots of the volume in a word, the part before its `@`.
fn snapshot_names(word: &str) -> Vec<CompletionCandidate> {
    let volume = word.split_once('@').and_then(|(volume, _)| volume.split_once('/'));
    let Some((pool, volume)) = volume else { return Vec::new() };
    let snapshots: Vec<Snapshot> = ask(&format!("/v1/snapshots?pool={}&volume={}", quoted(pool), quoted(volume)));
    snapshots.into_iter().map(|snapshot| CompletionCandidate::new(snapshot.name)).collect()
}

fn device_names() -> Vec<CompletionCandidate> {
    let words: Vec<OsString> = env::args_os().collect();
    let pools: Vec<Pool> = ask("/v1/pools");
    let named = pools.into_iter().filter(|pool| words.iter().any(|word| word == pool.name.as_str()));
    named.flat_map(|pool| pool.devices).map(|device| candidate(device.path, format!("{} {}", device.id, device.class.as_str()))).collect()
}

/// Sends a GET request to the daemon that the command line or the environment names. Returns an
/// empty list if there is none, or it does not answer in time.
fn ask<T: DeserializeOwned>(path: &str) -> Vec<T> {
    let client = Client::new(socket_path(given_socket().as_deref()));
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = runtime.block_on(async { tokio::time::timeout(PATIENCE, client.get(path)).await });
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// Returns the socket of `--socket PATH` or `--socket=PATH`, else of `MILLPOND_SOCKET`.
fn given_socket() -> Option<PathBuf> {
    let words: Vec<OsString> = env::args_os().collect();
    let after = words.windows(2).rev().find_map(|pair| (pair.first()? == "--socket").then(|| pair.last().map(PathBuf::from))?);
    let joined = || words.iter().rev().find_map(|word| word.to_str()?.strip_prefix("--socket=").map(PathBuf::from));
    after.or_else(joined).or_else(|| env::var_os("MILLPOND_SOCKET").map(PathBuf::from)).filter(|path| !path.as_os_str().is_empty())
}
