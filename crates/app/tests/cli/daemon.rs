//! `serve` and `status`: restarts, crashes, second daemons, and pools that cannot be imported.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use crate::harness::{Daemon, Running, command, each, eventually, exists, run};
use crate::nbd;

#[test]
fn status_tells_daemon_pools_and_exports() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    let status = daemon.json(&["status"]);
    assert_eq!((status["pools"][0]["name"].as_str(), status["exports"][0]["name"].as_str()), (Some("tank"), Some("tank/v")));
    assert!(status["pid"].is_u64() && status["version"].is_string() && status["socket"] == daemon.socket());
    let text = daemon.run(&["status", "--wait", "5"]).ok().out;
    assert!(text.contains("tank") && text.contains("v.sock"), "{text}");
    let mode = |name: &str| daemon.path(name).metadata().expect("exists").permissions().mode() & 0o777;
    assert_eq!((mode("run/control.sock"), mode("run"), mode("state")), (0o600, 0o711, 0o700));
}

#[test]
fn a_clean_stop_keeps_pools_exports_and_data() {
    for signal in ["TERM", "INT"] {
        let mut daemon = Daemon::with_pool();
        daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
        daemon.run(&["snapshot", "tank/v@a"]).ok();
        let socket = daemon.export("tank/v", "v.sock");
        nbd::connect(&socket).expect("connect").write(4096, &[9; 4096]).expect("write");
        let before = daemon.json(&["exports"]);
        assert_eq!(daemon.stop(signal), 0, "{signal}");
        assert!(!exists(&socket) && !exists(&daemon.path("run/control.sock")));
        daemon.run(&["list"]).refused(3, "no daemon answers");
        daemon.restart();
        assert_eq!(each(&daemon.json(&["list", "-t", "all"]), "name"), ["tank/v", "tank/v@a"]);
        let after = daemon.json(&["exports"]);
        assert_eq!((&after[0]["id"], &after[0]["address"]), (&before[0]["id"], &before[0]["address"]));
        let mut bytes = [0; 4096];
        nbd::connect(&socket).expect("connect").read(4096, &mut bytes).expect("read");
        assert_eq!(bytes, [9; 4096]);
        // Ids are never reused, not even that of a removed export.
        daemon.run(&["unexport", "1"]).ok();
        assert_eq!(daemon.json(&["export", "nbd", "tank/v"])["id"], 2);
    }
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_acknowledged() {
    for cache in ["none", "directsync", "writethrough", "writeback", "unsafe"] {
        let mut daemon = Daemon::with_pool();
        daemon.run(&["create", "tank/v", "-L", "16M", "--cache", cache]).ok();
        let socket = daemon.export("tank/v", "v.sock");
        let mut nbd = nbd::connect(&socket).expect("connect");
        for block in 0..200u64 {
            nbd.write(block * 4096, &[block as u8 + 1; 4096]).expect("write");
        }
        daemon.run(&["snapshot", "tank/v@mid"]).ok();
        for block in 0..100u64 {
            nbd.write(block * 2 * 4096, &[255; 4096]).expect("write");
        }
        daemon.stop("KILL");
        daemon.restart();
        let check = |socket: &std::path::Path, expected: &dyn Fn(u64) -> u8| {
            let mut nbd = nbd::connect(socket).expect("connect");
            for block in 0..200u64 {
                let mut bytes = [0; 4096];
                nbd.read(block * 4096, &mut bytes).expect("read");
                assert_eq!(bytes, [expected(block); 4096], "{cache}, block {block}");
            }
        };
        check(&socket, &|block| if block % 2 == 0 { 255 } else { block as u8 + 1 });
        check(&daemon.export("tank/v@mid", "mid.sock"), &|block| block as u8 + 1);
    }
}

#[test]
fn a_pool_that_is_gone_is_reported_and_stops_nobody() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "create", "other", &format!("{}:256M", daemon.text("other.img"))]).ok();
    daemon.run(&["create", "other/w", "-L", "16M"]).ok();
    daemon.export("other/w", "w.sock");
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("other.img"), daemon.path("hidden")).expect("hide");
    daemon.restart();
    let status = daemon.json(&["status"]);
    let other = status["pools"].as_array().and_then(|pools| pools.iter().find(|pool| pool["name"] == "other")).expect("listed");
    assert_eq!((other["health"].as_str(), other["devices"][0]["state"].as_str()), (Some("unavailable"), Some("missing")));
    assert!(other["reason"].as_str().is_some_and(|reason| reason.contains("other.img")), "{other}");
    assert_eq!(status["exports"][0]["state"], "unavailable");
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/v"]);
    daemon.run(&["create", "other/x", "-L", "16M"]).refused(1, "not in service");
    fs::rename(daemon.path("hidden"), daemon.path("other.img")).expect("bring back");
    eventually("it comes by itself", || daemon.json(&["exports"])[0]["state"] == "online");
    assert!(nbd::connect(&daemon.path("w.sock")).is_ok());
}

#[test]
fn a_damaged_pool_is_reported_and_stops_nobody() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "create", "other", &format!("{}:256M", daemon.text("other.img"))]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    // Everything between the labels is lost.
    let file = fs::File::options().write(true).open(daemon.path("other.img")).expect("opens");
    file.write_all_at(&vec![0; 254 << 20], 1 << 20).expect("writes");
    daemon.restart();
    let status = daemon.json(&["status"]);
    assert_eq!(each(&status["pools"], "health"), ["unavailable", "online"]);
    daemon.run(&["pool", "import", "other"]).refused(1, "checksum");
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/v"]);
    daemon.run(&["pool", "export", "other"]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
}

#[test]
fn events_are_streamed_until_the_daemon_stops() {
    use std::io::{BufRead, BufReader, Write};
    let mut daemon = Daemon::with_pool();
    let mut stream = std::os::unix::net::UnixStream::connect(daemon.socket()).expect("connect");
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").expect("ask");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    assert!(lines.next().is_some_and(|line| line.contains("200")));
    assert!(lines.any(|line| line.is_empty()), "no end of the head");
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let event = lines.find(|line| line.starts_with('{')).expect("an event");
    let event: serde_json::Value = serde_json::from_str(&event).expect("JSON");
    assert_eq!((event["event"].as_str(), event["subject"].as_str()), (Some("volume.created"), Some("tank/v")));
    assert_eq!(daemon.stop("TERM"), 0);
    // the last chunk of a complete body: a daemon that waited for its listener would have cut the
    // stream off
    assert!(lines.any(|line| line == "0"), "a listener holds the daemon up");
}

#[test]
fn a_second_daemon_is_refused_and_a_stale_socket_is_not() {
    let mut daemon = Daemon::start();
    let (socket, state) = (daemon.socket(), daemon.text("state"));
    run(command(&["serve", "--socket", &socket, "--state", &daemon.text("state2")])).one_line(1, "already");
    run(command(&["serve", "--socket", &daemon.text("run/b.sock"), "--state", &state])).one_line(1, "another daemon");
    assert_eq!(daemon.stop("TERM"), 0);
    drop(UnixListener::bind(&socket).expect("a socket nobody answers"));
    daemon.restart();
    assert_eq!(daemon.run(&["status"]).code, 0);
}

#[test]
fn the_configuration_file_is_read_and_options_win() {
    let dir = tempfile::tempdir().expect("tempdir");
    let text = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(text("c.toml"), format!("socket = \"{}\"\nstate = \"{}\"\nmap_memory = \"64M\"\n", text("x.sock"), text("s")))
        .expect("write");
    let mut running = Running::start(command(&["serve", "--config", &text("c.toml"), "--socket", &text("y.sock")]));
    let ended = run(command(&["status", "--wait", "600", "--socket", &text("y.sock"), "--format", "json"]));
    assert_eq!(ended.json()["state_dir"], text("s"));
    running.signal("TERM");
    assert_eq!(running.wait(), 0);
    fs::write(text("c.toml"), "colour = 1\n").expect("write");
    run(command(&["serve", "--config", &text("c.toml"), "--socket", &text("y.sock")])).one_line(1, "colour");
}

#[test]
fn the_api_speaks_plain_http_and_describes_itself() {
    use std::io::{Read, Write};
    let daemon = Daemon::start();
    let ask = |path: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(daemon.socket()).expect("connect");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        answer
    };
    let described = ask("/v1/openapi.json");
    assert!(described.starts_with("HTTP/1.1 200") && described.contains("\"/v1/volumes\""), "{described}");
    let unknown = ask("/v1/nothing");
    assert!(unknown.starts_with("HTTP/1.1 404") && unknown.contains("\"kind\":\"not_found\""), "{unknown}");
}
