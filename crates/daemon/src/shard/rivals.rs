//! Which clients, guests and mounts have requests at the same time.

/// Time in nanoseconds after an answer for which a client counts as busy: longer than a client takes
/// to its next request.
const BUSY_NANOS: u64 = 1_000_000;

/// The last two sessions that requests were answered to.
#[derive(Default)]
pub(super) struct Rivals {
    last: Answered,
    before: Answered,
}

/// A session, and when one of its requests was last answered, in nanoseconds of the shard's clock.
#[derive(Clone, Copy, Default)]
struct Answered {
    session: u32,
    at: Option<u64>,
}

impl Rivals {
    /// Notes that a request of a session is answered.
    pub fn seen(&mut self, session: u32, now: u64) {
        if self.last.session != session {
            self.before = self.last;
        }
        self.last = Answered { session, at: Some(now) };
    }

    /// Returns whether another session than this is busy.
    pub fn beside(&self, session: u32, now: u64) -> bool {
        let other = if self.last.session == session { self.before } else { self.last };
        other.at.is_some_and(|at| now.saturating_sub(at) <= BUSY_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::{BUSY_NANOS, Rivals};

    #[test]
    fn a_session_is_beside_others_that_were_answered_lately() {
        let mut rivals = Rivals::default();
        assert!(!rivals.beside(1, 0), "nothing was answered");
        rivals.seen(1, 10);
        rivals.seen(1, 20);
        assert!(!rivals.beside(1, 20), "it is alone");
        assert!(rivals.beside(2, 20));
        rivals.seen(2, 30);
        assert!(rivals.beside(1, 30 + BUSY_NANOS) && !rivals.beside(1, 31 + BUSY_NANOS));
        assert!(rivals.beside(2, 20 + BUSY_NANOS) && !rivals.beside(2, 21 + BUSY_NANOS));
    }
}
