//! `serve`: runs the daemon in the foreground.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::parse_span;
use millpond_api::size::Size;
use millpond_api::{Role, Severity};
use millpond_daemon::{
    Budget, Control, Daemon, EventBounds, Grants, Helpers, Hook, IMPORT_WAIT, Inherited, Options, READ_CACHE, SCRUB_OVERDUE, Signals,
    SocketAccess, StateDir, Web, WebOptions, check_nbd_limits, raise_descriptors, serve_until, this_host,
};
use millpond_engine::{Discard, ReadySpace, Tuning};
use sd_notify::NotifyState;
use tracing_subscriber::EnvFilter;

use super::{owner, sinks};
use crate::config::{AccessSection as ConfigAccess, CommandLine, ConfigFile, DiscardRule, socket_path, state_dir};

/// Default directory of the certificate of the console.
const WEB_TLS: &str = "/etc/millpond/tls";

/// Default time limit for the command of `on_event`.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Run the daemon in the foreground
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond serve --state /var/lib/millpond --socket /run/millpond/control.sock
  millpond serve --web 127.0.0.1:8420           and 'millpond token link' opens the console
  millpond serve --web 0.0.0.0 --web-tls        with the certificate in /etc/millpond/tls

Sockets of systemd (LISTEN_FDS) are used where an export or the control socket has their address.
The socket answers at once. The daemon is ready when each of its pools is in service again, or waits for a cause that 'millpond status' shows, and
after 30 s at the latest ('millpond status --wait 40' waits for that). SIGTERM or Ctrl-C stops it cleanly.
MILLPOND_LOG=debug logs more to standard error.")]
pub struct Serve {
    /// Directory for the state of the daemon: its pools and exports
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// TOML file with socket, socket_owner, socket_mode, state, map_memory, cache_memory, read_cache, request_memory, helper_threads, discard, rewind_minutes, spare_minutes, import_wait, host_id, on_event, on_event_severity, on_event_timeout, events_kept, events_size, scrub_overdue, web, web_tls, web_hosts, [access], [nbd], [[sink]]; options override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve the web console, and the API with tokens, on this TCP address; the default port is 8420
    #[arg(long, value_name = "ADDR")]
    web: Option<String>,
    /// Encrypt it, with server-cert.pem and server-key.pem of DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = WEB_TLS, require_equals = true)]
    web_tls: Option<PathBuf>,
    /// Allow a --web address that other machines can reach without encryption
    #[arg(long)]
    insecure_listen: bool,
}

impl Serve {
    pub async fn run(self, socket: Option<&Path>) -> Outcome {
        log_to_stderr("info");
        raise_descriptors();
        let config = self.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let wrong = |key: &str, why: &dyn Display| {
            let path = self.config.as_deref().unwrap_or(Path::new("")).display();
            Failure::failed(format!("{path}: {key}: {why}"))
        };
        let size = |key: &str, value: &Option<String>| {
            let size = value.as_deref().map(str::parse::<Size>).transpose();
            size.map(|size| size.map(|Size(bytes)| bytes)).map_err(|e| wrong(key, &e))
        };
        let mut tuning = Tuning { ready: ReadySpace::ahead(), ..Tuning::default() };
        tuning.map_memory = size("map_memory", &config.map_memory)?.unwrap_or(tuning.map_memory);
        tuning.cache_memory = size("cache_memory", &config.cache_memory)?.unwrap_or(tuning.cache_memory);
        let read_cache = size("read_cache", &config.read_cache)?.unwrap_or(READ_CACHE);
        let budget = size("request_memory", &config.request_memory)?.map_or_else(Budget::default, Budget::new);
        tuning.discard = discard(config.discard().map_err(|e| wrong("discard_freed", &e))?);
        tuning.rewind_millis = config.rewind_minutes.map_or(tuning.rewind_millis, |minutes| u64::from(minutes) * 60_000);
        tuning.spare_millis = config.spare_minutes.map_or(tuning.spare_millis, |minutes| u64::from(minutes) * 60_000);
        let limits = config.nbd.into();
        check_nbd_limits(&limits).map_err(|e| Failure::failed(e.message))?;
        let inherited = Arc::new(Inherited::from_env());
        let socket = socket_path(socket.or(config.socket.as_deref()));
        let dir = StateDir::open(&state_dir(self.state.as_deref().or(config.state.as_deref()))?)?;
        tuning.holder = Some(this_host(config.host_id.as_deref(), dir.path())?);
        let owner =
            config.socket_owner.as_deref().map(owner::parse).transpose().map_err(|e| wrong("socket_owner", &e))?.unwrap_or_default();
        let mode = config.socket_mode.as_deref().map(owner::mode).transpose().map_err(|e| wrong("socket_mode", &e))?;
        let grants = grants(&config).and(Role::Admin, owner.uid, owner.gid);
        let gid = owner.gid.or_else(|| grants.socket_group().filter(|_| rustix::process::geteuid().is_root()));
        let control = Control::bind(&socket, SocketAccess { uid: owner.uid, gid, mode }, &inherited)?;
        let web = self.web.clone().or(config.web.clone()).map(|address| {
            let tls = self.web_tls.clone().or(config.web_tls.clone());
            Web::bind(&WebOptions { address, tls, insecure: self.insecure_listen, any_port: false }, &inherited)
        });
        let control = control.with_web(web.transpose()?);
        let mut signals = Signals::catch()?;
        let import_wait = config.import_wait.as_deref().map_or(Ok(IMPORT_WAIT), parse_span).map_err(|e| wrong("import_wait", &e))?;
        let on_event = hook(&config).map_err(|(key, why)| wrong(key, &why))?;
        let options = Options {
            events: bounds(config.events_kept, size("events_size", &config.events_size)?).map_err(|(key, why)| wrong(key, &why))?,
            sinks: sinks::sinks(&config.sink).map_err(|why| wrong("sink", &why))?,
            scrub_overdue: scrub_overdue(config.scrub_overdue.as_deref()).map_err(|why| wrong("scrub_overdue", &why))?,
            on_event,
            socket,
            tuning,
            read_cache,
            budget: Arc::new(budget),
            helpers: Arc::new(Helpers::start(config.helper_threads.map_or_else(Helpers::usual, usize::from))),
            nbd: limits,
            inherited: Arc::clone(&inherited),
            import_wait,
            grants: Arc::new(grants),
            web_hosts: config.web_hosts.clone().unwrap_or_default().into(),
            ..Options::default()
        };
        let daemon = Arc::new(Daemon::new(options, dir)?);
        let ready = async |_: &Daemon| {
            inherited.report_unused();
            tracing::info!("ready");
            tell_manager(NotifyState::Ready);
            Ok(())
        };
        let stop = async {
            signals.end().await;
            tell_manager(NotifyState::Stopping);
        };
        serve_until(daemon, control, ready, stop).await
    }
}

/// Returns the roles on the control socket. Users that were given the socket could do everything
/// before there were roles: they are added as admins.
fn grants(config: &ConfigFile) -> Grants {
    let ConfigAccess { admins, operators, viewers } = config.access.clone();
    Grants::new(admins, operators, viewers)
}

fn discard(rule: DiscardRule) -> Discard {
    match rule {
        DiscardRule::Never => Discard::Never,
        DiscardRule::Lazy => Discard::Lazy,
        DiscardRule::Now => Discard::Now,
    }
}

/// Returns the bounds of the stored events. The error is the key of the configuration and the reason.
fn bounds(kept: Option<usize>, bytes: Option<u64>) -> Result<EventBounds, (&'static str, String)> {
    let (usual, least, most) = (EventBounds::default(), EventBounds::LEAST, EventBounds::MOST);
    let bytes = bytes.map_or(usual.bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let bounds = EventBounds { count: kept.unwrap_or(usual.count), bytes };
    if !(least.count..=most.count).contains(&bounds.count) {
        return Err(("events_kept", format!("{} is not between {} and {}", bounds.count, least.count, most.count)));
    }
    if !(least.bytes..=most.bytes).contains(&bounds.bytes) {
        let [given, least, most] = [bounds.bytes, least.bytes, most.bytes].map(|bytes| Size(bytes as u64));
        return Err(("events_size", format!("{given} is not between {least} and {most}")));
    }
    Ok(bounds)
}

/// Returns the time without a complete scrub after which one is overdue.
fn scrub_overdue(given: Option<&str>) -> Result<Option<Duration>, String> {
    match given {
        None => Ok(Some(SCRUB_OVERDUE)),
        Some("never") => Ok(None),
        Some(span) => parse_span(span).map(Some).map_err(|e| format!("{e}; give a span such as 35d, or never")),
    }
}

/// Returns the command for events. The error is the key of the configuration and the reason.
fn hook(config: &ConfigFile) -> Result<Option<Hook>, (&'static str, String)> {
    let timeout = config.on_event_timeout.as_deref().map_or(Ok(EVENT_TIMEOUT), parse_span);
    let timeout = timeout.map_err(|e| ("on_event_timeout", e.to_string()))?;
    let severity = config.on_event_severity.unwrap_or(Severity::Warning);
    let command = config.on_event.clone().map(CommandLine::words).transpose().map_err(|e| ("on_event", e))?;
    Ok(command.map(|command| Hook { command, severity, timeout }))
}

/// Reports the state to the service manager if it asked for that (`NOTIFY_SOCKET`, systemd's
/// `Type=notify`).
fn tell_manager(state: NotifyState) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Logs to standard error, from `level` up unless `MILLPOND_LOG` is set.
pub fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let colours = io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false).with_ansi(colours);
    // Fails only on a second call, which changes nothing; production code calls this once.
    let _ = subscriber.try_init();
}
