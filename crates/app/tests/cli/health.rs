//! Conditions reach the sinks once at their beginning and once at their end, and `doctor` looks at
//! the host.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, command, eventually, run};

/// A web server that takes every alert, and answers 200.
struct Server {
    port: u16,
    alerts: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("bound").port();
        let alerts = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&alerts);
        // ends with the test's process
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).is_ok() && !line.trim().is_empty() {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap_or(0);
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_ok() {
                    taken.lock().expect("locks").push(serde_json::from_slice(&body).expect("JSON"));
                    // the client may have gone
                    let _ = write!(reader.get_mut(), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            }
        });
        Server { port, alerts }
    }

    /// Returns the states of the alerts of a kind.
    fn states(&self, kind: &str) -> Vec<String> {
        let alerts = self.alerts.lock().expect("locks");
        let of_kind = alerts.iter().filter(|alert| alert["condition"]["kind"] == kind);
        of_kind.map(|alert| alert["state"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn count(path: &Path, words: &str) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().filter(|line| *line == words).count()
}

/// Returns the conditions of the daemon of a kind.
fn conditions(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let status = daemon.json(&["status"]);
    status["conditions"].as_array().into_iter().flatten().filter(|condition| condition["kind"] == kind).cloned().collect()
}

/// Returns the entries that a journal has received.
fn entries(journal: &UnixDatagram) -> Vec<String> {
    let mut entries = Vec::new();
    let mut entry = vec![0; 65536];
    while let Ok(length) = journal.recv(&mut entry) {
        entries.push(String::from_utf8_lossy(&entry[..length]).into_owned());
    }
    entries
}

/// Returns the number of entries about a state of a degraded pool.
fn entries_of(entries: &[String], state: &str) -> usize {
    let fields = [format!("MILLPOND_STATE={state}\n"), "MILLPOND_CONDITION=pool.degraded\n".to_owned()];
    entries.iter().filter(|entry| fields.iter().all(|field| entry.contains(field))).count()
}

#[test]
fn a_condition_reaches_every_sink_at_its_beginning_and_its_end_also_after_a_kill() {
    let server = Server::start();
    let out = tempfile::tempdir().expect("a directory");
    let (ran, mailed, socket) = (out.path().join("ran"), out.path().join("mailed"), out.path().join("journal"));
    let journal = UnixDatagram::bind(&socket).expect("binds");
    journal.set_nonblocking(true).expect("sets");
    let sendmail = format!("[\"/bin/sh\", \"-c\", \"cat >> {}\", \"-t\"]", mailed.display());
    let script = format!("[\"/bin/sh\", \"-c\", \"echo $MILLPOND_ALERT_STATE $MILLPOND_ALERT_KIND >> {}\"]", ran.display());
    let config = format!(
        "import_wait = \"1s\"\n\
         [[sink]]\nname = \"web\"\nkind = \"webhook\"\nurl = \"http://127.0.0.1:{}/hook\"\n\
         [[sink]]\nname = \"script\"\nkind = \"command\"\ncommand = {script}\n\
         [[sink]]\nname = \"mail\"\nkind = \"sendmail\"\nto = \"root\"\ncommand = {sendmail}\n\
         [[sink]]\nname = \"journal\"\nkind = \"journald\"\nsocket = \"{}\"\n",
        server.port,
        socket.display()
    );
    let mut daemon = Daemon::with_config(&config);
    let (a, b) = (daemon.text("a:256M"), daemon.text("b:256M"));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    let tested = daemon.json(&["alert", "test"]);
    let delivered = tested.as_array().into_iter().flatten().filter(|test| test["sink"].is_string() && test["failure"].is_null()).count();
    assert_eq!(delivered, 4, "{tested}");
    assert_eq!(server.states("sink.failing"), ["test"]);
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("b"), daemon.path("b.away")).expect("hide");
    daemon.restart();

    let subject = |words: &str| fs::read_to_string(&mailed).unwrap_or_default().matches(words).count();
    eventually("all begin", || {
        server.states("pool.degraded") == ["begun"]
            && count(&ran, "begun pool.degraded") == 1
            && subject(": millpond error: pool.degraded tank\n") == 1
    });
    let since = conditions(&daemon, "pool.degraded")[0]["since"].clone();
    assert!(since.is_string());
    let checked = daemon.run(&["status", "--check", "--format", "json"]);
    let answer: Value = serde_json::from_str(&checked.out).expect("JSON");
    let cause = &answer["causes"][0];
    assert!(
        cause["kind"] == "pool.degraded"
            && cause["since"] == since
            && cause["remedy"].as_str().is_some_and(|text| text.contains("pool replace tank")),
        "{answer}"
    );

    // the beginning is known, and not reported again, after a kill
    daemon.stop("KILL");
    thread::sleep(Duration::from_millis(1100));
    daemon.restart();
    eventually("it is in service", || !conditions(&daemon, "pool.degraded").is_empty());
    assert_eq!(conditions(&daemon, "pool.degraded")[0]["since"], since);

    fs::rename(daemon.path("b.away"), daemon.path("b")).expect("bring back");
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "import", "tank"]).ok();
    eventually("all end", || {
        server.states("pool.degraded") == ["begun", "ended"]
            && count(&ran, "ended pool.degraded") == 1
            && subject(": millpond ended: pool.degraded tank\n") == 1
    });
    assert_eq!(count(&ran, "begun pool.degraded"), 1);
    assert_eq!(conditions(&daemon, "pool.degraded"), Vec::<Value>::new());
    let entries = entries(&journal);
    let of = |state: &str| entries_of(&entries, state);
    assert_eq!((of("begun"), of("ended")), (1, 1), "{entries:?}");
}

#[test]
fn a_sink_that_fails_is_a_condition_and_ends_with_the_next_alert() {
    let out = tempfile::tempdir().expect("a directory");
    let good = out.path().join("good");
    let config =
        format!("[[sink]]\nname = \"script\"\nkind = \"command\"\ncommand = [\"/bin/sh\", \"-c\", \"test -e {}\"]\n", good.display());
    let daemon = Daemon::with_config(&config);
    let tested = daemon.run(&["alert", "test"]);
    assert!(tested.code == 1 && tested.out.contains("it ended with exit code 1"), "{tested:?}");
    let checked = daemon.run(&["status", "--check"]);
    let line = "warning: sink 'script' does not get alerts: it ended with exit code 1\n";
    assert_eq!((checked.code, checked.out.as_str()), (1, line));
    let status = daemon.run(&["status"]).ok().out;
    assert!(status.contains("sink.failing") && status.contains("'millpond alert test'"), "{status}");
    let began = || daemon.run(&["events", "--format", "json"]).ok().out;
    eventually("an event", || began().contains("\"event\":\"condition.began\"") && began().contains("sink.failing"));
    fs::write(&good, "").expect("a file");
    assert_eq!(daemon.run(&["alert", "test"]).code, 0);
    eventually("it ends", || began().contains("\"event\":\"condition.ended\""));
    assert_eq!(daemon.run(&["status", "--check"]).code, 0);
}

#[test]
fn the_doctor_looks_at_this_host_with_and_without_a_daemon() {
    let mut daemon = Daemon::with_pool();
    let look = |daemon: &Daemon| {
        let looked = run({
            let mut words = command(&["doctor", "--format", "json", "--state", &daemon.text("state")]);
            words.env("MILLPOND_SOCKET", daemon.socket());
            words
        });
        let answer: Value = serde_json::from_str(&looked.out).unwrap_or_else(|e| panic!("{e}: {looked:?}"));
        let state = answer["state"].as_str().expect("a state").to_owned();
        let wanted = [("ok", 0), ("warnings", 1), ("failures", 4)];
        assert!(wanted.contains(&(state.as_str(), looked.code)), "{looked:?}");
        answer["checks"].as_array().expect("checks").clone()
    };
    let of = |checks: &[Value], name: &str| {
        let check = checks.iter().find(|check| check["check"] == name).cloned();
        check.unwrap_or_else(|| panic!("no check {name} in {checks:?}"))
    };
    let checks = look(&daemon);
    let image = daemon.text("tank.img");
    assert_eq!(of(&checks, "daemon")["state"], "ok");
    // this test runs a daemon, so the kernel is good enough
    assert_eq!(of(&checks, "kernel")["state"], "ok");
    assert_ne!(of(&checks, "io_uring")["state"], "fail");
    assert_eq!(of(&checks, "state-directory")["state"], "ok", "{checks:?}");
    assert_eq!(of(&checks, "control-socket")["state"], "ok");
    assert_eq!(of(&checks, "mount")["subject"], image.as_str());
    assert!(checks.iter().all(|check| check["state"] == "ok" || check["found"].as_str().is_some_and(|found| !found.is_empty())));
    daemon.stop("TERM");
    let checks = look(&daemon);
    assert_eq!(of(&checks, "daemon")["state"], "warn");
    assert_eq!(of(&checks, "mount")["subject"], image.as_str(), "the state file names it");
    let gone = daemon.text("gone");
    let mut words = command(&["doctor", "-H", "--device", &gone, "--state", &daemon.text("state")]);
    words.env("MILLPOND_SOCKET", daemon.socket());
    let looked = run(words);
    assert!(looked.code == 4 && looked.out.contains(&format!("fail\tdevice\t{gone}\tcannot be examined")), "{looked:?}");
}

/// The script of the package removes them by name at a purge, and everything else stays.
#[test]
fn a_purge_of_the_package_removes_every_file_of_the_state() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    daemon.run(&["pool", "create", "tank", "mirror", &daemon.text("a:256M"), &daemon.text("b:256M")]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    fs::remove_file(daemon.path("b")).expect("a device is lost");
    daemon.restart();
    eventually("a condition is stored", || daemon.path("state/conditions.json").exists());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian/postrm");
    let script = fs::read_to_string(script).expect("the script").replace("\\\n", "");
    let (_, rest) = script.split_once("for file in ").expect("the list of files");
    let known: Vec<&str> = rest.split("; do").next().expect("its end").split_whitespace().collect();
    for entry in fs::read_dir(daemon.path("state")).expect("the state directory") {
        let name = entry.expect("an entry").file_name();
        assert!(known.iter().any(|known| *known == name), "{} stays after a purge", name.display());
    }
}
