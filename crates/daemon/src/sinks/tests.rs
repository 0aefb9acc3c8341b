//! Alerts reach webhook, command, mail and journal; failures are conditions.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::*;

const LONG: Duration = Duration::from_secs(600);

fn sink(target: Target) -> Sink {
    Sink { name: "one".to_owned(), severity: Severity::Warning, timeout: LONG, target }
}

fn alert(state: AlertState, subject: &str) -> Alert {
    let condition = Condition {
        kind: ConditionKind::DeviceSlow,
        severity: EventSeverity::Warning,
        cause: "it is slow".to_owned(),
        ..test_alert(subject).condition
    };
    Alert { state, condition, ..test_alert(subject) }
}

/// Answers requests with these status lines, and returns what was posted.
fn server(answers: &'static [&'static str]) -> (u16, thread::JoinHandle<Vec<(String, String)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("bound").port();
    let serve = move || {
        let mut posted = Vec::new();
        for answer in answers {
            let (stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            write!(reader.get_mut(), "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("an answer");
            posted.push((head, String::from_utf8(body).expect("UTF-8")));
        }
        posted
    };
    (port, thread::spawn(serve))
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_webhook_gets_beginning_and_end_also_after_a_failure() {
    let dir = tempfile::tempdir().expect("directory");
    let token = dir.path().join("token");
    fs::write(&token, "secret\n").expect("a token");
    let (port, served) = server(&["503 Busy", "200 OK", "204 No Content"]);
    let webhook = Webhook::new(&format!("http://127.0.0.1:{port}/hook?x=1"), None, Some(token)).expect("a URL");
    let sinks = Sinks::start(vec![sink(Target::Webhook(webhook))]).expect("starts");
    sinks.send(&alert(AlertState::Begun, "a"));
    sinks.send(&alert(AlertState::Ended, "a"));
    let posted = served.join().expect("served");
    let states: Vec<String> =
        posted.iter().map(|(_, body)| serde_json::from_str::<Alert>(body).expect("an alert").state.to_string()).collect();
    assert_eq!(states, ["begun", "begun", "ended"]);
    let head = posted[0].0.to_ascii_lowercase();
    assert!(head.starts_with("post /hook?x=1 http/1.1") && head.contains("authorization: bearer secret"), "{head}");
    assert_eq!(sinks.conditions(), []);
}

#[test]
fn a_webhook_that_refuses_is_a_failure_without_its_path() {
    let (port, served) = server(&["404 Not Found"]);
    let webhook = Webhook::new(&format!("http://127.0.0.1:{port}/secret"), None, None).expect("a URL");
    let why = webhook.post(&alert(AlertState::Begun, "a"), LONG).expect_err("refused");
    assert_eq!(why, format!("127.0.0.1:{port}: the server answered 404 Not Found"));
    served.join().expect("served");
    let why = webhook.post(&alert(AlertState::Begun, "a"), LONG).expect_err("refused");
    assert!(why.contains("cannot connect"), "{why}");
    // a server that accepts and says nothing
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let silent = Webhook::new(&format!("http://{}/", listener.local_addr().expect("bound")), None, None).expect("a URL");
    let why = silent.post(&alert(AlertState::Begun, "a"), Duration::from_millis(50)).expect_err("silent");
    assert!(why.contains("no answer within"), "{why}");
    // plain text where TLS is wanted
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    let plain = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        // the first bytes of its handshake; servers end a connection that does not begin with a request
        stream.read_exact(&mut [0; 5]).expect("a handshake");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("an answer");
    });
    let tls = Webhook::new(&format!("https://{address}/"), None, None).expect("a URL");
    let why = tls.post(&alert(AlertState::Begun, "a"), LONG).expect_err("plain text");
    assert!(why.contains("TLS"), "{why}");
    plain.join().expect("served");
}

#[test]
fn odd_urls_are_refused() {
    for (url, word) in
        [("ftp://host/", "https://"), ("host", "https://"), ("https://user:secret@host/", "token_file"), ("http:///x", "URL")]
    {
        let why = Webhook::new(url, None, None).expect_err(url);
        assert!(why.contains(word), "{url}: {why}");
    }
    assert!(Webhook::new("http://example.org/", None, Some(PathBuf::from("/t"))).is_err_and(|why| why.contains("plain text")));
    assert!(Webhook::new("http://[::1]:80/", None, Some(PathBuf::from("/t"))).is_ok());
}

fn shell(script: &str) -> Vec<String> {
    ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn command_and_mail_get_the_alert_and_no_value_adds_a_header() {
    let dir = tempfile::tempdir().expect("directory");
    let (ran, mailed) = (dir.path().join("ran"), dir.path().join("mailed"));
    let command = shell(&format!("echo $MILLPOND_ALERT_STATE $MILLPOND_ALERT_KIND >> {0}; cat >> {0}", ran.display()));
    // ignores the argument -t
    let program = shell(&format!("cat >> {}", mailed.display()));
    let mail = Target::Mail { program, to: "root".to_owned(), from: Some("pond@host".to_owned()) };
    let sinks = Sinks::start(vec![sink(Target::Command(command)), sink(mail)]).expect("starts");
    let evil = "/dev/x\nBcc: all@world";
    sinks.send(&alert(AlertState::Begun, evil));
    eventually("both ran", || read(&ran).ends_with("}\n") && read(&mailed).contains("Host:"));
    let text = read(&ran);
    assert!(text.starts_with("begun device.slow\n{\"state\":\"begun\",\"host\":"), "{text}");
    let mail = read(&mailed);
    let (head, body) = mail.split_once("\n\n").expect("a head");
    assert!(
        head.starts_with("From: pond@host\nTo: root\nSubject: ") && head.contains("millpond warning: device.slow /dev/x?Bcc"),
        "{head}"
    );
    assert!(!mail.lines().any(|line| line.starts_with("Bcc")), "{mail}");
    assert!(body.starts_with("it is slow\n"), "{body}");
    for address in ["", "a b", "a@b\nBcc: c", "\u{fc}@b"] {
        assert!(check_address(address).is_err(), "{address:?}");
    }
    assert_eq!(check_address("ops@example.org"), Ok(()));
}

#[test]
fn the_journal_gets_fields() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("socket");
    let journal = UnixDatagram::bind(&path).expect("binds");
    let sinks = Sinks::start(vec![sink(Target::Journal(path.clone()))]).expect("starts");
    sinks.send(&alert(AlertState::Begun, "two\nlines"));
    let mut entry = vec![0; 65536];
    let length = journal.recv(&mut entry).expect("an entry");
    entry.truncate(length);
    let text = String::from_utf8_lossy(&entry);
    for field in [
        "MESSAGE=warning: it is slow\n",
        "PRIORITY=4\n",
        "SYSLOG_IDENTIFIER=millpond\n",
        "MILLPOND_STATE=begun\n",
        "MILLPOND_CONDITION=device.slow\n",
    ] {
        assert!(text.contains(field), "{field}: {text}");
    }
    let mut subject = b"MILLPOND_SUBJECT\n".to_vec();
    subject.extend_from_slice(&9_u64.to_le_bytes());
    subject.extend_from_slice(b"two\nlines\n");
    assert!(entry.windows(subject.len()).any(|part| part == subject), "{text}");
}

#[test]
fn a_sink_that_fails_is_a_condition_until_it_works() {
    let dir = tempfile::tempdir().expect("directory");
    let good = dir.path().join("good");
    let sinks = Sinks::start(vec![sink(Target::Command(shell(&format!("test -e {}", good.display()))))]).expect("starts");
    sinks.send(&Alert {
        condition: Condition { severity: EventSeverity::Info, ..alert(AlertState::Begun, "a").condition },
        ..alert(AlertState::Begun, "a")
    });
    sinks.send(&alert(AlertState::Begun, "a"));
    eventually("it fails", || !sinks.conditions().is_empty());
    let found = sinks.conditions();
    assert!(found.first().is_some_and(|found| found.cause == "sink 'one' does not get alerts: it ended with exit code 1"), "{found:?}");
    fs::write(&good, "").expect("a file");
    sinks.send(&alert(AlertState::Ended, "a"));
    eventually("it works", || sinks.conditions().is_empty());
}
