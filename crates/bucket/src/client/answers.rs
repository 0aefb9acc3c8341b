//! Answers of the store, and errors of the network, as kinds.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use reqwest::redirect::Policy;

use crate::{BucketError, ErrorKind, StoreReason, Verb};

/// Most bytes of a refusal that are looked at for its code.
const REFUSAL: usize = 16 << 10;
/// Longest code or message that is kept.
const WORDS: usize = 200;

/// Makes clients that return refusals as errors of the type [`StoreRefusal`]. They follow no redirect:
/// it would repeat the request, with its token, at another host, perhaps without TLS. A plain endpoint
/// is not reached through the proxies of the environment, for which loopback may be another machine.
#[derive(Debug)]
pub struct Connector {
    /// Requests go over HTTP without TLS.
    pub plain: bool,
    /// Time limit of a new connection.
    pub connect_limit: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let of = |error| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        let agent = concat!("millpond/", env!("CARGO_PKG_VERSION"));
        let builder = reqwest::Client::builder().user_agent(agent).redirect(Policy::none()).connect_timeout(self.connect_limit);
        let builder = if self.plain { builder.no_proxy() } else { builder.https_only(true) };
        Ok(HttpClient::new(Answers { inner: HttpClient::new(builder.build().map_err(of)?) }))
    }
}

/// Sends requests, and turns refusals into errors.
#[derive(Debug)]
pub struct Answers {
    inner: HttpClient,
}

#[async_trait::async_trait]
impl HttpService for Answers {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.inner.execute(request).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        // the status is the answer, even if its text is lost
        let text = answer.into_body().bytes().await.unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(..REFUSAL).unwrap_or(&text)).into_owned();
        let reason = StoreReason { status: status.as_u16(), code: element(&text, "Code"), message: element(&text, "Message") };
        Err(HttpError::new(HttpErrorKind::Unknown, StoreRefusal(reason)))
    }
}

/// A store's refusal within the library's chain of errors.
#[derive(Debug)]
struct StoreRefusal(StoreReason);

impl fmt::Display for StoreRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for StoreRefusal {}

/// Returns the first element of a name in an XML document, in one line. The documents of refusals are
/// flat, and a document that is not XML has no such element.
fn element(text: &str, name: &str) -> String {
    let found = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    let words = found.map(|(words, _)| words).unwrap_or_default();
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS).collect::<String>().trim().to_owned()
}

/// An object that ended too early, or that is too large, within the library's errors.
#[derive(Debug, thiserror::Error)]
enum Odd {
    #[error("{found} of {expected} bytes came")]
    Cut { found: u64, expected: u64 },
    #[error("an object of {0} bytes is not of this project")]
    TooLarge(u64),
}

pub fn cut(found: u64, expected: u64) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: Box::new(Odd::Cut { found, expected }) }
}

pub fn too_large(bytes: u64) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: Box::new(Odd::TooLarge(bytes)) }
}

/// Returns the error of a request without an answer in time.
pub fn timed_out(limit: Duration, verb: Verb, subject: String) -> BucketError {
    let kind = lost(verb);
    BucketError { kind, verb, subject, reason: None, cause: Some(format!("no answer within {} s", limit.as_secs())) }
}

/// Returns the kind of a request whose answer was lost.
fn lost(verb: Verb) -> ErrorKind {
    if verb.changes() { ErrorKind::Unknown } else { ErrorKind::Away }
}

/// Translates an error of the library.
pub fn describe(error: &object_store::Error, verb: Verb, subject: String) -> BucketError {
    let chain = || causes(error);
    if let Some(StoreRefusal(reason)) = chain().find_map(|error| error.downcast_ref()) {
        let kind = kind_of(reason, verb);
        return BucketError { kind, verb, subject, reason: Some(reason.clone()), cause: None };
    }
    let cause = Some(chain().last().map(|error| error.to_string().replace(['\n', '\r'], " ")).unwrap_or_default());
    let kind = match (chain().find_map(|error| error.downcast_ref::<HttpError>()), error) {
        // only a connection that was not made proves that nothing was sent
        (Some(error), _) if error.kind() == HttpErrorKind::Connect => ErrorKind::Away,
        (Some(_), _) => lost(verb),
        (None, object_store::Error::NotFound { .. }) => ErrorKind::Missing,
        (None, object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }) => ErrorKind::Refused,
        (None, _) if chain().any(|error| matches!(error.downcast_ref(), Some(Odd::Cut { .. }))) => ErrorKind::Away,
        // an answer that the library does not understand, such as a whole object instead of a part
        (None, _) if verb.changes() => ErrorKind::Unknown,
        (None, _) => ErrorKind::Refused,
    };
    BucketError { kind, verb, subject, reason: None, cause }
}

/// Returns an error and its sources.
fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |error| (*error).source())
}

/// Returns the kind of a refusal. Codes are those of the S3 API.
fn kind_of(reason: &StoreReason, verb: Verb) -> ErrorKind {
    match (reason.status, reason.code.as_str()) {
        (507, _) | (_, "QuotaExceeded" | "XMinioStorageFull" | "EntityTooLargeForQuota") => ErrorKind::Full,
        (429 | 503, _) | (_, "SlowDown" | "Throttling" | "TooManyRequests") => ErrorKind::Throttled,
        (401 | 403, _) | (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "RequestTimeTooSkewed") => ErrorKind::Denied,
        // the bucket is in another region
        (301 | 302 | 307 | 308, _) | (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => ErrorKind::Denied,
        (304 | 412, _) if verb == Verb::Create => ErrorKind::Exists,
        // another create of that name is under way: which of them is done is not known yet
        (409, _) if verb.changes() => ErrorKind::Unknown,
        (404, "NoSuchKey" | "NoSuchVersion") if verb == Verb::Read => ErrorKind::Missing,
        (404, "NoSuchBucket") if verb == Verb::Read => ErrorKind::Denied,
        // only the store knows that an object is not there: this may be the page of a proxy
        (404, _) if verb == Verb::Read => ErrorKind::Away,
        (404, _) => ErrorKind::Missing,
        (501, _) | (_, "NotImplemented") => ErrorKind::Refused,
        // AWS closes slow uploads with 400
        (408 | 500..=599, _) | (_, "RequestTimeout" | "InternalError") => lost(verb),
        _ => ErrorKind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str) -> StoreReason {
        StoreReason { status, code: code.into(), message: String::new() }
    }

    #[test]
    fn each_status_has_its_kind() {
        use ErrorKind::{Away, Denied, Exists, Full, Missing, Refused, Throttled, Unknown};
        let (create, write, read) = (Verb::Create, Verb::Write, Verb::Read);
        for (status, code, verb, kind) in [
            (412, "PreconditionFailed", create, Exists),
            (304, "", create, Exists),
            (412, "PreconditionFailed", write, Refused),
            (409, "ConditionalRequestConflict", create, Unknown),
            (409, "OperationAborted", Verb::Delete, Unknown),
            (404, "NoSuchKey", read, Missing),
            (404, "NoSuchBucket", read, Denied),
            (404, "", read, Away),
            (301, "PermanentRedirect", create, Denied),
            (307, "TemporaryRedirect", read, Denied),
            (400, "AuthorizationHeaderMalformed", create, Denied),
            (404, "NoSuchBucket", create, Missing),
            (500, "InternalError", create, Unknown),
            (502, "", create, Unknown),
            (504, "", write, Unknown),
            (500, "InternalError", read, Away),
            (408, "", read, Away),
            (400, "RequestTimeout", create, Unknown),
            (400, "ExpiredToken", create, Denied),
            (403, "RequestTimeTooSkewed", read, Denied),
            (401, "", read, Denied),
            (403, "SlowDown", create, Throttled),
            (503, "SlowDown", create, Throttled),
            (429, "", read, Throttled),
            (507, "", create, Full),
            (403, "QuotaExceeded", create, Full),
            (501, "NotImplemented", create, Refused),
            (400, "InvalidArgument", create, Refused),
            (405, "MethodNotAllowed", Verb::Delete, Refused),
        ] {
            assert_eq!(kind_of(&refusal(status, code), verb), kind, "{status} {code} {verb}");
        }
    }

    #[test]
    fn a_refusal_is_read_from_its_document() {
        let text = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please\nreduce.</Message></Error>";
        assert_eq!((element(text, "Code"), element(text, "Message")), ("SlowDown".into(), "Please reduce.".into()));
        assert_eq!(element("<html>no</html>", "Code"), "");
        assert_eq!(element("<Code>never closed", "Code"), "");
        assert_eq!(element(&format!("<Code>{}</Code>", "x".repeat(4000)), "Code").len(), WORDS);
    }

    #[test]
    fn an_object_that_is_cut_is_asked_for_again_and_a_foreign_one_is_refused() {
        let of = |error| describe(&error, Verb::Read, "term/00000001".into());
        let error = of(cut(1, 2));
        assert_eq!((error.kind, error.to_string().contains("1 of 2 bytes")), (ErrorKind::Away, true));
        assert_eq!(of(too_large(1 << 40)).kind, ErrorKind::Refused);
    }
}
