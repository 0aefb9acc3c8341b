//! Where things are: control socket, state directory, and the daemon's configuration file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::api::{NbdLimits, Severity};
use crate::failure::{Failure, Outcome};

/// The directory of the control socket when nothing else is said and the system one can be used.
const SYSTEM_RUN: &str = "/run/millpond";
/// The state directory of a daemon run by root.
const SYSTEM_STATE: &str = "/var/lib/millpond";
const SOCKET_NAME: &str = "control.sock";

/// What a configuration file may say; command-line options win over it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// Control socket.
    pub socket: Option<PathBuf>,
    /// To whom the control socket belongs: `USER`, `USER:GROUP` or `:GROUP`, names or numbers; who runs the daemon when not said. Who may connect
    /// to it may do everything.
    pub socket_owner: Option<String>,
    /// Its permissions in octal, such as `"0660"`; that with a group in `socket_owner`, else 0600 when not said.
    pub socket_mode: Option<String>,
    /// State directory.
    pub state: Option<PathBuf>,
    /// Upper bound in bytes for map nodes in memory, for each pool; takes sizes such as `512M`.
    pub map_memory: Option<String>,
    /// Upper bound in bytes for what is kept in memory of what is on devices of class cache, for each pool: 20 for a block of 4 KiB.
    pub cache_memory: Option<String>,
    /// Upper bound in bytes for blocks in memory that guests read more than once, for all pools together; 256M when not said, 0 for none.
    pub read_cache: Option<String>,
    /// Upper bound in bytes for payloads and replies in flight of all clients together, beside 256 KiB for each; a quarter of the host's memory, at most
    /// 4G, when not said, and never less than two of the longest requests.
    pub request_memory: Option<String>,
    /// When free segments go back to what holds the pool, as holes of a file and discards of a disk: `lazy` when not said, see [`DiscardRule`].
    pub discard: Option<DiscardRule>,
    /// The same in an older word: `false` is `discard = "never"`.
    pub discard_freed: Option<bool>,
    /// For how many minutes the pool's checkpoints stay whole, so that an import can go back to them, as long as that takes a small part of the
    /// pool; 10 when not said.
    pub rewind_minutes: Option<u32>,
    /// For how many minutes an import waits for a missing device before a spare takes its place; 5 when not said.
    pub spare_minutes: Option<u32>,
    /// How long the start waits for missing devices of a pool before it imports it without them, when redundancy allows that: a span such as
    /// `90s` or `5m`; 30 s when not said.
    pub import_wait: Option<String>,
    /// What tells this host from others that see the same devices: any text; the machine's id when not said.
    pub host_id: Option<String>,
    /// A command that is run for each event: its absolute path, or a list of that and its arguments. `docs/events.md` says what it is given.
    pub on_event: Option<CommandLine>,
    /// The least severity of events that it is run for: `info`, `warning` when not said, or `error`.
    pub on_event_severity: Option<Severity>,
    /// After how long it is killed: a span; 30 s when not said.
    pub on_event_timeout: Option<String>,
    /// What clients of NBD exports may take, where an export says nothing: `max_clients`, `max_requests`, `handshake_seconds`.
    pub nbd: NbdSection,
}

/// A command: its path alone, or with arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CommandLine {
    /// The path.
    Path(String),
    /// Path and arguments.
    Words(Vec<String>),
}

impl CommandLine {
    /// Path and arguments.
    ///
    /// # Errors
    /// The path is not absolute.
    pub fn words(self) -> Result<Vec<String>, String> {
        let words = match self {
            CommandLine::Path(path) => vec![path],
            CommandLine::Words(words) => words,
        };
        match words.first() {
            Some(path) if Path::new(path).is_absolute() => Ok(words),
            path => Err(format!("'{}' is not an absolute path; give the command's", path.map(String::as_str).unwrap_or_default())),
        }
    }
}

/// When free segments go back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiscardRule {
    /// Never: a pool keeps what it once took.
    Never,
    /// What was more than the log needs for ten minutes, a little at a time.
    Lazy,
    /// As soon as the pool is idle.
    Now,
}

/// The limits of [`NbdLimits`], as a section of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NbdSection {
    max_clients: Option<u32>,
    max_requests: Option<u16>,
    handshake_seconds: Option<u32>,
}

impl From<NbdSection> for NbdLimits {
    fn from(NbdSection { max_clients, max_requests, handshake_seconds }: NbdSection) -> NbdLimits {
        NbdLimits { max_clients, max_requests, handshake_seconds }
    }
}

impl ConfigFile {
    /// When free segments go back to the host.
    ///
    /// # Errors
    /// Both words for it are there, and say different things.
    pub fn discard(&self) -> Result<DiscardRule, &'static str> {
        match (self.discard, self.discard_freed) {
            (None, Some(false)) => Ok(DiscardRule::Never),
            (Some(DiscardRule::Never), Some(true)) | (Some(DiscardRule::Lazy | DiscardRule::Now), Some(false)) => {
                Err("discard says something else; keep discard alone")
            }
            (rule, _) => Ok(rule.unwrap_or(DiscardRule::Lazy)),
        }
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    /// One line when it cannot be read, or says something unknown.
    pub fn read(path: &Path) -> Outcome<ConfigFile> {
        let text = fs::read_to_string(path).map_err(|e| Failure::failed(format!("cannot read {}: {e}", path.display())))?;
        let wrong = |e: toml::de::Error| {
            let line = e.span().and_then(|span| text.get(..span.start)).and_then(|before| text.lines().nth(before.matches('\n').count()));
            let line = line.map(|line| format!("{}: ", line.trim())).unwrap_or_default();
            Failure::failed(format!("{}: {line}{}", path.display(), e.message()))
        };
        toml::from_str(&text).map_err(wrong)
    }
}

/// The control socket of the daemon to talk to, or to be: what the user says, else the system's, else the session's.
pub fn socket_path(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return absolute(path);
    }
    let system = Path::new(SYSTEM_RUN);
    // A user's own daemon cannot live in /run; root's is preferred where it is there.
    if system.join(SOCKET_NAME).exists() || rustix::process::geteuid().is_root() {
        return system.join(SOCKET_NAME);
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("millpond").join(SOCKET_NAME),
        _ => system.join(SOCKET_NAME),
    }
}

/// The state directory: what the user says, else the system's for root, else the user's.
///
/// # Errors
/// When neither can be told.
pub fn state_dir(given: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(path) = given {
        return Ok(absolute(path));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(SYSTEM_STATE));
    }
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("XDG_STATE_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".local/state")))
        .map(|dir| dir.join("millpond"))
        .ok_or_else(|| Failure::usage("no state directory: HOME is not set; give --state DIR"))
}

/// `path` from the root on, so that the daemon, which runs elsewhere, means the same file.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    //! Paths and the configuration file.
    use super::*;

    #[test]
    fn a_given_path_wins_and_becomes_absolute() {
        assert_eq!(socket_path(Some(Path::new("/a/b.sock"))), Path::new("/a/b.sock"));
        assert!(socket_path(Some(Path::new("b.sock"))).is_absolute());
        assert_eq!(state_dir(Some(Path::new("/s"))), Ok(PathBuf::from("/s")));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("c.toml");
        fs::write(&path, "state = \"/s\"\nmap_memory = \"64M\"\ncache_memory = \"8M\"\n").expect("write");
        let config = ConfigFile::read(&path).expect("valid");
        assert_eq!((config.state, config.map_memory), (Some(PathBuf::from("/s")), Some("64M".to_owned())));
        assert_eq!(config.cache_memory.as_deref(), Some("8M"));
        fs::write(&path, "[nbd]\nmax_clients = 3\nhandshake_seconds = 4\n").expect("write");
        let limits: NbdLimits = ConfigFile::read(&path).expect("valid").nbd.into();
        assert_eq!(limits, NbdLimits { max_clients: Some(3), max_requests: None, handshake_seconds: Some(4) });
        let discard = |text: &str| {
            fs::write(&path, text).expect("write");
            ConfigFile::read(&path).map(|config| config.discard())
        };
        assert_eq!(discard(""), Ok(Ok(DiscardRule::Lazy)));
        assert_eq!(discard("discard_freed = true\n"), Ok(Ok(DiscardRule::Lazy)));
        assert_eq!(discard("discard_freed = false\n"), Ok(Ok(DiscardRule::Never)));
        assert_eq!(discard("discard = \"now\"\n"), Ok(Ok(DiscardRule::Now)));
        assert!(discard("discard = \"now\"\ndiscard_freed = false\n").is_ok_and(|rule| rule.is_err()));
        assert!(discard("discard = \"often\"\n").is_err());
        let command = |text: &str| {
            fs::write(&path, text).expect("write");
            ConfigFile::read(&path).map(|config| (config.on_event.map(CommandLine::words), config.on_event_severity))
        };
        let (words, severity) = command("on_event = [\"/bin/mail\", \"x\"]\non_event_severity = \"error\"\n").expect("valid");
        assert_eq!((words, severity), (Some(Ok(vec!["/bin/mail".to_owned(), "x".to_owned()])), Some(Severity::Error)));
        assert_eq!(command("on_event = \"/bin/x\"\n").expect("valid").0, Some(Ok(vec!["/bin/x".to_owned()])));
        for relative in ["on_event = \"mail\"\n", "on_event = []\n"] {
            assert!(command(relative).expect("valid").0.is_some_and(|words| words.is_err()), "{relative}");
        }
        assert!(command("on_event_severity = \"loud\"\n").is_err());
        fs::write(&path, "[nbd]\nclients = 3\n").expect("write");
        assert!(ConfigFile::read(&path).expect_err("unknown key").to_string().contains("clients"));
        fs::write(&path, "state = \"/s\"\nmap_memory = 5\n").expect("write");
        let told = ConfigFile::read(&path).expect_err("not a string").to_string();
        assert!(told.contains("c.toml: map_memory = 5: ") && !told.contains("state"), "{told}");
        fs::write(&path, "stat = \"/s\"\n").expect("write");
        let told = ConfigFile::read(&path).expect_err("unknown key").to_string();
        assert!(told.contains("stat") && !told.contains('\n'), "{told}");
    }
}
