//! Start and end of the daemon, as events.

use millpond_api::failure::Outcome;
use millpond_api::{EventKind, Severity};

use super::attached;
use super::events::Happened;
use super::service::Daemon;

/// Number of exports that the event at the end names; of the rest it gives the count.
const NAMED: usize = 8;

/// Exports and the number of their clients at some time.
pub(super) struct Users {
    exports: Vec<String>,
    clients: usize,
}

impl Daemon {
    /// Reports that the daemon has started, and whether the previous one ended cleanly.
    pub(super) fn report_start(&self) {
        let unclean = self.dir.note_start().unwrap_or_else(|error| {
            tracing::warn!(%error, "the next daemon does not know how this one ends");
            false
        });
        let version = env!("CARGO_PKG_VERSION");
        let event = |message: String| Happened::to_daemon(EventKind::DaemonStarted, message);
        self.report(match unclean {
            true => event(format!(
                "the daemon has started, version {version}; its previous end was not clean: it was killed, or the host went down; nothing acknowledged is lost, pools replay their logs"
            ))
            .at(Severity::Warning),
            false => event(format!("the daemon has started, version {version}")),
        });
    }

    /// Returns the exports that are served, and the number of their clients.
    pub(super) async fn users(&self) -> Users {
        let looks = self.look().await;
        let exports = looks.iter().filter_map(|look| look.answer()).flat_map(|answer| &answer.exports);
        let clients = exports.clone().flat_map(attached::clients).count();
        Users { exports: exports.map(|export| format!("{} ({})", export.id, export.name)).collect(), clients }
    }

    /// Reports that the daemon has ended, with the exports that it served, and writes the last
    /// events.
    pub(super) fn report_end(&self, users: &Users, closed: &Outcome) {
        let mut message = "the daemon has stopped".to_owned();
        if !users.exports.is_empty() {
            let more = users.exports.len().saturating_sub(NAMED);
            let named = users.exports.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            message += &format!("; it served exports {named}{more}, {} clients were connected", users.clients);
        }
        let event = |message: String| Happened::to_daemon(EventKind::DaemonStopped, message);
        self.report(match closed {
            Ok(()) => event(message),
            Err(failure) => event(format!("{message}; {failure}")).at(Severity::Warning),
        });
        if let Err(error) = self.dir.note_end() {
            tracing::warn!(%error, "the next daemon takes this end for one that was not clean");
        }
        self.events.finish();
    }
}
