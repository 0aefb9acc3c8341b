//! The caller of a request.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use millpond_api::{ApiError, ErrorKind, Identity, Role};

use super::sessions::SessionKey;
use super::tokens::TokenKey;
use crate::routes::Refused;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this host, on the control socket, as the kernel knows it.
    Local {
        /// User id.
        uid: u32,
        /// Primary group id.
        gid: u32,
        /// Process id, if it is visible here.
        pid: Option<i32>,
    },
    /// A client over TCP.
    Remote {
        /// Its address.
        address: SocketAddr,
        /// Port of the daemon's end.
        port: u16,
        /// True if the connection is encrypted.
        tls: bool,
    },
}

/// A known caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User or token, for people: `user alice`, `token backup`.
    pub who: String,
    /// Role.
    pub role: Role,
    /// Pools that it may use; `None` for all.
    pub pools: Option<BTreeSet<String>>,
    /// Token that proves it.
    pub token: Option<TokenKey>,
    /// Session that proves it.
    pub session: Option<SessionKey>,
}

impl Caller {
    /// Returns a user of this host, who may use all pools.
    pub fn user(who: String, role: Role) -> Caller {
        Caller { who, role, pools: None, token: None, session: None }
    }

    /// Returns the daemon itself.
    pub fn daemon() -> Caller {
        Caller::user("the daemon".to_owned(), Role::Admin)
    }

    /// Returns true if it may use a pool.
    pub fn may_use(&self, pool: &str) -> bool {
        self.pools.as_ref().is_none_or(|pools| pools.contains(pool))
    }

    /// Returns true if it may use the pool of a name, `POOL/VOL@SNAP`.
    pub fn may_use_name(&self, name: &str) -> bool {
        self.may_use(name.split('/').next().unwrap_or_default())
    }

    /// Refuses a pool that it may not use.
    ///
    /// # Errors
    /// [`ErrorKind::Forbidden`], whether there is such a pool or not.
    pub fn check(&self, pool: Option<&str>) -> Result<(), ApiError> {
        match pool.filter(|pool| !self.may_use(pool)) {
            Some(pool) => Err(ApiError::new(ErrorKind::Forbidden, format!("{} is not for pool '{pool}'", self.who))),
            None => Ok(()),
        }
    }

    /// Returns the caller as the API shows it.
    pub fn identity(&self) -> Identity {
        let pools = self.pools.iter().flatten().cloned().collect();
        Identity { who: self.who.clone(), role: self.role.into(), pools, csrf: None, expires: None }
    }
}

/// The caller that the guard has put into the request. A route without a guard has none, and refuses.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Refused> {
        let unknown = || ApiError::new(ErrorKind::Unauthenticated, "the caller is not known").into();
        parts.extensions.get::<Caller>().cloned().ok_or_else(unknown)
    }
}
