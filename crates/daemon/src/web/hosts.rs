//! Names under which a browser may reach the console.
//!
//! A page of another site can make its own name point to this host (DNS rebinding), and would then
//! belong to the same origin. So a request has to name this host: an IP address, which no name
//! server can give to another site, `localhost`, this host's name, or a configured name.

use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use millpond_api::{ApiError, ErrorKind};

const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Refuses a request that names another host than this one.
///
/// # Errors
/// The name, and how to permit it.
pub fn check(headers: &HeaderMap, uri: &Uri, permitted: &[String]) -> Result<(), ApiError> {
    let refused = |message: String| Err(ApiError::new(ErrorKind::Forbidden, message));
    let mut given = headers.get_all(HOST).iter();
    let (Some(host), None) = (given.next(), given.next()) else {
        return refused("the request needs one header Host".to_owned());
    };
    let Some(authority) = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok()).filter(|host| !host.as_str().contains('@'))
    else {
        return refused("the header Host is not the name of a host".to_owned());
    };
    // a request with a whole address has to name the same host twice
    if uri.authority().is_some_and(|other| *other != authority) {
        return refused("the header Host and the address of the request differ".to_owned());
    }
    let name = authority.host().to_ascii_lowercase();
    let name = name.trim_end_matches('.');
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok();
    let own = || std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_ascii_lowercase();
    if is_address || name == "localhost" || permitted.iter().any(|known| known.eq_ignore_ascii_case(name)) || name == own() {
        return Ok(());
    }
    let shown: String = name.chars().filter(|c| c.is_ascii_graphic()).take(100).collect();
    refused(format!("'{shown}' is no name of this host; use its address, or add the name to web_hosts in the daemon's configuration"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(host: &str) -> bool {
        let headers = HeaderMap::from_iter([(HOST, host.parse().expect("a value"))]);
        check(&headers, &Uri::from_static("/"), &["store.example".to_owned()]).is_ok()
    }

    #[test]
    fn only_names_of_this_host_are_accepted() {
        for host in ["127.0.0.1:8420", "127.0.0.1", "[::1]:8420", "192.0.2.7:1", "localhost:8420", "LOCALHOST", "store.example:8420"] {
            assert!(ok(host), "{host}");
        }
        for host in
            ["evil.example:8420", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b", "127.0.0.1@evil.example", "xstore.example"]
        {
            assert!(!ok(host), "{host}");
        }
        assert!(check(&HeaderMap::new(), &Uri::from_static("/"), &[]).is_err(), "no header");
        let mut two = HeaderMap::new();
        two.append(HOST, "localhost".parse().expect("a value"));
        two.append(HOST, "localhost".parse().expect("a value"));
        assert!(check(&two, &Uri::from_static("/"), &[]).is_err(), "two headers");
        let headers = HeaderMap::from_iter([(HOST, "localhost".parse().expect("a value"))]);
        assert!(check(&headers, &Uri::from_static("http://evil.example/"), &[]).is_err());
    }
}
