//! Access: roles on the control socket, tokens and sessions over TCP, and hostile requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Daemon, command, each, run};

/// Answer to a request.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.head.lines().filter_map(|line| line.split_once(": ")).find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// Asserts a refusal with a status and a word in its message.
    fn refused(&self, status: u16, word: &str) {
        assert_eq!(self.status, status, "{} {}", self.head, self.body);
        let message = self.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(word) && !message.contains('\n'), "'{word}' is not in '{message}'");
    }
}

/// The console of a daemon: its address.
struct Web(String);

impl Web {
    /// Returns the console's address, from a link to it.
    fn of(daemon: &Daemon) -> (Web, String) {
        let link = daemon.run(&["token", "link"]).ok().out;
        let (url, code) = link.trim().split_once("#login=").expect("a link with a code");
        (Web(url.trim_start_matches("http://").trim_end_matches('/').to_owned()), code.to_owned())
    }

    /// Sends bytes, and returns everything that the daemon answers.
    fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.0).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        // the daemon may answer and close before it has read everything
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Sends a request with these headers.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {}\r\n", self.0);
        }
        headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
        if method != "GET" {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        self.raw(format!("{request}\r\n{body}").as_bytes())
    }

    /// Sends a request with a token.
    fn with(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, &[("Authorization", &format!("Bearer {token}"))], body)
    }
}

/// Creates a token and returns its secret.
fn token(daemon: &Daemon, words: &[&str]) -> String {
    let mut all = vec!["token", "create"];
    all.extend(words);
    let secret = daemon.run(&all);
    assert_eq!(secret.code, 0, "{secret:?}");
    secret.out.trim().to_owned()
}

/// A daemon with a console on any port, and the pools `tank` and `other` with a volume each.
fn two_pools() -> Daemon {
    let daemon = Daemon::with_config("web = \"127.0.0.1:0\"\n");
    for pool in ["tank", "other"] {
        daemon.run(&["pool", "create", pool, &format!("{}:256M", daemon.text(&format!("{pool}.img")))]).ok();
        daemon.run(&["create", &format!("{pool}/v"), "-L", "16M"]).ok();
        daemon.run(&["snapshot", &format!("{pool}/v@a")]).ok();
    }
    daemon
}

#[test]
fn tokens_have_a_role_pools_and_an_end() {
    let mut daemon = two_pools();
    let (web, _) = Web::of(&daemon);
    let viewer = token(&daemon, &["watch", "--role", "viewer", "--pool", "tank"]);
    let operator = token(&daemon, &["work", "--role", "operator", "--pool", "tank", "--expire", "30d"]);
    let admin = token(&daemon, &["all", "--role", "admin", "--expire", "never"]);
    daemon.run(&["token", "create", "all", "--role", "viewer"]).refused(1, "exists already");
    daemon.run(&["token", "create", "a/b", "--role", "viewer"]).refused(2, "not a name of a token");

    assert_eq!(each(&web.with(&viewer, "GET", "/v1/volumes", "").json(), "name"), ["tank/v"]);
    assert_eq!(each(&web.with(&viewer, "GET", "/v1/pools", "").json(), "name"), ["tank"]);
    assert_eq!(each(&web.with(&viewer, "GET", "/v1/snapshots", "").json(), "name"), ["tank/v@a"]);
    let status = web.with(&viewer, "GET", "/v1/status", "").json();
    assert_eq!(each(&status["pools"], "name"), ["tank"]);
    assert_eq!(each(&web.with(&admin, "GET", "/v1/volumes", "").json(), "name").len(), 2);

    // another pool, wherever it is named, and however it is spelt
    for path in ["/v1/pools/other", "/v1/pools/%6fther", "/v1/volumes/other/v", "/v1/volumes?pool=other", "/v1/pools/other/load"] {
        web.with(&viewer, "GET", path, "").refused(403, "not for pool 'other'");
    }
    web.with(&viewer, "GET", "/v1/diff?older=tank/v@a&newer=other/v@a", "").refused(403, "other");
    web.with(&viewer, "GET", "/v1/diff?older=tank/v@a&older=other/v@a", "").refused(403, "other");
    web.with(&viewer, "GET", "/metrics", "").refused(403, "about all");
    web.with(&viewer, "GET", "/v1/tokens", "").refused(403, "admin");
    web.with(&viewer, "POST", "/v1/snapshots", r#"{"names":["tank/v@b"]}"#).refused(403, "needs operator");
    for (path, body) in [
        ("/v1/snapshots", r#"{"names":["tank/v@b","other/v@b"]}"#),
        ("/v1/volumes", r#"{"name":"other/w","size":4194304}"#),
        ("/v1/destroy", r#"{"name":"tank/v@a","more":["other/v@a"]}"#),
        ("/v1/destroy", r#"{"name":"other/v@a"}"#),
        ("/v1/exports", r#"{"kind":"nbd","name":"other/v"}"#),
        ("/v1/exports", r#"{"kind":"fuse","pool":"other","dir":"/mnt"}"#),
        ("/v1/snapshots/tank/v/a/clone", r#"{"name":"other/w"}"#),
        ("/v1/snapshots/tank/v/a/copy", r#"{"name":"other/w"}"#),
        ("/v1/volumes/%6fther/v/promote", "{}"),
    ] {
        web.with(&operator, "POST", path, body).refused(403, "not for pool 'other'");
    }
    web.with(&operator, "POST", "/v1/snapshots", r#"{"names":[]}"#).refused(403, "names none");
    web.with(&operator, "POST", "/v1/pools", "{}").refused(403, "needs admin");
    assert_eq!(web.with(&operator, "POST", "/v1/snapshots", r#"{"names":["tank/v@b"]}"#).status, 200);
    // an export of another pool, by its id
    daemon.export("other/v", "o.sock");
    web.with(&operator, "DELETE", "/v1/exports/1", "").refused(403, "other");
    web.with(&operator, "GET", "/v1/exports/1/lines", "").refused(403, "other");
    assert_eq!(web.with(&operator, "GET", "/v1/exports", "").json(), serde_json::json!([]));
    assert!(web.with(&admin, "GET", "/v1/exports/1/lines", "").json()["qemu"].is_string());
    assert!(web.with(&admin, "GET", "/metrics", "").body.contains("millpond_pool_info"));

    // the state has no secret, and a restart forgets no token
    let state = std::fs::read_to_string(daemon.path("state/state.json")).expect("the state");
    assert!(state.contains("\"work\"") && !state.contains(&operator[4..]), "{state}");
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    let (web, _) = Web::of(&daemon);
    assert_eq!(web.with(&viewer, "GET", "/v1/volumes", "").status, 200);
    let listed = daemon.json(&["token", "list"]);
    assert_eq!(each(&listed, "name"), ["all", "watch", "work"]);
    assert!(listed[0]["expires"].is_null() && listed[2]["expires"].is_string() && listed[1]["last_used"].is_string(), "{listed}");
    daemon.run(&["token", "destroy", "watch"]).refused(1, "add -y");
    daemon.run(&["token", "destroy", "watch", "-y"]).ok();
    web.with(&viewer, "GET", "/v1/volumes", "").refused(401, "no token has this secret");
    let brief = token(&daemon, &["brief", "--role", "viewer", "--expire", "1s"]);
    std::thread::sleep(Duration::from_millis(1100));
    web.with(&brief, "GET", "/v1/volumes", "").refused(401, "has expired");
}

#[test]
fn a_session_needs_its_link_its_cookie_and_its_page() {
    let daemon = two_pools();
    let (web, code) = Web::of(&daemon);
    let login = |code: &str, headers: &[(&str, &str)]| web.send("POST", "/v1/session", headers, &format!("{{\"code\":\"{code}\"}}"));
    login(&code, &[("Origin", "http://evil.example")]).refused(403, "another site");
    let opened = login(&code, &[("Origin", &format!("http://{}", web.0))]);
    assert_eq!(opened.status, 200, "{}", opened.body);
    let set = opened.header("set-cookie").expect("a cookie").to_owned();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(word), "{set}");
    }
    login(&code, &[]).refused(401, "was used");
    let cookie = set.split(';').next().expect("a pair").to_owned();
    let csrf = opened.json()["csrf"].as_str().expect("a value").to_owned();
    assert!(!set.contains(&csrf));

    let own = web.send("GET", "/v1/session", &[("Cookie", &cookie)], "").json();
    assert_eq!((own["role"].as_str(), own["csrf"].as_str()), (Some("admin"), Some(csrf.as_str())));
    let body = r#"{"names":["tank/v@b"]}"#;
    web.send("POST", "/v1/snapshots", &[("Cookie", &cookie)], body).refused(403, "X-Millpond-Csrf");
    web.send("POST", "/v1/snapshots", &[("Cookie", &cookie), ("X-Millpond-Csrf", "0")], body).refused(403, "X-Millpond-Csrf");
    let both = [("Cookie", cookie.as_str()), ("X-Millpond-Csrf", csrf.as_str())];
    let foreign = [both[0], both[1], ("Origin", "http://evil.example")];
    web.send("POST", "/v1/snapshots", &foreign, body).refused(403, "another site");
    let cross = [both[0], both[1], ("Sec-Fetch-Site", "cross-site")];
    web.send("POST", "/v1/snapshots", &cross, body).refused(403, "another site");
    assert_eq!(web.send("POST", "/v1/snapshots", &both, body).status, 200);
    assert_eq!(web.send("DELETE", "/v1/session", &both, "").status, 204);
    web.send("GET", "/v1/session", &[("Cookie", &cookie)], "").refused(401, "has ended");

    // a session that began with a token ends with it, and so does its stream of events
    let secret = token(&daemon, &["guest", "--role", "viewer"]);
    let opened = web.send("POST", "/v1/session", &[], &format!("{{\"token\":\"{secret}\"}}"));
    let cookie = opened.header("set-cookie").and_then(|set| set.split(';').next()).expect("a cookie").to_owned();
    let mut stream = TcpStream::connect(&web.0).expect("connected");
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\n\r\n", web.0).expect("sent");
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    daemon.run(&["token", "destroy", "guest", "-y"]).ok();
    web.send("GET", "/v1/session", &[("Cookie", &cookie)], "").refused(401, "was destroyed");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut rest = String::new();
    assert!(stream.read_to_string(&mut rest).is_ok() || rest.ends_with("0\r\n\r\n"), "the stream ends");
}

#[test]
fn hostile_requests_are_refused_and_others_are_served() {
    let daemon = two_pools();
    let (web, _) = Web::of(&daemon);
    let admin = token(&daemon, &["all", "--role", "admin"]);
    let bearer = format!("Bearer {admin}");
    // a name that another site made point here
    for host in ["evil.example", "evil.example:8420", "localhost.evil.example", "a b", ""] {
        let answer = web.send("GET", "/", &[("Host", host)], "");
        assert!([400, 403].contains(&answer.status), "{host}: {}", answer.head);
    }
    assert!([400, 403].contains(&web.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").status), "no Host");
    assert_eq!(web.send("GET", "/", &[("Host", "localhost")], "").status, 200);
    // neither tokens nor pages of other forms
    for wrong in ["", "Bearer", "Basic YTpi", "Bearer x y", "bearer \u{1}"] {
        let answer = web.send("GET", "/v1/status", &[("Authorization", wrong)], "");
        assert!([400, 401].contains(&answer.status), "{wrong}: {}", answer.head);
    }
    // paths
    for path in [
        "/../../etc/passwd",
        "/console/../../../etc/passwd",
        "/console/%2e%2e%2f%2e%2e%2fetc/passwd",
        "/%00",
        "//etc/passwd",
        "/v1/../state.json",
    ] {
        let answer = web.send("GET", path, &[], "");
        assert!([400, 404].contains(&answer.status) && !answer.body.contains("root:"), "{path}: {}", answer.head);
    }
    web.with(&admin, "GET", "/v1/pools/..%2f..%2fetc", "").refused(404, "no pool");
    web.with(&admin, "PUT", "/v1/status", "").refused(404, "no route PUT");
    web.with(&admin, "POST", "/v1/snapshots", "{\"names\":[\"tank/v@..\"]}").refused(422, "");
    // sizes
    let long = "x".repeat(64 << 10);
    assert_eq!(web.send("GET", "/v1/status", &[("X-Long", &long)], "").status, 431);
    let many: Vec<(String, String)> = (0..200).map(|at| (format!("X-{at}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(web.send("GET", "/v1/status", &many, "").status, 431);
    let large = format!("{{\"names\":[\"{}\"]}}", "y".repeat(2 << 20));
    web.with(&admin, "POST", "/v1/snapshots", &large).refused(422, "1048576");
    let hello = web.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n");
    assert!([0, 400].contains(&hello.status), "TLS where there is none: {}", hello.head);

    // headers of every answer
    for answer in [
        web.send("GET", "/", &[], ""),
        web.send("GET", "/nothing", &[], ""),
        web.send("GET", "/v1/status", &[("Authorization", &bearer)], ""),
    ] {
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert!(answer.header("access-control-allow-origin").is_none());
    }
}

#[test]
fn slow_clients_and_wrong_credentials_do_not_keep_others_out() {
    let daemon = two_pools();
    let (web, _) = Web::of(&daemon);
    let admin = token(&daemon, &["all", "--role", "admin"]);
    // slow clients hold their own places only, and not for long
    let began = Instant::now();
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&web.0).expect("connected");
            stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: ").expect("sent");
            stream
        })
        .collect();
    assert_eq!(web.with(&admin, "GET", "/v1/status", "").status, 200);
    assert!(began.elapsed() < Duration::from_secs(14), "it is served while they wait");
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "they are disconnected");

    // wrong credentials: answered so often, and then only with the time to wait
    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(web.with("mpt_wrong", "GET", "/v1/status", "").status);
    }
    assert!(statuses.contains(&401) && statuses.ends_with(&[429]), "{statuses:?}");
    let limited = web.send("POST", "/v1/session", &[], "{\"token\":\"wrong\"}");
    limited.refused(429, "wait");
    assert!(limited.header("retry-after").is_some());
    assert_eq!(web.with(&admin, "GET", "/v1/status", "").status, 200, "a right token is served all the same");
    let events = daemon.json_lines(&["events", "--severity", "warning"]);
    assert!(events.iter().any(|event| event["event"] == "access.refused"), "{events:?}");
}

#[test]
fn users_of_the_control_socket_have_roles() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run commands as other users");
        return;
    }
    let config = "socket_mode = \"0666\"\n[access]\nadmins = [\"4001\"]\noperators = [\":4002\"]\nviewers = [\"4003\"]\n";
    let daemon = Daemon::with_config(config);
    daemon.run(&["pool", "create", "tank", &format!("{}:256M", daemon.text("tank.img"))]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    for dir in [daemon.path(""), daemon.path("run")] {
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o711)).expect("entered by others");
    }
    let by = |uid: u32, gid: u32, words: &[&str]| {
        let mut other = command(words);
        other.env("MILLPOND_SOCKET", daemon.socket()).current_dir("/").uid(uid).gid(gid);
        run(other)
    };
    by(4004, 4004, &["list"]).refused(1, "user 4004 may not use this daemon");
    by(4004, 4004, &["status"]).refused(1, "docs/access.md");
    assert_eq!(by(4003, 4003, &["list"]).code, 0);
    by(4003, 4003, &["snapshot", "tank/v@a"]).refused(1, "needs operator");
    assert_eq!(by(4000, 4002, &["snapshot", "tank/v@a"]).code, 0);
    by(4000, 4002, &["pool", "destroy", "tank", "-y"]).refused(1, "needs admin");
    by(4000, 4002, &["token", "create", "x", "--role", "viewer"]).refused(1, "needs admin");
    assert_eq!(by(4001, 4004, &["pool", "scrub", "tank"]).code, 0);
    by(4001, 4004, &["token", "link"]).refused(1, "not served");
}

#[test]
fn other_machines_need_encryption_or_a_word() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let socket = dir.path().join("c.sock");
    let serve = |words: &[&str]| {
        let mut all = vec!["serve", "--socket", socket.to_str().expect("UTF-8"), "--state", state.to_str().expect("UTF-8")];
        all.extend(words);
        run(command(&all))
    };
    serve(&["--web", "0.0.0.0:0"]).one_line(1, "open to other machines");
    serve(&["--web", "[::]:0"]).one_line(1, "--insecure-listen");
    serve(&["--web", "nowhere:x"]).one_line(2, "not a TCP address");
    serve(&["--web", "127.0.0.1:0", &format!("--web-tls={}", dir.path().display())]).one_line(1, "server-cert.pem");
}
