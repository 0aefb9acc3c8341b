//! Sessions of the console, and the links that open them. Both are in memory: a restart of the
//! daemon ends them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use millpond_api::{ApiError, ErrorKind};

use super::caller::Caller;
use super::secret::{Digest, new_secret};

/// Time for which the code of a link is valid.
const LINK_LIFE: Duration = Duration::from_secs(10 * 60);
/// Time without a request after which a session ends.
const IDLE: Duration = Duration::from_secs(2 * 3600);
/// Longest life of a session.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Most sessions and most links; the oldest one ends for a new one.
const MOST: usize = 256;

/// Identifies a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey(Digest);

#[derive(Debug)]
struct Session {
    caller: Caller,
    /// Value that changes have to give beside the cookie.
    csrf: String,
    began: Timestamp,
    used: Timestamp,
}

#[derive(Debug)]
struct Code {
    caller: Caller,
    expires: Timestamp,
}

/// A new session.
#[derive(Debug)]
pub struct Opened {
    /// Secret for the cookie.
    pub cookie: String,
    /// Its caller.
    pub caller: Caller,
}

/// All sessions and codes, by the digests of their secrets.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: BTreeMap<Digest, Session>,
    codes: BTreeMap<Digest, Code>,
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

fn random(prefix: &str) -> Result<String, ApiError> {
    new_secret(prefix).map_err(|e| ApiError::internal(format!("the host has no random numbers: {e}")))
}

impl Session {
    /// Time of its end.
    fn ends(&self) -> Timestamp {
        after(self.used, IDLE).min(after(self.began, LIFE))
    }
}

impl Sessions {
    /// Makes a code that opens one session of a caller; returns it with the time of its end.
    ///
    /// # Errors
    /// The host has no random numbers.
    pub fn link(&mut self, caller: &Caller, now: Timestamp) -> Result<(String, Timestamp), ApiError> {
        self.codes.retain(|_, code| code.expires > now);
        if self.codes.len() >= MOST
            && let Some(first) = self.codes.iter().min_by_key(|(_, code)| code.expires).map(|(digest, _)| *digest)
        {
            self.codes.remove(&first);
        }
        let (secret, expires) = (random("")?, after(now, LINK_LIFE));
        self.codes.insert(Digest::of(&secret), Code { caller: caller.clone(), expires });
        Ok((secret, expires))
    }

    /// Returns the caller of a code, which is used up by that.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`]: it was used, has expired, or never was.
    pub fn redeem(&mut self, code: &str, now: Timestamp) -> Result<Caller, ApiError> {
        let known = self.codes.remove(&Digest::of(code)).filter(|code| code.expires > now);
        known.map(|code| code.caller).ok_or_else(|| {
            let message = "this link was used or has expired; get another one with 'millpond token link'";
            ApiError::new(ErrorKind::Unauthenticated, message)
        })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The host has no random numbers.
    pub fn open(&mut self, caller: Caller, now: Timestamp) -> Result<Opened, ApiError> {
        self.sessions.retain(|_, session| session.ends() > now);
        if self.sessions.len() >= MOST
            && let Some(first) = self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(digest, _)| *digest)
        {
            self.sessions.remove(&first);
        }
        let (cookie, csrf) = (random("")?, random("")?);
        let key = Digest::of(&cookie);
        let caller = Caller { session: Some(SessionKey(key)), ..caller };
        self.sessions.insert(key, Session { caller: caller.clone(), csrf, began: now, used: now });
        Ok(Opened { cookie, caller })
    }

    /// Returns the caller of a cookie.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`]: there is no such session any more.
    pub fn caller(&mut self, cookie: &str, now: Timestamp) -> Result<Caller, ApiError> {
        let ended = || ApiError::new(ErrorKind::Unauthenticated, "the session has ended; log in again");
        let session = self.sessions.get_mut(&Digest::of(cookie)).filter(|session| session.ends() > now).ok_or_else(ended)?;
        session.used = now;
        Ok(session.caller.clone())
    }

    /// Returns the CSRF value of a session, and the time of its end.
    pub fn details(&self, key: &SessionKey) -> Option<(String, Timestamp)> {
        self.sessions.get(&key.0).map(|session| (session.csrf.clone(), session.ends()))
    }

    /// Returns true if `given` is the CSRF value of a session.
    pub fn has_csrf(&self, key: &SessionKey, given: &str) -> bool {
        self.sessions.get(&key.0).is_some_and(|session| Digest::of(&session.csrf).is(&Digest::of(given)))
    }

    /// Returns true while a session lasts.
    pub fn is_valid(&self, key: &SessionKey, now: Timestamp) -> bool {
        self.sessions.get(&key.0).is_some_and(|session| session.ends() > now)
    }

    /// Ends a session.
    pub fn close(&mut self, key: &SessionKey) {
        self.sessions.remove(&key.0);
    }
}

#[cfg(test)]
mod tests {
    use millpond_api::Role;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn alice() -> Caller {
        Caller::user("user alice".to_owned(), Role::Operator)
    }

    #[test]
    fn a_link_opens_one_session() {
        let mut sessions = Sessions::default();
        let (code, expires) = sessions.link(&alice(), at(0)).expect("a code");
        assert_eq!(expires, at(600));
        assert_eq!(sessions.redeem(&code, at(599)).expect("valid"), alice());
        assert!(sessions.redeem(&code, at(599)).is_err(), "used");
        let (code, _) = sessions.link(&alice(), at(0)).expect("a code");
        assert!(sessions.redeem(&code, at(600)).is_err(), "expired");
        assert!(sessions.redeem("", at(1)).is_err());
    }

    #[test]
    fn a_session_ends_when_idle_when_old_and_on_request() {
        let mut sessions = Sessions::default();
        let Opened { cookie, caller } = sessions.open(alice(), at(0)).expect("open");
        let key = caller.session.expect("a key");
        let (csrf, ends) = sessions.details(&key).expect("open");
        assert_eq!(ends, at(7200));
        assert!(sessions.has_csrf(&key, &csrf) && !sessions.has_csrf(&key, "") && !sessions.has_csrf(&key, &cookie));
        for hour in 1..24 {
            assert!(sessions.caller(&cookie, at(hour * 3600)).is_ok(), "{hour}");
        }
        assert!(sessions.is_valid(&key, at(86_399)) && sessions.caller(&cookie, at(86_400)).is_err(), "a day is the longest life");
        let Opened { cookie, .. } = sessions.open(alice(), at(0)).expect("open");
        assert!(sessions.caller(&cookie, at(7200)).is_err(), "idle");
        let Opened { cookie, caller } = sessions.open(alice(), at(0)).expect("open");
        sessions.close(&caller.session.expect("a key"));
        assert!(sessions.caller(&cookie, at(1)).is_err(), "closed");
    }

    #[test]
    fn their_number_is_bounded() {
        let mut sessions = Sessions::default();
        let first = sessions.open(alice(), at(0)).expect("open");
        for second in 1..=300 {
            sessions.open(alice(), at(second)).expect("open");
            sessions.link(&alice(), at(second)).expect("a code");
        }
        assert!(sessions.sessions.len() <= MOST && sessions.codes.len() <= MOST);
        assert!(sessions.caller(&first.cookie, at(301)).is_err(), "the oldest one ended");
    }
}
