//! The guard before all routes: knows the caller, and refuses requests that its role and pools do
//! not allow.
//!
//! *Architecture Invariant:* a request without a known peer, a known caller or a rule is refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::extract::{MatchedPath, Query, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use millpond_api::{ApiError, CallerKind, ErrorKind, instant};
use serde_json::Value;
use tokio::time::timeout;

use super::refused::Refused;
use super::rules::{Pools, Rule, rule};
use crate::Daemon;
use crate::access::{Caller, Peer, Verdict};
use crate::events::Happened;
use crate::locks::blocking;
use crate::web::{hosts, pages};

/// Most bytes of a body.
const BODY: usize = 1 << 20;
/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Header with the CSRF value of a session.
const CSRF: &str = "x-millpond-csrf";

/// Name of the cookie of a session. Browsers send a cookie to every port of a host, so the port makes
/// the daemons of a host differ. With TLS a browser takes the prefix `__Host-` only from this very host.
pub fn cookie_name(port: u16, tls: bool) -> String {
    format!("{}millpond-{port}", if tls { "__Host-" } else { "" })
}

fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Forbidden, message)
}

fn unauthenticated(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Unauthenticated, message)
}

/// Lets a request pass to its route if its caller may send it.
pub async fn guard(State(daemon): State<Arc<Daemon>>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned();
    let remote = match &peer {
        Some(Peer::Remote { address, .. }) => Some(*address),
        _ => None,
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (response, who) = match admit(&daemon, peer, request).await {
        Ok((caller, request)) => (next.run(request).await, caller.map(|caller| caller.who)),
        Err(error) => (refuse(&daemon, error, remote), None),
    };
    if remote.is_some() && method != Method::GET && method != Method::HEAD {
        let who = who.as_deref().unwrap_or("nobody");
        tracing::info!(who, status = response.status().as_u16(), "{method} {path}");
    }
    if remote.is_some() { pages::protect(response) } else { response }
}

/// Returns the response to a refused request. Wrong credentials of a client over TCP are counted.
pub fn refuse(daemon: &Daemon, error: ApiError, from: Option<SocketAddr>) -> Response {
    let Some(address) = from.filter(|_| error.kind == ErrorKind::Unauthenticated) else {
        return Refused::from(error).into_response();
    };
    let verdict = daemon.access.failures().count(address.ip(), instant::now());
    let Verdict::Wait { seconds, first } = verdict else { return Refused::from(error).into_response() };
    if first {
        let message = format!("{} sends requests without a valid token or session; last: {}", address.ip(), error.message);
        daemon.report(Happened::to_daemon(millpond_api::EventKind::AccessRefused, message));
    }
    let error = ApiError::new(ErrorKind::TooMany, format!("too many requests with wrong credentials; wait {seconds} s"));
    let mut response = Refused::from(error).into_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.unsigned_abs()));
    response
}

/// Returns the request with its caller, or the reason why it is refused.
async fn admit(daemon: &Arc<Daemon>, peer: Option<Peer>, request: Request) -> Result<(Option<Caller>, Request), ApiError> {
    let peer = peer.ok_or_else(|| unauthenticated("the peer of the connection is not known"))?;
    let (mut parts, body) = request.into_parts();
    if let Peer::Remote { .. } = peer {
        hosts::check(&parts.headers, &parts.uri, &daemon.options.web_hosts)?;
    }
    let matched = <MatchedPath as OptionalFromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    let Some(matched) = matched.ok().flatten() else {
        // pages of the console, and paths that do not exist: nothing of the daemon's state
        return Ok((None, Request::from_parts(parts, body)));
    };
    let Some(rule) = rule(&parts.method, matched.as_str()) else {
        return Err(ApiError::not_found(format!("no route {} {}; see /v1/openapi.json", parts.method, parts.uri.path())));
    };
    let body = if let Peer::Remote { .. } = peer { Body::from(whole(body).await?) } else { body };
    let Some(role) = rule.role else {
        // the login of another site could not read the answer, but could put its own session here
        check_origin(&parts.headers)?;
        return Ok((None, Request::from_parts(parts, body)));
    };
    let caller = caller(daemon, &peer, &parts).await?;
    if caller.role < role {
        let (who, has, needs) = (&caller.who, caller.role.name(), role.name());
        return Err(forbidden(format!("{who} has the role {has}, and this needs {needs}; ask an administrator")));
    }
    let body = check_pools(daemon, &caller, rule, &mut parts, body).await?;
    parts.extensions.insert(by(&caller, &peer));
    parts.extensions.insert(caller.clone());
    Ok((Some(caller), Request::from_parts(parts, body)))
}

/// Returns the whole body, if it arrives in time.
async fn whole(body: Body) -> Result<axum::body::Bytes, ApiError> {
    match timeout(BODY_TIME, to_bytes(body, BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(ApiError::invalid(format!("the body cannot be read, or has more than {BODY} bytes"))),
        Err(_) => Err(ApiError::invalid(format!("the body did not arrive within {} s", BODY_TIME.as_secs()))),
    }
}

/// Returns the caller that a peer and its headers prove.
async fn caller(daemon: &Arc<Daemon>, peer: &Peer, parts: &Parts) -> Result<Caller, ApiError> {
    let name = match *peer {
        Peer::Local { uid, gid, pid } => return local(daemon, uid, gid, pid).await,
        Peer::Remote { port, tls, .. } => cookie_name(port, tls),
    };
    let now = instant::now();
    if let Some(given) = parts.headers.get(AUTHORIZATION) {
        let secret = given.to_str().ok().and_then(|text| text.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let (_, secret) = secret.ok_or_else(|| unauthenticated("the header Authorization is not 'Bearer SECRET'"))?;
        return daemon.access.tokens().bearer(secret.trim(), now);
    }
    let Some(cookie) = cookie(&parts.headers, &name) else {
        return Err(unauthenticated("no token: give 'Authorization: Bearer SECRET', or log in to the console"));
    };
    let caller = daemon.access.sessions().caller(&cookie, now)?;
    if !daemon.access.is_valid(&caller) {
        return Err(unauthenticated("the token of this session was destroyed or has expired; log in again"));
    }
    if parts.method != Method::GET && parts.method != Method::HEAD {
        check_origin(&parts.headers)?;
        let given = parts.headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !caller.session.is_some_and(|session| daemon.access.sessions().has_csrf(&session, given)) {
            return Err(forbidden("the header X-Millpond-Csrf does not have the value of this session; load the page again"));
        }
    }
    Ok(caller)
}

/// Returns the caller with the credentials of a local process.
async fn local(daemon: &Arc<Daemon>, uid: u32, gid: u32, pid: Option<i32>) -> Result<Caller, ApiError> {
    let grants = Arc::clone(&daemon.options.grants);
    let found = blocking(move || Ok(grants.caller(uid, gid))).await?;
    found.map_err(|name| {
        tracing::warn!(uid, pid, "user {name} is refused on the control socket");
        let may = daemon.options.grants.describe();
        forbidden(format!("user {name} may not use this daemon; root, its own user and {may} may: see docs/access.md"))
    })
}

/// Returns the caller as events record it.
fn by(caller: &Caller, peer: &Peer) -> millpond_api::Caller {
    let name = caller.who.split_once(' ').map_or(caller.who.as_str(), |(_, name)| name).to_owned();
    match *peer {
        Peer::Local { uid, pid, .. } => {
            let process = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
            millpond_api::Caller {
                kind: CallerKind::Unix,
                name,
                uid: Some(uid),
                pid: pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
                process: process.map(|name| name.trim_end().to_owned()),
            }
        }
        Peer::Remote { .. } => {
            let kind = if caller.session.is_some() { CallerKind::Session } else { CallerKind::Token };
            millpond_api::Caller { kind, name, uid: None, pid: None, process: None }
        }
    }
}

/// Returns a cookie of a request.
fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

/// Refuses a request that a page of another site sent. Programs other than browsers send neither
/// header.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let own = text(HOST.as_str()).unwrap_or_default();
    let foreign = text(ORIGIN.as_str()).is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != Some(own));
    if foreign || text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return Err(forbidden("a page of another site sent this request"));
    }
    Ok(())
}

/// Refuses a request about pools that the caller may not use. Returns its body.
async fn check_pools(daemon: &Daemon, caller: &Caller, rule: Rule, parts: &mut Parts, body: Body) -> Result<Body, ApiError> {
    if caller.pools.is_none() {
        return Ok(body);
    }
    let may = |pools: Vec<String>| match pools.iter().find(|pool| !caller.may_use(pool)) {
        Some(pool) => Err(forbidden(format!("{} is not for pool '{pool}'", caller.who))),
        None if pools.is_empty() => Err(forbidden(format!("{} is for some pools only, and the request names none", caller.who))),
        None => Ok(()),
    };
    match rule.pools {
        Pools::Unrelated | Pools::Filtered => return Ok(body),
        Pools::Whole => return Err(forbidden(format!("{} is for some pools only, and this is about all", caller.who))),
        Pools::InQuery(fields) => may(in_query(parts, fields)?)?,
        Pools::InPath => may(in_path(parts, "pool").await)?,
        Pools::OfExport => may(daemon.pool_of_export(&in_path(parts, "id").await))?,
        Pools::OfCopy => may(daemon.pools_of_copy(&in_path(parts, "id").await))?,
        Pools::Named(fields) => {
            let bytes = whole(body).await?;
            may(in_body(&bytes, fields)?)?;
            return Ok(Body::from(bytes));
        }
        Pools::InPathAndBody(fields) => {
            may(in_path(parts, "pool").await)?;
            let bytes = whole(body).await?;
            may(in_body(&bytes, fields)?)?;
            return Ok(Body::from(bytes));
        }
    }
    Ok(body)
}

/// Returns the pool of a name.
fn pool_of(name: &str) -> String {
    name.split('/').next().unwrap_or_default().to_owned()
}

/// Returns a parameter of the path, decoded as the route sees it.
async fn in_path(parts: &mut Parts, name: &str) -> Vec<String> {
    let Ok(params) = RawPathParams::from_request_parts(parts, &()).await else { return Vec::new() };
    params.iter().filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned()).collect()
}

fn in_query(parts: &Parts, fields: &[&str]) -> Result<Vec<String>, ApiError> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
        .map_err(|rejection| ApiError::invalid(format!("the query cannot be read: {}", rejection.body_text())))?;
    Ok(pairs.iter().filter(|(name, _)| fields.contains(&name.as_str())).map(|(_, value)| pool_of(value)).collect())
}

fn in_body(bytes: &[u8], fields: &[&str]) -> Result<Vec<String>, ApiError> {
    let body: Value = serde_json::from_slice(bytes).map_err(|e| ApiError::invalid(format!("the request cannot be read: {e}")))?;
    let mut pools = Vec::new();
    for value in fields.iter().filter_map(|field| body.get(field)) {
        match value {
            Value::String(name) => pools.push(pool_of(name)),
            Value::Array(names) => pools.extend(names.iter().map(|name| pool_of(name.as_str().unwrap_or_default()))),
            _ => pools.push(String::new()),
        }
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (axum::http::HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let own = ("host", "127.0.0.1:8420");
        assert!(check_origin(&headers(&[own])).is_ok(), "no browser");
        assert!(check_origin(&headers(&[own, ("origin", "http://127.0.0.1:8420"), ("sec-fetch-site", "same-origin")])).is_ok());
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8421", "http://127.0.0.1:8420.evil.example", ""] {
            assert!(check_origin(&headers(&[own, ("origin", origin)])).is_err(), "{origin}");
        }
        for site in ["cross-site", "same-site", "?"] {
            assert!(check_origin(&headers(&[own, ("sec-fetch-site", site)])).is_err(), "{site}");
        }
    }

    #[test]
    fn pools_are_found_in_all_fields_of_a_body() {
        let pools = |text: &str| in_body(text.as_bytes(), &["name", "more"]).ok();
        assert_eq!(pools(r#"{"name":"a/v@s","more":["b/v","c"]}"#), Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]));
        assert_eq!(pools(r#"{"name":7,"more":[null]}"#), Some(vec![String::new(), String::new()]), "no pool has an empty name");
        assert_eq!(pools("{}"), Some(Vec::new()));
        assert_eq!(pools("{"), None);
    }

    #[test]
    fn events_have_the_name_of_a_user_or_token() {
        let pid = std::process::id();
        let local = Peer::Local { uid: 107, gid: 107, pid: i32::try_from(pid).ok() };
        let user = by(&Caller::user("user qemu".to_owned(), millpond_api::Role::Operator), &local);
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("own name");
        assert_eq!((user.name.as_str(), user.uid, user.pid), ("qemu", Some(107), Some(pid)));
        assert_eq!(user.process.as_deref(), Some(comm.trim_end()));
        let remote = Peer::Remote { address: ([127, 0, 0, 1], 9).into(), port: 8420, tls: false };
        let token = by(&Caller::user("token backup".to_owned(), millpond_api::Role::Operator), &remote);
        assert_eq!(token.to_string(), "token backup");
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let all = headers(&[("cookie", "a=b; millpond=secret; millpondx=c")]);
        assert_eq!(cookie(&all, "millpond").as_deref(), Some("secret"));
        assert_eq!(cookie(&all, "__Host-millpond"), None);
    }
}
