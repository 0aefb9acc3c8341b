//! Tokens: names with a role, for clients over TCP. The state file has the digests of their secrets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millpond_api::names::{Kind, check, describe_look_alike};
use millpond_api::{ApiError, CreateToken, CreatedToken, ErrorKind, Role, Token};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::secret::{Digest, new_secret};

/// From of every secret.
const PREFIX: &str = "mpt_";
/// Longest name of a token in bytes.
const LONGEST: usize = 64;
/// Most tokens: every wrong secret is compared with all of them.
const MOST: usize = 1000;

/// A token in the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Name.
    pub name: String,
    /// Digest of its secret.
    digest: Digest,
    /// Role of its bearer.
    pub role: Role,
    /// Pools that it is for; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Time of its creation.
    pub created: Timestamp,
    /// Caller that created it.
    pub created_by: String,
    /// Time from which it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// Identifies a token, and not a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    name: String,
    digest: Digest,
}

/// All tokens, by name.
#[derive(Debug, Default)]
pub struct Tokens {
    records: BTreeMap<String, TokenRecord>,
    /// Time of the last use of each since the start.
    used: BTreeMap<String, Timestamp>,
}

impl Tokens {
    /// Returns the tokens of the state file.
    pub fn new(records: Vec<TokenRecord>) -> Tokens {
        Tokens { records: records.into_iter().map(|record| (record.name.clone(), record)).collect(), used: BTreeMap::new() }
    }

    /// Returns the records for the state file.
    pub fn records(&self) -> Vec<TokenRecord> {
        self.records.values().cloned().collect()
    }

    /// Lists them by name.
    pub fn list(&self, now: Timestamp) -> Vec<Token> {
        self.records.values().map(|record| self.view(record, now)).collect()
    }

    fn view(&self, record: &TokenRecord, now: Timestamp) -> Token {
        let TokenRecord { name, role, pools, created, created_by, expires, .. } = record.clone();
        let (expired, last_used) = (has_expired(record, now), self.used.get(&name).copied());
        Token { name, role: role.into(), pools, created, created_by, expires, expired, last_used }
    }

    /// Creates a token.
    ///
    /// # Errors
    /// When the name is taken or not acceptable, there are too many, or the time is past.
    pub fn create(&mut self, by: &str, request: CreateToken, now: Timestamp) -> Result<CreatedToken, ApiError> {
        let CreateToken { name, role, pools, expires } = request;
        check_name(&name)?;
        pools.iter().try_for_each(|pool| check(Kind::Pool, pool))?;
        if self.records.contains_key(&name) {
            return Err(ApiError::new(ErrorKind::Exists, "it exists already; choose another name, or destroy it first"));
        }
        if self.records.len() >= MOST {
            return Err(ApiError::invalid(format!("there are {MOST} tokens, the most that are possible; destroy some first")));
        }
        if let Some(expires) = expires.filter(|expires| *expires <= now) {
            return Err(ApiError::usage(format!("it would expire at {expires}, which is past; give a later time")));
        }
        let secret = new_secret(PREFIX).map_err(|e| ApiError::internal(format!("the host has no random numbers: {e}")))?;
        let digest = Digest::of(&secret);
        let record = TokenRecord { name: name.clone(), digest, role, pools, created: now, created_by: by.to_owned(), expires };
        let token = self.view(&record, now);
        self.used.remove(&name);
        self.records.insert(name, record);
        Ok(CreatedToken { token, secret })
    }

    /// Removes a token; false when there is none of this name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.used.remove(name);
        self.records.remove(name).is_some()
    }

    /// Returns the bearer of a secret.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`]: no token has this secret, or it has expired.
    pub fn bearer(&mut self, secret: &str, now: Timestamp) -> Result<Caller, ApiError> {
        let refused = |message: String| Err(ApiError::new(ErrorKind::Unauthenticated, message));
        let given = Digest::of(secret);
        let Some(record) = self.records.values().find(|record| record.digest.is(&given)) else {
            return refused("no token has this secret; create one with 'millpond token create NAME --role ROLE'".to_owned());
        };
        if has_expired(record, now) {
            return refused(format!("token '{}' has expired; create another one", record.name));
        }
        self.used.insert(record.name.clone(), now);
        Ok(Caller {
            who: format!("token {}", record.name),
            role: record.role,
            pools: (!record.pools.is_empty()).then(|| record.pools.iter().cloned().collect()),
            token: Some(TokenKey { name: record.name.clone(), digest: record.digest }),
            session: None,
        })
    }

    /// Returns true if a token exists and has not expired.
    pub fn is_valid(&self, key: &TokenKey, now: Timestamp) -> bool {
        self.records.get(&key.name).is_some_and(|record| record.digest == key.digest && !has_expired(record, now))
    }
}

fn has_expired(record: &TokenRecord, now: Timestamp) -> bool {
    record.expires.is_some_and(|expires| expires <= now)
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if let Some(hint) = describe_look_alike(name) {
        return Err(ApiError::usage(format!("not a name of a token: {hint}")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(allowed) || name.starts_with(['-', '.']) {
        let message = format!("not a name of a token; give 1 to {LONGEST} of A-Z a-z 0-9 . _ -, beginning with a letter or digit");
        return Err(ApiError::usage(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> CreateToken {
        CreateToken { name: name.to_owned(), role: Role::Viewer, pools: vec!["tank".to_owned()], expires: None }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn the_bearer_of_a_secret_has_role_and_pools_of_its_token() {
        let mut tokens = Tokens::default();
        let created = tokens.create("user root", request("watch"), at(1)).expect("created");
        let caller = tokens.bearer(&created.secret, at(2)).expect("known");
        assert_eq!((caller.who.as_str(), caller.role), ("token watch", Role::Viewer));
        assert!(caller.may_use("tank") && !caller.may_use("other") && caller.may_use_name("tank/a@b") && !caller.may_use_name("tan"));
        assert_eq!(tokens.list(at(3))[0].last_used, Some(at(2)));
        let kept = serde_json::to_string(&tokens.records()).expect("text");
        assert!(!kept.contains(&created.secret) && !kept.contains(&created.secret[4..]), "only the digest is kept");
        let mut again = Tokens::new(serde_json::from_str(&kept).expect("records"));
        assert_eq!(again.bearer(&created.secret, at(4)).expect("known after a restart"), caller);
    }

    #[test]
    fn wrong_and_expired_secrets_are_refused() {
        let mut tokens = Tokens::default();
        let brief = CreateToken { expires: Some(at(10)), ..request("brief") };
        let created = tokens.create("user root", brief, at(1)).expect("created");
        let key = tokens.bearer(&created.secret, at(9)).expect("valid").token.expect("a key");
        assert!(tokens.is_valid(&key, at(9)) && !tokens.is_valid(&key, at(10)));
        assert!(tokens.bearer(&created.secret, at(10)).is_err_and(|e| e.message.contains("expired")));
        for wrong in ["", "mpt_", &created.secret[..65], &format!("{}0", created.secret)] {
            assert!(tokens.bearer(wrong, at(2)).is_err_and(|e| e.kind == ErrorKind::Unauthenticated), "{wrong}");
        }
        assert!(tokens.remove("brief") && !tokens.remove("brief"));
        tokens.create("user root", request("brief"), at(2)).expect("created anew");
        assert!(!tokens.is_valid(&key, at(3)), "a later token of this name is another one");
    }

    #[test]
    fn names_and_times_are_checked() {
        let mut tokens = Tokens::default();
        let long = "x".repeat(65);
        for wrong in ["", "a b", "../x", "-a", ".a", "tоken", &long] {
            assert!(tokens.create("u", request(wrong), at(1)).is_err_and(|e| e.kind == ErrorKind::Usage), "{wrong}");
        }
        tokens.create("u", request("a"), at(1)).expect("created");
        assert!(tokens.create("u", request("a"), at(1)).is_err_and(|e| e.kind == ErrorKind::Exists));
        let past = CreateToken { expires: Some(at(1)), ..request("b") };
        assert!(tokens.create("u", past, at(1)).is_err_and(|e| e.kind == ErrorKind::Usage));
        let pools = CreateToken { pools: vec!["a/b".to_owned()], ..request("b") };
        assert!(tokens.create("u", pools, at(1)).is_err());
    }
}
