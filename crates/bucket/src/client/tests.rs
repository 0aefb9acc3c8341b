//! The client against a server that answers as a script says, once for each connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use millpond_format::{ObjectFolder, ObjectName, Term};

use super::Bucket;
use crate::{Answer, BucketError, Credentials, ErrorKind, Operation, Part, Place};

const NAME: ObjectName = ObjectName::Term(Term(1));

/// Step of the script: the bytes of the answer, and whether the connection is reset instead of closed.
struct Script {
    endpoint: String,
    server: JoinHandle<Vec<String>>,
}

impl Script {
    /// Serves one connection for each answer; an empty answer closes the connection without one.
    fn start(answers: Vec<String>) -> Script {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let server = thread::spawn(move || {
            let serve = |answer: String| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let head = request(&mut stream);
                stream.write_all(answer.as_bytes()).expect("answering");
                head
            };
            answers.into_iter().map(serve).collect()
        });
        Script { endpoint, server }
    }

    fn bucket(&self) -> Bucket {
        let place = Place::parse("s3://pond/tank", &[format!("endpoint={}", self.endpoint)], None).expect("a place");
        Bucket::new(place, &credentials()).expect("a client")
    }

    /// Waits for the end; returns the heads of all requests.
    fn end(self) -> Vec<String> {
        self.server.join().expect("the server")
    }
}

fn credentials() -> Credentials {
    Credentials::from_text("AWS_ACCESS_KEY_ID=test\nAWS_SECRET_ACCESS_KEY=testtest").expect("credentials")
}

/// Reads a request with its body; returns its head.
fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("reading") == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).expect("the body");
    head
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
}

fn refused(status: &str, code: &str) -> String {
    answer(status, "", &format!("<Error><Code>{code}</Code><Message>because</Message></Error>"))
}

fn create() -> Operation {
    Operation::Put { name: NAME, create: true, object: vec![1; 5000] }
}

fn read(part: Part) -> Operation {
    Operation::Get { name: NAME, part }
}

fn carry_out(bucket: &Bucket, operation: Operation) -> Result<Answer, BucketError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(bucket.carry_out(operation))
}

#[test]
fn one_operation_is_one_request_whatever_the_answer() {
    for (status, code, kind) in [
        ("503 Slow Down", "SlowDown", ErrorKind::Throttled),
        ("500 Internal Server Error", "InternalError", ErrorKind::Unknown),
        ("409 Conflict", "ConditionalRequestConflict", ErrorKind::Unknown),
        ("412 Precondition Failed", "PreconditionFailed", ErrorKind::Exists),
        ("403 Forbidden", "AccessDenied", ErrorKind::Denied),
        ("404 Not Found", "NoSuchBucket", ErrorKind::Missing),
        ("507 Insufficient Storage", "XMinioStorageFull", ErrorKind::Full),
        ("400 Bad Request", "InvalidArgument", ErrorKind::Refused),
    ] {
        let script = Script::start(vec![refused(status, code)]);
        let error = carry_out(&script.bucket(), create()).expect_err(status);
        let line = error.to_string();
        assert_eq!((error.kind, error.reason.map(|reason| reason.code)), (kind, Some(code.to_owned())), "{status}");
        assert!(line.starts_with("cannot create term/00000001: ") && line.contains("because"), "{line}");
        // the server ends after one answer, so a second request would not be answered
        let requests = script.end();
        assert_eq!(requests.len(), 1);
        assert!(requests[0].starts_with("PUT /pond/tank/term/00000001 ") && requests[0].contains("if-none-match: *"), "{}", requests[0]);
    }
}

#[test]
fn a_lost_answer_is_a_doubt_for_a_create_and_none_for_a_read() {
    let script = Script::start(vec![String::new(), String::new(), "HTTP/1.1 2".into()]);
    let bucket = script.bucket();
    assert_eq!(carry_out(&bucket, create()).expect_err("lost").kind, ErrorKind::Unknown);
    assert_eq!(carry_out(&bucket, read(Part::Whole)).expect_err("lost").kind, ErrorKind::Away);
    assert_eq!(carry_out(&bucket, Operation::Delete { names: vec![NAME] }).expect_err("cut off").kind, ErrorKind::Unknown);
    assert_eq!(script.end().len(), 3);
    // nobody listens any more
    assert_eq!(carry_out(&bucket, create()).expect_err("no connection").kind, ErrorKind::Away);
}

#[test]
fn an_object_that_ends_early_or_is_too_large_is_not_returned() {
    let head = "etag: \"1\"\r\nlast-modified: Fri, 27 Nov 2026 10:00:00 GMT\r\n";
    let long = format!("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n{head}\r\nshort");
    let huge = format!("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n{head}\r\nx");
    let whole = answer("200 OK", head, "all of it");
    let part = answer("206 Partial Content", &format!("{head}content-range: bytes 4-8/9\r\n"), "of it");
    let script = Script::start(vec![long, huge, whole.clone(), whole, part]);
    let bucket = script.bucket();
    assert_eq!(carry_out(&bucket, read(Part::Whole)).expect_err("short").kind, ErrorKind::Away);
    assert_eq!(carry_out(&bucket, read(Part::Whole)).expect_err("huge").kind, ErrorKind::Refused);
    assert_eq!(carry_out(&bucket, read(Part::Whole)), Ok(Answer::Read { bytes: b"all of it".to_vec(), length: 9 }));
    let tail = Part::Range { offset: 4, length: 10 };
    assert_eq!(carry_out(&bucket, read(tail)).expect_err("the whole instead of a part").kind, ErrorKind::Refused);
    assert_eq!(carry_out(&bucket, read(tail)), Ok(Answer::Read { bytes: b"of it".to_vec(), length: 9 }));
    let requests = script.end();
    assert!(requests[4].to_ascii_lowercase().contains("range: bytes=4-13"), "{}", requests[4]);
}

#[test]
fn a_list_has_the_names_below_the_prefix() {
    let entry =
        |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-27T10:00:00.000Z</LastModified></Contents>");
    let keys = ["tank/term/00000001", "tank/term/readme", "tank/term/00000002"].map(entry).concat();
    let text = format!(
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>{keys}</ListBucketResult>"
    );
    let script = Script::start(vec![answer("200 OK", "", &text)]);
    let list = Operation::List { folder: ObjectFolder::Terms, after: Some(ObjectName::Term(Term(0))), most: 5000 };
    let names = vec![NAME, ObjectName::Term(Term(2))];
    assert_eq!(carry_out(&script.bucket(), list), Ok(Answer::Names { names, more: true }));
    let requests = script.end();
    for word in ["prefix=tank%2Fterm%2F", "start-after=tank%2Fterm%2F00000000", "max-keys=1000"] {
        assert!(requests[0].contains(word), "{word}: {}", requests[0]);
    }
}

/// A redirect would take the request, and its token, to another host: it is an answer like others.
#[tokio::test]
async fn no_redirect_is_followed() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = format!("location: http://{}/x\r\n", other.local_addr().expect("an address"));
    for (status, operation) in [("307 Temporary Redirect", create()), ("303 See Other", create()), ("301 Moved", read(Part::Whole))] {
        let script = Script::start(vec![answer(status, &target, "")]);
        let error = script.bucket().carry_out(operation).await.expect_err(status);
        assert!(matches!(error.kind, ErrorKind::Denied | ErrorKind::Refused), "{error}");
        script.end();
    }
    other.set_nonblocking(true).expect("does not wait");
    assert_eq!(other.accept().expect_err("nothing came").kind(), std::io::ErrorKind::WouldBlock);
}
