//! Identity and role of the callers of the API.
//!
//! A caller on the control socket is known by the credentials that the kernel has of its process; one
//! over TCP by a token, or by a session of the console. [`Caller`] is the one type for all of them:
//! the routes' guard (`crates/daemon/src/routes/guard.rs`) puts it into each request.

mod accounts;
mod caller;
mod failures;
mod secret;
mod sessions;
mod tokens;

use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond_api::{ApiError, CreateToken, CreatedToken, ErrorKind, EventKind, Link, Role, Token, instant};

pub use accounts::Grants;
pub use caller::{Caller, Peer};
pub use failures::{Failures, Verdict};
pub use sessions::Sessions;
pub use tokens::{TokenRecord, Tokens};

use super::events::Happened;
use super::service::Daemon;

/// Everything that decides who a caller is.
#[derive(Default)]
pub struct Access {
    tokens: Mutex<Tokens>,
    sessions: Mutex<Sessions>,
    failures: Mutex<Failures>,
    /// Address of the console, as links name it, once it is served.
    web: Mutex<Option<String>>,
}

impl Access {
    /// Returns the state with the tokens of the state file.
    pub fn with(tokens: Vec<TokenRecord>) -> Access {
        Access { tokens: Mutex::new(Tokens::new(tokens)), ..Access::default() }
    }

    /// Locks the tokens. Never held across an await.
    pub fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the sessions. Never held across an await.
    pub fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the failures. Never held across an await.
    pub fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the address of the console.
    pub fn set_web(&self, url: String) {
        *self.web.lock().unwrap_or_else(PoisonError::into_inner) = Some(url);
    }

    fn web(&self) -> Option<String> {
        self.web.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true while the proof that a caller gave is valid: a stream to it ends when its token
    /// is destroyed or expires, or its session ends.
    pub fn is_valid(&self, caller: &Caller) -> bool {
        let now = instant::now();
        let token = caller.token.as_ref().is_none_or(|token| self.tokens().is_valid(token, now));
        token && caller.session.as_ref().is_none_or(|session| self.sessions().is_valid(session, now))
    }
}

impl Daemon {
    /// Lists tokens by name.
    pub fn list_tokens(&self) -> Vec<Token> {
        self.access.tokens().list(instant::now())
    }

    /// Creates a token. Durable on return.
    ///
    /// # Errors
    /// When the name is taken or not acceptable, the time is past, or the state cannot be saved.
    pub fn create_token(&self, by: &Caller, request: CreateToken) -> Result<CreatedToken, ApiError> {
        let name = request.name.clone();
        let during = format!("cannot create token '{name}'");
        let created = self.access.tokens().create(&by.who, request, instant::now()).map_err(|e| e.during(&during))?;
        // a token that is not in the state file is not usable either
        if let Err(error) = self.save() {
            self.access.tokens().remove(&name);
            return Err(error.during(&during));
        }
        let message = format!("{} created the token '{name}' with the role {}", by.who, created.token.role);
        self.report(Happened::to_daemon(EventKind::TokenCreated, message).about(name));
        Ok(created)
    }

    /// Destroys a token: its bearer and the sessions that began with it are refused from now on.
    ///
    /// # Errors
    /// When there is none of this name, or the state cannot be saved.
    pub fn destroy_token(&self, by: &Caller, name: &str) -> Result<(), ApiError> {
        if !self.access.tokens().remove(name) {
            return Err(ApiError::not_found(format!("no token '{name}'; see 'millpond token list'")));
        }
        self.save()?;
        self.report(Happened::to_daemon(EventKind::TokenDestroyed, format!("{} destroyed the token '{name}'", by.who)).about(name));
        Ok(())
    }

    /// Makes a link that opens the console once, with a role.
    ///
    /// # Errors
    /// When the console is not served, or the host has no random numbers.
    pub fn make_link(&self, by: &Caller, role: Role) -> Result<Link, ApiError> {
        let Some(url) = self.access.web() else {
            return Err(ApiError::invalid("the console is not served; start the daemon with 'millpond serve --web 127.0.0.1:8420'"));
        };
        if role > by.role {
            return Err(ApiError::new(ErrorKind::Forbidden, format!("{} has only the role {}", by.who, by.role.name())));
        }
        let (code, expires) = self.access.sessions().link(&Caller { role, ..by.clone() }, instant::now())?;
        Ok(Link { url: format!("{url}#login={code}"), expires })
    }
}
