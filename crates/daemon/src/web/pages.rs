//! The console's files, and the headers of all answers over TCP.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

/// Scripts, styles and connections of this origin alone; nothing inline, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file: path, type and content.
type File = (&'static str, &'static str, &'static str);

const FILES: &[File] = &[
    ("/", HTML, include_str!("console/index.html")),
    ("/console/style.css", STYLE, include_str!("console/style.css")),
    ("/console/icon.svg", PICTURE, include_str!("console/icon.svg")),
    ("/console/main.js", SCRIPT, include_str!("console/main.js")),
    ("/console/api.js", SCRIPT, include_str!("console/api.js")),
    ("/console/dom.js", SCRIPT, include_str!("console/dom.js")),
    ("/console/format.js", SCRIPT, include_str!("console/format.js")),
    ("/console/dialog.js", SCRIPT, include_str!("console/dialog.js")),
    ("/console/chart.js", SCRIPT, include_str!("console/chart.js")),
    ("/console/live.js", SCRIPT, include_str!("console/live.js")),
    ("/console/list.js", SCRIPT, include_str!("console/list.js")),
    ("/console/overview.js", SCRIPT, include_str!("console/overview.js")),
    ("/console/pool.js", SCRIPT, include_str!("console/pool.js")),
    ("/console/volume.js", SCRIPT, include_str!("console/volume.js")),
    ("/console/timeline.js", SCRIPT, include_str!("console/timeline.js")),
    ("/console/exports.js", SCRIPT, include_str!("console/exports.js")),
    ("/console/policies.js", SCRIPT, include_str!("console/policies.js")),
    ("/console/records.js", SCRIPT, include_str!("console/records.js")),
];

/// Returns a file of the console; `None` when it has none at this path.
pub fn file(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    let (_, kind, content) = FILES.iter().find(|(path, ..)| *path == uri.path())?;
    if method != Method::GET && method != Method::HEAD {
        return None;
    }
    // the files belong to the program, so its version and their length name their content
    let tag = format!("\"{}-{:x}\"", env!("CARGO_PKG_VERSION"), digest(content));
    let known = headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { Response::new(Body::from(*content)) };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    Some(response)
}

/// Returns a number that changes with the content (FNV-1a); nothing depends on it but caches.
fn digest(content: &str) -> u64 {
    content.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Adds the headers that every answer over TCP has.
pub fn protect(mut response: Response) -> Response {
    let fixed = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("x-frame-options"), "DENY"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    //! The files refer to each other and to nothing else, and have nothing inline.
    use super::*;

    #[test]
    fn every_import_and_link_is_a_file() {
        for (path, kind, content) in FILES {
            let quoted = content.split(['"', '\'', '`']).filter(|part| part.starts_with("./") || part.starts_with("/console/"));
            for part in quoted.filter(|part| part.ends_with(".js") || part.ends_with(".css") || part.ends_with(".svg")) {
                let full = part.replace("./", "/console/");
                assert!(FILES.iter().any(|(known, ..)| *known == full), "{path} names {part}");
            }
            if *kind == HTML {
                assert!(!content.contains(" style=") && !content.contains("<style") && !content.contains(" on"), "{path} has inline code");
                assert_eq!(content.matches("<script").count(), content.matches("<script type=\"module\" src=").count(), "{path}");
            }
            if *kind == SCRIPT {
                for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage.setItem('csrf"] {
                    assert!(!content.contains(word), "{path} uses {word}");
                }
            }
            assert!(
                !content.contains("https://") && !content.contains("http://") || content.contains("http://www.w3.org/2000/svg"),
                "{path}"
            );
        }
    }

    #[test]
    fn a_file_is_sent_once_and_other_paths_have_none() {
        let get = |path: &str, headers: &HeaderMap| file(&Method::GET, &path.parse().expect("a path"), headers);
        let first = get("/", &HeaderMap::new()).expect("the page");
        assert_eq!((first.status(), &first.headers()[CONTENT_TYPE]), (StatusCode::OK, &HeaderValue::from_static(HTML)));
        let again = HeaderMap::from_iter([(IF_NONE_MATCH, first.headers()[ETAG].clone())]);
        assert_eq!(get("/", &again).expect("the page").status(), StatusCode::NOT_MODIFIED);
        for path in ["/console/", "/console/../state.json", "/console/%2e%2e/state.json", "//", "/index.html", "/etc/passwd"] {
            assert!(get(path, &HeaderMap::new()).is_none(), "{path}");
        }
        assert!(file(&Method::POST, &Uri::from_static("/"), &HeaderMap::new()).is_none());
        let protected = protect(first);
        assert!(protected.headers()[CONTENT_SECURITY_POLICY].to_str().is_ok_and(|policy| !policy.contains("unsafe")));
        assert_eq!(protected.headers()[CACHE_CONTROL], "no-cache");
    }
}
