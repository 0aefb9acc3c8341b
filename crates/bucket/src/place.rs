//! Address of a bucket: a URL, and options.

use std::net::IpAddr;

use url::{Host, Url};

/// Region of stores that have none, and of AWS if none is given.
const REGION: &str = "us-east-1";
/// Longest prefix, in bytes. S3 permits keys of 1,024 bytes.
const MAX_PREFIX: usize = 512;

/// A bucket, and the part of it that belongs to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the bucket.
    pub bucket: String,
    /// Beginning of all keys, without a slash at either end; may be empty.
    pub prefix: String,
    /// URL of a store that is not AWS.
    pub endpoint: Option<String>,
    /// Region.
    pub region: String,
    /// Whether requests go over HTTP without TLS.
    pub plain: bool,
}

/// Reason why the address is refused. Display is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The URL does not have the form of a bucket's.
    #[error("'{0}' is not the URL of a bucket; give s3://BUCKET/PREFIX")]
    Url(String),
    /// The prefix has characters that stores treat differently.
    #[error("the prefix '{0}' is not usable; give at most 512 letters, digits, '-', '_', '.' and single '/'")]
    Prefix(String),
    /// An option without a value.
    #[error("'{0}' is not an option; give NAME=VALUE")]
    Option(String),
    /// An unknown option.
    #[error("no option '{0}'; choose from endpoint, region, insecure_http")]
    Unknown(String),
    /// A value out of range.
    #[error("'{1}' is no value for {0}; {2}")]
    Value(&'static str, String, &'static str),
    /// An endpoint without TLS that other machines could read and change.
    #[error("{0} has no TLS: everyone on the way could read and change the data; give https://, or -o insecure_http=on to accept that")]
    Insecure(String),
}

impl Place {
    /// Reads a URL `s3://BUCKET/PREFIX` and options `NAME=VALUE`: `endpoint`, `region`,
    /// `insecure_http`. `region` is used if no option names one.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn parse<S: AsRef<str>>(url: &str, options: &[S], region: Option<&str>) -> Result<Place, PlaceError> {
        let wrong = || PlaceError::Url(without_user(url));
        let rest = url.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || bucket.starts_with('.') || !bucket.chars().all(known) {
            return Err(wrong());
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(known);
        if prefix.len() > MAX_PREFIX || !(prefix.is_empty() || prefix.split('/').all(part)) {
            return Err(PlaceError::Prefix(prefix.to_owned()));
        }
        let region = region.filter(|region| !region.is_empty()).unwrap_or(REGION);
        let mut place = Place { bucket: bucket.into(), prefix: prefix.into(), endpoint: None, region: region.into(), plain: false };
        let mut insecure = false;
        for option in options {
            let option = option.as_ref();
            let (name, value) = option.split_once('=').ok_or_else(|| PlaceError::Option(option.to_owned()))?;
            match name {
                "endpoint" => place.endpoint = Some(value.trim_end_matches('/').to_owned()),
                "region" if value.is_empty() || !value.chars().all(known) => {
                    return Err(PlaceError::Value("region", value.to_owned(), "give a name such as eu-central-1"));
                }
                "region" => place.region = value.to_owned(),
                "insecure_http" => {
                    insecure = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(PlaceError::Value("insecure_http", value.to_owned(), "give on or off")),
                    }
                }
                _ => return Err(PlaceError::Unknown(name.to_owned())),
            }
        }
        place.check_endpoint(insecure)?;
        Ok(place)
    }

    fn check_endpoint(&mut self, insecure: bool) -> Result<(), PlaceError> {
        let Some(endpoint) = self.endpoint.as_deref() else { return Ok(()) };
        let wrong = || PlaceError::Value("endpoint", without_user(endpoint), "give https://HOST[:PORT] or http://HOST[:PORT]");
        let url = Url::parse(endpoint).map_err(|_| wrong())?;
        let host = url.host().ok_or_else(wrong)?;
        // a user in the URL would be shown in messages, and a path would be a part of the keys
        let more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
        if !url.username().is_empty() || url.password().is_some() || more {
            return Err(wrong());
        }
        self.plain = match url.scheme() {
            "https" => false,
            "http" if insecure || is_loopback(&host) => true,
            "http" => return Err(PlaceError::Insecure(endpoint.to_owned())),
            _ => return Err(wrong()),
        };
        // a name in other letters is written as in the network
        self.endpoint = Some(url.as_str().trim_end_matches('/').to_owned());
        Ok(())
    }

    /// Returns the key of a name or folder.
    pub fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}/{name}", self.prefix) }
    }

    /// Returns the name in a key below the prefix.
    pub fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        if self.prefix.is_empty() { Some(key) } else { key.strip_prefix(&self.prefix)?.strip_prefix('/') }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// Returns a URL for messages, without a user and a password.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let shown = rest.rsplit_once('@').map_or(rest, |(_, shown)| shown);
    if scheme.is_empty() { shown.to_owned() } else { format!("{scheme}://{shown}") }
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => IpAddr::V4(*address).is_loopback(),
        Host::Ipv6(address) => IpAddr::V6(*address).is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, options: &[&str]) -> Result<Place, PlaceError> {
        Place::parse(url, options, None)
    }

    #[test]
    fn a_url_has_a_bucket_and_a_prefix() {
        let place = parse("s3://pond/a/b/", &[]).expect("a place");
        assert_eq!((place.bucket.as_str(), place.prefix.as_str(), place.region.as_str()), ("pond", "a/b", REGION));
        assert_eq!((place.key("term/1"), place.name("a/b/term/1"), place.name("a/bterm/1")), ("a/b/term/1".into(), Some("term/1"), None));
        let bare = parse("s3://pond", &["region=eu-1"]).expect("a place");
        assert_eq!((bare.key("x"), bare.name("x"), bare.region.as_str()), ("x".into(), Some("x"), "eu-1"));
        assert_eq!((place.to_string(), bare.to_string()), ("s3://pond/a/b".into(), "s3://pond".into()));
        assert_eq!(Place::parse::<&str>("s3://pond", &[], Some("r2")).expect("a place").region, "r2");
    }

    #[test]
    fn wrong_words_are_refused_with_a_remedy() {
        for url in ["pond", "s3:/pond", "s3://", "s3:///x", "http://pond/x", "s3://a b", "s3://po\u{43d}d", "s3://.x"] {
            assert_eq!(parse(url, &[]), Err(PlaceError::Url(url.into())));
        }
        for prefix in ["a//b", "a/../b", ".", "a b", "a?b", "\u{430}"] {
            assert!(matches!(parse(&format!("s3://pond/{prefix}"), &[]), Err(PlaceError::Prefix(_))), "{prefix}");
        }
        assert!(matches!(parse("s3://pond", &["endpoint"]), Err(PlaceError::Option(_))));
        assert!(matches!(parse("s3://pond", &["endpiont=x"]), Err(PlaceError::Unknown(_))));
        for option in ["region=", "insecure_http=yes", "endpoint=ftp://x", "endpoint=x", "endpoint=https://u:p@x", "endpoint=https://x/y"] {
            assert!(matches!(parse("s3://pond", &[option]), Err(PlaceError::Value(..))), "{option}");
        }
    }

    #[test]
    fn no_password_is_shown_and_names_are_those_of_the_network() {
        for refused in [parse("s3://key:secret@pond", &[]), parse("s3://pond", &["endpoint=https://key:secret@x"])] {
            let why = refused.expect_err("a user").to_string();
            assert!(!why.contains("secret") && !why.contains("key:"), "{why}");
        }
        let place = parse("s3://pond", &["endpoint=https://b\u{fc}cher.example/"]).expect("a place");
        assert_eq!(place.endpoint.as_deref(), Some("https://xn--bcher-kva.example"));
    }

    #[test]
    fn http_is_for_loopback_or_by_an_explicit_word() {
        for endpoint in ["http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:2", "http://127.8.8.8/"] {
            assert!(parse("s3://pond", &[&format!("endpoint={endpoint}")]).expect(endpoint).plain);
        }
        for endpoint in ["http://10.0.0.1:9000", "http://store.example", "http://localhost.example", "http://[::2]"] {
            let option = format!("endpoint={endpoint}");
            let refused = parse("s3://pond", &[&option]).expect_err(endpoint);
            assert!(refused.to_string().contains("insecure_http=on"), "{refused}");
            assert!(parse("s3://pond", &["insecure_http=on", &option]).expect(endpoint).plain);
        }
        assert!(!parse("s3://pond", &["endpoint=https://store.example"]).expect("a place").plain);
    }
}
