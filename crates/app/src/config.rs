//! Locations of the control socket and the state directory, and the daemon's configuration file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use millpond_api::failure::{Failure, Outcome};
use millpond_api::path::absolute;
use millpond_api::{NbdLimits, Severity};

/// Default directory of the control socket, if it is accessible.
const SYSTEM_RUN: &str = "/run/millpond";
/// Default state directory of a daemon run by root.
const SYSTEM_STATE: &str = "/var/lib/millpond";
const SOCKET_NAME: &str = "control.sock";

/// Keys of the configuration file. Command-line options override them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// Owner of the control socket: `USER`, `USER:GROUP` or `:GROUP`, as names or numbers; by
    /// default the user that runs the daemon, with group `millpond` if root runs it and the group
    /// exists. The owner and the members of the group given here are admins.
    pub socket_owner: Option<String>,
    /// Permissions of the control socket in octal, such as `"0660"`; by default 0660 if
    /// `socket_owner` has a group, else 0600.
    pub socket_mode: Option<String>,
    /// State directory.
    pub state: Option<PathBuf>,
    /// Maximum bytes of map nodes in memory, for each pool; takes sizes such as `512M`.
    pub map_memory: Option<String>,
    /// Maximum bytes of the index in memory of cache devices, for each pool; 20 bytes for a block
    /// of 4 KiB.
    pub cache_memory: Option<String>,
    /// Maximum bytes of the read cache in memory, for all pools together; default 256M, 0 turns it
    /// off.
    pub read_cache: Option<String>,
    /// Maximum bytes of payloads and replies in flight of all clients together, besides 256 KiB for
    /// each client. Default: a quarter of the host's memory, at most 4G; never less than two
    /// requests of maximum length.
    pub request_memory: Option<String>,
    /// Threads that compress and decompress blocks for all pools, beside the thread of each pool;
    /// default: one less than the processors, at most 8.
    pub helper_threads: Option<u8>,
    /// When free segments are returned to the host, as holes in a file or discards of a disk;
    /// default `lazy`, see [`DiscardRule`].
    pub discard: Option<DiscardRule>,
    /// Older form of `discard`: `false` is `discard = "never"`.
    pub discard_freed: Option<bool>,
    /// Minutes for which the pool's checkpoints are kept intact for a rewind, as long as they need
    /// only a small part of the pool; default 10.
    pub rewind_minutes: Option<u32>,
    /// Minutes that an import waits for a missing device before a spare replaces it; default 5.
    pub spare_minutes: Option<u32>,
    /// How long the daemon's start waits for missing devices of a pool before it imports the pool
    /// without them, if the redundancy allows that: a span such as `90s` or `5m`; default 30 s.
    pub import_wait: Option<String>,
    /// Identity of this host among the hosts that share devices: any text; default: the machine id.
    pub host_id: Option<String>,
    /// Command to run for each event: an absolute path, or a list of the path and its arguments.
    /// `docs/events.md` describes its input.
    pub on_event: Option<CommandLine>,
    /// Minimum severity of events for `on_event`: `info`, `warning` (default), or `error`.
    pub on_event_severity: Option<Severity>,
    /// Time after which the command of `on_event` is killed: a span; default 30 s.
    pub on_event_timeout: Option<String>,
    /// TCP address of console and API, as for `--web`.
    pub web: Option<String>,
    /// Directory with the certificate of the console, `server-cert.pem` and `server-key.pem`.
    pub web_tls: Option<PathBuf>,
    /// Names of this host under which browsers may reach the console, beside its addresses,
    /// `localhost` and its own name.
    pub web_hosts: Option<Vec<String>>,
    /// Roles on the control socket; default: `operators = [":millpond"]`.
    pub access: AccessSection,
    /// Number of events that the daemon keeps; 100 to 1000000, default 10000.
    pub events_kept: Option<usize>,
    /// Bytes of the events that the daemon keeps, as lines of JSON; `64K` to `256M`, default 4M. The
    /// file has at most twice this size.
    pub events_size: Option<String>,
    /// Time without a complete scrub after which the pool has the condition `scrub.overdue`: a span,
    /// default `35d`; `never`.
    pub scrub_overdue: Option<String>,
    /// Sinks of alerts, as tables `[[sink]]`; `docs/health.md` describes them.
    pub sink: Vec<SinkSection>,
    /// Default limits of clients of NBD exports: `max_clients`, `max_requests`,
    /// `handshake_seconds`.
    pub nbd: NbdSection,
}

/// A command: its path, or a list of the path and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CommandLine {
    /// Path without arguments.
    Path(String),
    /// Path and arguments.
    Words(Vec<String>),
}

impl CommandLine {
    /// Returns path and arguments.
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

/// When free segments are returned to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiscardRule {
    /// Never: the pool keeps all space that it ever used.
    Never,
    /// Gradually, as far as segments exceeded the need of the log for ten minutes.
    Lazy,
    /// As soon as the pool is idle.
    Now,
}

/// Roles on the control socket: lists of users (`USER`) and groups (`:GROUP`), as names or numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSection {
    /// May do everything.
    pub admins: Option<Vec<String>>,
    /// Work with volumes, snapshots and exports.
    pub operators: Option<Vec<String>>,
    /// Read only.
    pub viewers: Option<Vec<String>>,
}

/// [`NbdLimits`] as a section of the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NbdSection {
    max_clients: Option<u32>,
    max_requests: Option<u16>,
    handshake_seconds: Option<u32>,
}

/// A sink of alerts. Which keys are needed depends on `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkSection {
    /// Name of the sink, unique.
    pub name: String,
    /// Kind of the sink.
    pub kind: SinkKind,
    /// Least severity of the conditions: `warning` (default) or `error`.
    pub severity: Option<Severity>,
    /// Limit of one attempt: a span; default 10 s, for commands and mail 30 s.
    pub timeout: Option<String>,
    /// `webhook`: address, `https://` or `http://`.
    pub url: Option<String>,
    /// `webhook`: file with authorities in PEM that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// `webhook`: file with a token, sent as `Authorization: Bearer`.
    pub token_file: Option<PathBuf>,
    /// `command`: absolute path, or a list of the path and its arguments. `sendmail`: default
    /// `["/usr/sbin/sendmail", "-t"]`.
    pub command: Option<CommandLine>,
    /// `journald`: path of the socket; default `/run/systemd/journal/socket`.
    pub socket: Option<PathBuf>,
    /// `sendmail`: address of the recipient.
    pub to: Option<String>,
    /// `sendmail`: address of the sender.
    pub from: Option<String>,
}

/// Kind of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    /// A command for each alert.
    Command,
    /// A POST of JSON.
    Webhook,
    /// An entry of the journal.
    Journald,
    /// A mail.
    Sendmail,
}

impl From<NbdSection> for NbdLimits {
    fn from(NbdSection { max_clients, max_requests, handshake_seconds }: NbdSection) -> NbdLimits {
        NbdLimits { max_clients, max_requests, handshake_seconds }
    }
}

impl ConfigFile {
    /// Resolves `discard` and `discard_freed`.
    ///
    /// # Errors
    /// Both keys are set and contradict each other.
    pub fn discard(&self) -> Result<DiscardRule, &'static str> {
        match (self.discard, self.discard_freed) {
            (None, Some(false)) => Ok(DiscardRule::Never),
            (Some(DiscardRule::Never), Some(true)) | (Some(DiscardRule::Lazy | DiscardRule::Now), Some(false)) => {
                Err("discard contradicts it; keep only discard")
            }
            (rule, _) => Ok(rule.unwrap_or(DiscardRule::Lazy)),
        }
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    /// When it cannot be read, or has unknown keys or invalid values.
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

/// Returns the control socket to connect to or to listen on: the given path, else the system-wide
/// one, else that of the user's session.
pub fn socket_path(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return absolute(path);
    }
    let system = Path::new(SYSTEM_RUN);
    // A user's own daemon cannot use /run. The system-wide socket is preferred if it exists.
    if system.join(SOCKET_NAME).exists() || rustix::process::geteuid().is_root() {
        return system.join(SOCKET_NAME);
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("millpond").join(SOCKET_NAME),
        _ => system.join(SOCKET_NAME),
    }
}

/// Returns the state directory: the given one, else the system's for root, else the user's.
///
/// # Errors
/// Wrong usage, if no directory is given and `HOME` is not set.
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

#[cfg(test)]
mod tests {
    //! Paths, and the configuration file.
    use millpond_api::instant::parse_span;
    use millpond_api::size::Size;
    use millpond_daemon::{IMPORT_WAIT, READ_CACHE};
    use millpond_engine::Tuning;

    use super::*;
    use crate::command::EVENT_TIMEOUT;

    #[test]
    fn a_given_path_wins_and_becomes_absolute() {
        assert_eq!(socket_path(Some(Path::new("/a/b.sock"))), Path::new("/a/b.sock"));
        assert!(socket_path(Some(Path::new("b.sock"))).is_absolute());
        assert_eq!(state_dir(Some(Path::new("/s"))), Ok(PathBuf::from("/s")));
    }

    /// The file that packages install, with comments for each key.
    const PACKAGED: &str = include_str!("../../../packaging/millpond.toml");

    /// Returns the keys that the program accepts, in a section or outside of any.
    fn accepted(section: &str) -> Vec<String> {
        let refusal = toml::from_str::<ConfigFile>(&format!("{section}no_such_key = 1\n")).expect_err("unknown key");
        // serde lists the keys: expected one of `a`, `b`
        let keys: Vec<String> = refusal.message().split('`').skip(3).step_by(2).map(str::to_owned).collect();
        assert!(keys.len() > 2, "{refusal}");
        keys
    }

    /// Returns the packaged file with its defaults and examples in force.
    fn in_force() -> String {
        let is_key = |c: char| c.is_ascii_lowercase() || c == '_';
        let uncommented = |line: &str| {
            let setting =
                line.strip_prefix("# ").filter(|rest| rest.trim_start_matches(is_key).starts_with(" = ") || rest.starts_with("[["));
            setting.unwrap_or(line).to_owned()
        };
        PACKAGED.lines().map(uncommented).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_packaged_file_has_every_key() {
        let table: toml::Table = in_force().parse().expect("valid TOML");
        for key in accepted("") {
            assert!(table.contains_key(&key), "packaging/millpond.toml lacks {key}");
        }
        for section in ["nbd", "access"] {
            let keys = table.get(section).and_then(toml::Value::as_table).expect("a section");
            for key in accepted(&format!("[{section}]\n")) {
                assert!(keys.contains_key(&key), "packaging/millpond.toml lacks {section}.{key}");
            }
        }
    }

    #[test]
    fn the_packaged_file_shows_every_key_of_a_sink() {
        let table: toml::Table = in_force().parse().expect("valid TOML");
        let sinks = table.get("sink").and_then(toml::Value::as_array).expect("sinks");
        for key in accepted("[[sink]]\nname = \"a\"\nkind = \"command\"\n") {
            assert!(sinks.iter().any(|sink| sink.get(&key).is_some()), "packaging/millpond.toml lacks {key} of a sink");
        }
        let config: ConfigFile = toml::from_str(&in_force()).expect("valid");
        assert!(crate::command::sinks(&config.sink).is_ok_and(|sinks| sinks.len() == 3));
        assert_eq!(span_of(&config.scrub_overdue), Some(millpond_daemon::SCRUB_OVERDUE));
    }

    fn span_of(text: &Option<String>) -> Option<std::time::Duration> {
        text.as_deref().map(|text| parse_span(text).expect("a span"))
    }

    #[test]
    fn the_packaged_file_shows_the_defaults() {
        let config: ConfigFile = toml::from_str(&in_force()).expect("only known keys with valid values");
        let size = |text: &Option<String>| text.as_deref().map(|text| text.parse::<Size>().expect("a size").0);
        let span = |text: &Option<String>| text.as_deref().map(|text| parse_span(text).expect("a span"));
        let tuning = Tuning::default();
        assert_eq!(size(&config.map_memory), Some(tuning.map_memory));
        assert_eq!(size(&config.cache_memory), Some(tuning.cache_memory));
        assert_eq!(size(&config.read_cache), Some(READ_CACHE));
        assert!(size(&config.request_memory).is_some());
        assert_eq!(config.rewind_minutes.map(|minutes| u64::from(minutes) * 60_000), Some(tuning.rewind_millis));
        assert_eq!(config.spare_minutes.map(|minutes| u64::from(minutes) * 60_000), Some(tuning.spare_millis));
        assert_eq!(span(&config.import_wait), Some(IMPORT_WAIT));
        assert_eq!(span(&config.on_event_timeout), Some(EVENT_TIMEOUT));
        assert_eq!(config.on_event_severity, Some(Severity::Warning));
        assert_eq!(config.discard(), ConfigFile::default().discard());
        assert!(config.on_event.is_some_and(|command| command.words().is_ok()));
        let limits: NbdLimits = config.nbd.into();
        // as the help of `export nbd` says
        assert_eq!(limits, NbdLimits { max_clients: Some(128), max_requests: Some(256), handshake_seconds: Some(10) });
    }

    #[test]
    fn the_packaged_file_as_installed_sets_only_places() {
        let config: ConfigFile = toml::from_str(PACKAGED).expect("valid");
        let places = ConfigFile {
            socket: Some(Path::new(SYSTEM_RUN).join(SOCKET_NAME)),
            state: Some(PathBuf::from(SYSTEM_STATE)),
            ..ConfigFile::default()
        };
        assert_eq!(config, places);
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
        let refusal = ConfigFile::read(&path).expect_err("not a string").to_string();
        assert!(refusal.contains("c.toml: map_memory = 5: ") && !refusal.contains("state"), "{refusal}");
        fs::write(&path, "stat = \"/s\"\n").expect("write");
        let refusal = ConfigFile::read(&path).expect_err("unknown key").to_string();
        assert!(refusal.contains("stat") && !refusal.contains('\n'), "{refusal}");
    }
}
