//! Thaws guests: once after a snapshot, and again until each thaw is confirmed (INV-FREEZE-1).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use millpond_api::EventKind;
use tokio::time::{sleep, timeout};

use super::agent::{Agent, AgentError};
use super::{Frozen, Guest, Limits, failed};
use crate::events::Happened;
use crate::service::Daemon;

pub(super) const THAW: &str = "guest-fsfreeze-thaw";
pub(super) const STATUS: &str = "guest-fsfreeze-status";

/// State of a guest after a thaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thawed {
    /// It was frozen until now, as far as the agent says.
    Now,
    /// It was thawed before: by the agent itself, or by another program.
    Before,
    /// It has ended.
    Ended,
}

impl Frozen {
    /// Thaws once. The guest is thawed, too, when it does not exist any more.
    async fn thaw(&mut self, limits: Limits) -> Result<Thawed, AgentError> {
        let mut agent = match self.agent.take() {
            Some(agent) => agent,
            None => match Agent::connect(&self.guest.socket).await {
                Err(AgentError::NoGuest(_)) => return Ok(Thawed::Ended),
                connected => connected?,
            },
        };
        // it may still be busy with the freeze
        agent.sync(limits.sync + limits.thaw).await?;
        let done = match agent.run(THAW, limits.thaw).await {
            // 0: no file system was frozen any more
            Ok(count) if self.count > 0 && count.as_u64() == Some(0) => Ok(Thawed::Before),
            Ok(_) => Ok(Thawed::Now),
            // Windows ends a freeze by itself, and reports that as the error of the thaw
            Err(error @ AgentError::Refused { .. }) => match agent.run(STATUS, limits.thaw).await {
                Ok(status) if status.as_str() == Some("thawed") => Ok(Thawed::Before),
                _ => Err(error),
            },
            Err(error) => Err(error),
        };
        if matches!(done, Err(AgentError::Refused { .. } | AgentError::Silent { .. })) {
            self.agent = Some(agent);
        }
        done
    }
}

impl Daemon {
    /// Thaws guests, each by itself. One that does not confirm it is thawed in the background. Returns
    /// the reasons for guests that were thawed before.
    pub(super) async fn thaw_all(self: &Arc<Daemon>, frozen: Vec<Frozen>) -> Vec<String> {
        let each = frozen.into_iter().map(|mut frozen| async move {
            match frozen.thaw(self.freezer.limits).await {
                Ok(thawed) => {
                    frozen.unmark();
                    let before = thawed == Thawed::Before;
                    before.then(|| failed(&frozen.guest, &"the guest was thawed before the snapshot was complete"))
                }
                Err(error) => {
                    self.thaw_later(frozen, Some(error));
                    None
                }
            }
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    /// Thaws a guest in the background, until its agent confirms that or the guest has ended. `error`
    /// is that of the first attempt, if one was made.
    pub(super) fn thaw_later(self: &Arc<Daemon>, mut frozen: Frozen, error: Option<AgentError>) {
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            let mut failed = error;
            let guest = frozen.guest.clone();
            let pool = guest.volume.split('/').next().unwrap_or_default().to_owned();
            loop {
                if let Some(error) = failed.take() {
                    let reason = format!("the guest of {} may be frozen: guest agent {}: {error}", guest.volume, guest.socket.display());
                    let known = daemon.freezer.stuck().insert(guest.clone(), reason.clone()).is_some();
                    if !known {
                        daemon.report(Happened::to_pool(EventKind::GuestStuck, &pool, reason).about(&guest.volume));
                    }
                    sleep(daemon.freezer.limits.pause).await;
                }
                match frozen.thaw(daemon.freezer.limits).await {
                    Ok(_) => break,
                    Err(error) => failed = Some(error),
                }
            }
            frozen.unmark();
            if daemon.freezer.stuck().remove(&guest).is_some() {
                let message = format!("the guest of {} is thawed, or has ended", guest.volume);
                daemon.report(Happened::to_pool(EventKind::GuestThawed, &pool, message).about(&guest.volume));
            }
        });
    }

    /// Thaws the guests that an earlier daemon left frozen.
    pub(crate) fn thaw_left(self: &Arc<Daemon>) {
        for (guest, mark) in self.freezer.marked() {
            let daemon = Arc::clone(self);
            tokio::spawn(async move {
                tracing::warn!(volume = guest.volume, "a daemon ended while the guest was frozen: it is thawed");
                let lock = daemon.freezer.lock(&guest.socket).await;
                daemon.thaw_later(Frozen { guest, agent: None, count: 0, mark, _lock: lock }, None);
            });
        }
    }

    /// Freezes no guest from now on, and waits until those that are frozen are thawed. A guest that
    /// does not confirm its thaw keeps its mark, and is thawed by the next daemon.
    pub(crate) async fn wait_for_thaws(&self) {
        let (freezer, limits) = (&self.freezer, self.freezer.limits);
        freezer.closed.store(true, Ordering::SeqCst);
        let busy = || -> Vec<PathBuf> {
            let locks = freezer.locks();
            locks.iter().filter(|(_, lock)| Arc::strong_count(lock) > 1).map(|(socket, _)| socket.clone()).collect()
        };
        let idle = async {
            while busy().iter().any(|socket| freezer.stuck_reason(socket).is_none()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let limit = limits.sync + limits.freeze + limits.frozen + limits.sync + limits.thaw * 2;
        let in_time = timeout(limit, idle).await.is_ok();
        if !in_time || !busy().is_empty() {
            tracing::warn!(agents = ?busy(), "guests may be frozen: the next start of the daemon thaws them");
        }
    }

    /// Returns the volumes of a pool whose guests may be frozen, with the reasons.
    pub(crate) fn stuck_guests(&self, pool: &str) -> Vec<(String, String)> {
        let of_pool = |guest: &Guest| guest.volume.split('/').next() == Some(pool);
        self.freezer
            .stuck()
            .iter()
            .filter(|(guest, _)| of_pool(guest))
            .map(|(guest, reason)| (guest.volume.clone(), reason.clone()))
            .collect()
    }
}
