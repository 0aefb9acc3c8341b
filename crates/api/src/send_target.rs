//! Where a policy sends its snapshots, and the commands that reach it.
//!
//! A target is reached by commands of this program: here, with another control socket, or through
//! `ssh`. No text of a target can become an option of `ssh` or a word of a remote shell.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::ApiError;
use super::names::{self, Kind};

#[cfg(test)]
mod tests;

/// Seconds that `ssh` may take to connect.
const CONNECT_SECONDS: u32 = 20;
/// Seconds without an answer after which `ssh` asks for one.
const ALIVE_SECONDS: u32 = 15;
/// Requests without an answer after which `ssh` ends.
const ALIVE_COUNT: u32 = 4;
/// Columns of a list of snapshots that make up the type of the API.
const COLUMNS: &str =
    "name,id,created,epoch,size,referenced_bytes,unique_bytes,holds,hold_tags,clones,description,identity,received,receiving";
/// Longest target in bytes; paths have at most 4096.
const LONGEST: usize = 4096;

/// Where snapshots go. Written as `POOL`, `ssh://[USER@]HOST[:PORT]/POOL`, `unix:SOCKET/POOL`, an
/// absolute directory, or `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTarget {
    /// Another pool of the same daemon.
    Pool(String),
    /// A pool of another host.
    Ssh {
        /// User there; `None`: that of the configuration of `ssh`.
        user: Option<String>,
        /// Host name or address.
        host: String,
        /// Port; `None`: that of the configuration of `ssh`.
        port: Option<u16>,
        /// Pool there.
        pool: String,
    },
    /// A pool of another daemon of this host.
    Unix {
        /// Its control socket.
        socket: PathBuf,
        /// Pool there.
        pool: String,
    },
    /// A directory or bucket for backups.
    Backup(String),
}

/// This program and its control socket: what commands are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnProgram {
    /// Path of the executable.
    pub program: String,
    /// Control socket of the daemon.
    pub socket: PathBuf,
}

impl OwnProgram {
    /// Returns the command that has these words, for the daemon itself.
    pub fn here(&self, words: &[&str]) -> Vec<String> {
        with_socket(&self.program, &self.socket, words)
    }
}

fn with_socket(program: &str, socket: &std::path::Path, words: &[&str]) -> Vec<String> {
    let first = [program.to_owned(), "--socket".to_owned(), socket.display().to_string()];
    first.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect()
}

impl SendTarget {
    /// Returns the pool at the target; `None` for backups.
    pub fn pool(&self) -> Option<&str> {
        match self {
            SendTarget::Pool(pool) | SendTarget::Ssh { pool, .. } | SendTarget::Unix { pool, .. } => Some(pool),
            SendTarget::Backup(_) => None,
        }
    }

    /// Returns the command, with its arguments, that runs `millpond WORDS` where the target is. For
    /// backups it runs here.
    pub fn command(&self, own: &OwnProgram, words: &[&str]) -> Vec<String> {
        match self {
            SendTarget::Pool(_) | SendTarget::Backup(_) => own.here(words),
            SendTarget::Unix { socket, .. } => with_socket(&own.program, socket, words),
            SendTarget::Ssh { user, host, port, .. } => {
                let mut command = vec!["ssh".to_owned(), "-T".to_owned()];
                for option in [
                    "BatchMode=yes".to_owned(),
                    format!("ConnectTimeout={CONNECT_SECONDS}"),
                    format!("ServerAliveInterval={ALIVE_SECONDS}"),
                    format!("ServerAliveCountMax={ALIVE_COUNT}"),
                ] {
                    command.extend(["-o".to_owned(), option]);
                }
                command.extend(port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
                command.extend(user.iter().flat_map(|user| ["-l".to_owned(), user.clone()]));
                let words: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
                command.extend(["--".to_owned(), host.clone(), format!("millpond {}", words.join(" "))]);
                command
            }
        }
    }

    /// Returns the command that lists snapshots at the target, as a JSON list of the API's type.
    pub fn list_command(&self, own: &OwnProgram, of: &str) -> Vec<String> {
        self.command(own, &["list", "-t", "snapshot", "--format", "json", "-o", COLUMNS, of])
    }

    /// Returns the command that backs a snapshot up; `None` for other targets. One that is `known` to have
    /// backups is not prepared again: it may be the directory of a disk that is not mounted.
    pub fn backup_command(&self, own: &OwnProgram, snapshot: &str, keep: &str, known: bool) -> Option<Vec<String>> {
        let only_known: &[&str] = if known { &["--no-init"] } else { &[] };
        match self {
            SendTarget::Backup(target) => Some(own.here(&[&["backup", "create", target, snapshot, "--keep", keep], only_known].concat())),
            _ => None,
        }
    }

    /// Returns the same target, without the name of its pool: for people.
    pub fn place(&self) -> String {
        match self {
            SendTarget::Pool(pool) => format!("pool '{pool}'"),
            other => format!("'{other}'"),
        }
    }
}

/// Returns a word that a POSIX shell reads as `word`.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:,=+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl fmt::Display for SendTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendTarget::Pool(pool) => f.write_str(pool),
            SendTarget::Backup(target) => f.write_str(target),
            SendTarget::Unix { socket, pool } => write!(f, "unix:{}/{pool}", socket.display()),
            SendTarget::Ssh { user, host, port, pool } => {
                let user = user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "ssh://{user}{host}{port}/{pool}")
            }
        }
    }
}

impl FromStr for SendTarget {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<SendTarget, ApiError> {
        let shown: String = text.escape_debug().take(80).collect();
        let wrong = |why: &str| ApiError::usage(format!("cannot send to '{shown}': {why}"));
        if text.len() > LONGEST || text.chars().any(char::is_control) {
            return Err(wrong("it is too long, or has a control character; give POOL, ssh://HOST/POOL, unix:SOCKET/POOL, or a directory"));
        }
        let pool_of = |pool: &str| names::check(Kind::Pool, pool).map(|()| pool.to_owned()).map_err(|e| wrong(&e.to_string()));
        if let Some(rest) = text.strip_prefix("ssh://") {
            let (place, pool) = rest.split_once('/').ok_or_else(|| wrong("it has no pool; give ssh://[USER@]HOST[:PORT]/POOL"))?;
            let pool = pool_of(pool)?;
            let (user, place) = place.rsplit_once('@').map_or((None, place), |(user, place)| (Some(user), place));
            let (host, port) = host_and_port(place).ok_or_else(|| wrong("its port is no number from 1 to 65535"))?;
            if !user.is_none_or(is_word) || !(is_word(host) || is_address(host)) {
                return Err(wrong("user and host have letters, digits, '.', '_' and '-', and do not begin with '-'"));
            }
            return Ok(SendTarget::Ssh { user: user.map(str::to_owned), host: host.to_owned(), port, pool });
        }
        if let Some(rest) = text.strip_prefix("unix:") {
            let (socket, pool) = rest.rsplit_once('/').ok_or_else(|| wrong("it has no pool; give unix:/path/of/socket/POOL"))?;
            if !socket.starts_with('/') {
                return Err(wrong("the path of the socket is not absolute; give unix:/path/of/socket/POOL"));
            }
            return Ok(SendTarget::Unix { pool: pool_of(pool)?, socket: PathBuf::from(socket) });
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            let bucket = rest.split('/').next().unwrap_or_default();
            if !is_word(bucket) {
                return Err(wrong("it has no bucket; give s3://BUCKET/PREFIX"));
            }
            return Ok(SendTarget::Backup(text.to_owned()));
        }
        if text.starts_with('/') {
            return Ok(SendTarget::Backup(text.to_owned()));
        }
        if text.contains('/') {
            return Err(wrong("give POOL, ssh://[USER@]HOST[:PORT]/POOL, unix:/path/of/socket/POOL, /directory, or s3://BUCKET/PREFIX"));
        }
        Ok(SendTarget::Pool(pool_of(text)?))
    }
}

/// Splits `HOST[:PORT]`; an IPv6 address is in brackets. `None` when the port is wrong.
fn host_and_port(place: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0)).map_or(Some(None), |port| port.map(Some))?;
    Some((host, port))
}

/// True for a word that no program takes for an option.
fn is_word(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-') && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// True for an IPv6 address, with or without a zone.
fn is_address(host: &str) -> bool {
    host.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':')
        && host.contains(':')
        && host.chars().all(|c| c.is_ascii_alphanumeric() || ":.%".contains(c))
}
