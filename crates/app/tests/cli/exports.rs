//! `export nbd`, `export vhost-user`, `exports`, `unexport`; for `export fuse`, requests that are
//! refused before anything is mounted.

use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::harness::{Daemon, each, eventually, exists};
use crate::nbd;

#[test]
fn an_export_serves_and_is_listed_with_its_clients() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let made = daemon.json(&["export", "nbd", "tank/v", "--unix", &daemon.text("v.sock"), "--tcp", "127.0.0.1:0"]);
    let tcp = made["tcp"].as_str().expect("a TCP address").to_owned();
    assert!(!tcp.ends_with(":0") && TcpStream::connect(&tcp).is_ok(), "{tcp}");
    let mut nbd = nbd::connect(&daemon.path("v.sock")).expect("connect");
    nbd.write(0, &[1; 8192]).expect("write");
    let exports = daemon.json(&["exports"]);
    assert_eq!((exports[0]["id"].as_u64(), exports[0]["name"].as_str()), (made["id"].as_u64(), Some("tank/v")));
    assert!(exports[0]["clients"].as_u64() >= Some(1));
    assert_eq!((exports[0]["io"]["writes"].as_u64(), exports[0]["io"]["write_bytes"].as_u64()), (Some(1), Some(8192)));
    assert!(exports[0]["address"].as_str().is_some_and(|address| address.contains("v.sock") && address.contains(&tcp)));
    assert!(daemon.run(&["exports"]).ok().out.contains("tank/v"));
    daemon.run(&["pool", "export", "tank"]).refused(1, "clients");
    daemon.run(&["destroy", "-y", "tank/v"]).refused(1, "unexport tank/v");
    daemon.run(&["unexport", "1"]).refused(1, "clients are connected: export 1 (tank/v): unix:pid=");
    nbd.read(0, &mut [0; 512]).expect("still served");
    daemon.run(&["unexport", "1", "--force"]).ok();
    assert!(nbd.read(0, &mut [0; 512]).is_err(), "served after unexport");
    assert!(!exists(&daemon.path("v.sock")));
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
    daemon.run(&["unexport", "1"]).refused(1, "no export 1");
}

#[test]
fn addresses_are_checked() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["export", "nbd", "tank/v", "--tcp", "0.0.0.0:0"]).refused(1, "--insecure-listen");
    daemon.run(&["export", "nbd", "tank/none", "--unix", &daemon.text("v.sock")]).refused(1, "no volume");
    daemon.run(&["export", "nbd", "tank/v", "--unix", &daemon.text("no/v.sock")]).refused(1, "directory");
    daemon.run(&["export", "nbd", "tank/v", "--unix", &daemon.text("state/state.json")]).refused(1, "state.json");
    assert!(!daemon.path("state/state.json").symlink_metadata().expect("stays").file_type().is_socket());
    daemon.export("tank/v", "v.sock");
    daemon.run(&["export", "nbd", "tank/v", "--force", "--unix", &daemon.text("v.sock")]).refused(1, "unexport 1");
    // Without an address, the socket is beside the control socket.
    let made = daemon.json(&["export", "nbd", "tank/v", "--readonly"]);
    let path = made["unix"].as_str().expect("a socket");
    assert!(path.starts_with(&daemon.text("run/")) && nbd::connect(std::path::Path::new(path)).is_ok(), "{path}");
}

/// A command that changes, shrinks or removes the disk of a connected client is refused without
/// `--force`.
#[test]
fn connected_clients_are_in_the_way() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    let nbd = nbd::connect(&socket).expect("connect");
    daemon.run(&["rollback", "tank/v@a"]).refused(1, "export 1 (tank/v): unix:pid=");
    assert!(daemon.run(&["rollback", "-n", "tank/v@a"]).ok().out.contains("would be refused without --force"));
    daemon.run(&["resize", "tank/v", "8M", "--allow-shrink"]).refused(1, "shut the guest down first, or give --force");
    let grown = daemon.run(&["resize", "tank/v", "32M"]);
    assert!(grown.code == 0 && grown.err.contains("over NBD when they connect again"), "{grown:?}");
    daemon.run(&["unexport", "tank/v"]).refused(1, "--force");
    daemon.run(&["set", "readonly=on", "tank/v"]).refused(1, "export 1 (tank/v): unix:pid=");
    daemon.run(&["set", "cache=none", "tank/v"]).ok();
    assert_eq!(daemon.json(&["list", "-t", "snapshot"]).as_array().map(Vec::len), Some(1), "nothing was changed");
    // a client that has disconnected does not block a command, however soon it comes
    drop(nbd);
    daemon.run(&["rollback", "tank/v@a"]).ok();
    let nbd = nbd::connect(&socket).expect("connect");
    daemon.run(&["set", "readonly=on", "--force", "tank/v"]).ok();
    daemon.run(&["set", "readonly=on", "tank/v"]).ok();
    daemon.run(&["set", "readonly=off", "tank/v"]).ok();
    daemon.run(&["rollback", "--force", "tank/v@a"]).ok();
    let resized = daemon.run(&["resize", "tank/v", "8M", "--allow-shrink", "--force"]);
    assert!(resized.code == 0 && resized.out.contains("kept as tank/v@pre-shrink-"), "{resized:?}");
    let kept = daemon.json(&["list", "-t", "snapshot", "tank/v"]);
    let kept = each(&kept, "name").into_iter().find(|name| name.contains("pre-shrink")).expect("kept").to_owned();
    assert_eq!(daemon.json(&["get", "size", &kept])[0]["value"], 16 << 20);
    drop(nbd);
    daemon.run(&["resize", "tank/v", "4M", "--allow-shrink", "--no-snapshot"]).ok();
    let after = daemon.json(&["list", "-t", "snapshot", "tank/v"]);
    assert_eq!(each(&after, "name").into_iter().filter(|name| name.contains("pre-shrink")).count(), 1);
    daemon.run(&["unexport", &daemon.text("v.sock")]).ok();
    daemon.run(&["unexport", "tank/v"]).refused(1, "no export 'tank/v'");
}

/// `resize --reconnect` ends connections without refusing a request, and whoever connects again sees
/// the new size.
#[test]
fn clients_connect_again_after_a_resize() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    let mut nbd = nbd::connect(&socket).expect("connect");
    nbd.write(0, &[7; 4096]).expect("write");
    let grown = daemon.run(&["resize", "tank/v", "32M", "--reconnect"]);
    assert!(grown.code == 0 && !grown.err.contains("when they connect again"), "{grown:?}");
    let lost = nbd.read(0, &mut [0; 512]).expect_err("the connection ended");
    assert_ne!(lost.raw_os_error(), Some(108), "ESHUTDOWN would reach the guest");
    let mut nbd = nbd::connect(&socket).expect("connect again");
    assert_eq!(nbd.size(), 32 << 20);
    let mut read = [0; 4096];
    nbd.read(0, &mut read).expect("read");
    assert_eq!(read, [7; 4096]);
    // the same size once more ends connections too, and a dry run does not
    daemon.run(&["resize", "tank/v", "32M", "--reconnect", "-n"]).ok();
    nbd.read(0, &mut read).expect("still connected");
    daemon.run(&["resize", "tank/v", "32M", "--reconnect"]).ok();
    nbd.read(0, &mut read).expect_err("the connection ended");
}

#[test]
fn a_second_export_to_write_to_is_asked_for() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "one.sock");
    let [two, three] = ["two.sock", "three.sock"].map(|name| daemon.text(name));
    daemon.run(&["export", "nbd", "tank/v", "--unix", &two]).refused(1, "export 1 lets clients write to it already");
    daemon.run(&["export", "vhost-user", "tank/v", "--unix", &two]).refused(1, "--readonly, or --force");
    daemon.run(&["export", "nbd", "tank/v", "--readonly", "--unix", &two]).ok();
    daemon.run(&["export", "vhost-user", "tank/v", "--force", "--unix", &three]).ok();
    daemon.run(&["unexport", "tank/v"]).ok();
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0), "all exports of it");
}

/// Sockets have the requested owners and modes, also after a restart.
#[test]
fn sockets_have_owners_and_modes() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let owner = format!("{}:{}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let of = |name: &str| {
        let meta = std::fs::symlink_metadata(daemon.path(name)).expect("a socket");
        (meta.mode() & 0o7777, meta.uid(), meta.gid())
    };
    let me = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let [plain, group, guest] = ["plain.sock", "group.sock", "guest.sock"].map(|name| daemon.text(name));
    daemon.run(&["export", "nbd", "tank/v", "--unix", &plain]).ok();
    daemon.run(&["export", "nbd", "tank/v", "--force", "--unix", &group, "--owner", &owner]).ok();
    daemon.run(&["export", "vhost-user", "tank/v", "--force", "--unix", &guest, "--mode", "0666"]).ok();
    let modes = [("plain.sock", 0o600), ("group.sock", 0o660), ("guest.sock", 0o666)];
    for (name, mode) in modes {
        assert_eq!(of(name), (mode, me.0, me.1), "{name}");
    }
    let refused = daemon.run(&["export", "nbd", "tank/v", "--force", "--unix", &daemon.text("x.sock"), "--mode", "0777"]);
    assert!(refused.code == 2 && refused.err.contains("0640"), "{refused:?}");
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    let of = |name: &str| std::fs::symlink_metadata(daemon.path(name)).expect("a socket").mode() & 0o7777;
    for (name, mode) in modes {
        assert_eq!(of(name), mode, "{name} after a restart");
    }
}

#[test]
fn snapshots_and_readonly_exports_refuse_writes() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    let snapshot = daemon.export("tank/v@a", "a.sock");
    daemon.run(&["export", "nbd", "tank/v", "--readonly", "--unix", &daemon.text("ro.sock")]).ok();
    for socket in [snapshot, daemon.path("ro.sock")] {
        let mut nbd = nbd::connect(&socket).expect("connect");
        nbd.read(0, &mut [0; 512]).expect("read");
        assert!(nbd.write(0, &[1; 512]).is_err(), "{}", socket.display());
    }
    assert!(daemon.json(&["exports"]).as_array().is_some_and(|all| all.iter().all(|export| export["readonly"] == true)));
}

#[test]
fn a_renamed_volume_stays_exported_under_its_new_name() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    daemon.run(&["rename", "tank/v", "tank/w"]).ok();
    assert_eq!(daemon.json(&["exports"])[0]["name"], "tank/w");
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(daemon.json(&["exports"])[0]["name"], "tank/w");
    assert!(nbd::connect(&socket).is_ok());
}

#[test]
fn a_vhost_user_export_is_listed_and_comes_back_after_a_restart() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let (socket, text) = (daemon.path("guest.sock"), daemon.text("guest.sock"));
    let ended = daemon.run(&["export", "vhost-user", "tank/v", "--unix", &text, "--queues", "0"]);
    assert!(ended.code == 2 && ended.err.contains("1..=256"), "{ended:?}");
    daemon.run(&["export", "vhost-user", "tank/none", "--unix", &text]).refused(1, "no volume");
    assert_eq!(daemon.run(&["export", "vhost-user", "tank/v", "--unix", &text, "--queues", "2"]).ok().out, format!("export 1  {text}\n"));
    daemon.run(&["export", "nbd", "tank/v", "--force", "--unix", &text]).refused(1, "unexport 1");
    for _ in 0..2 {
        let exports = daemon.json(&["exports"]);
        assert_eq!((exports[0]["kind"].as_str(), exports[0]["unix"].as_str()), (Some("vhost-user"), Some(text.as_str())));
        assert_eq!((exports[0]["uris"].as_array().map(Vec::len), exports[0]["state"].as_str()), (Some(0), Some("online")));
        assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok());
        assert_eq!(daemon.stop("TERM"), 0);
        daemon.restart();
    }
    daemon.run(&["destroy", "-y", "tank/v"]).refused(1, "unexport tank/v");
    daemon.run(&["unexport", "1"]).ok();
    assert!(!exists(&socket));
    // without a path, the socket is beside the control socket
    let made = daemon.json(&["export", "vhost-user", "tank/v"]);
    assert_eq!(made["unix"].as_str(), Some(daemon.text("run/tank.v.vhost.sock").as_str()));
}

#[test]
fn directories_to_mount_on_are_checked() {
    let daemon = Daemon::with_pool();
    let full = daemon.text("full");
    std::fs::create_dir(&full).and_then(|()| std::fs::write(format!("{full}/file"), b"precious")).expect("a directory");
    daemon.run(&["export", "fuse", "none", &daemon.text("mnt")]).refused(1, "no pool");
    daemon.run(&["export", "fuse", "tank", &full]).refused(1, "not empty");
    daemon.run(&["export", "fuse", "tank", &format!("{full}/file")]).refused(1, "not a directory");
    daemon.run(&["export", "fuse", "tank", &daemon.text("none/mnt")]).refused(1, "create it first");
    daemon.run(&["export", "fuse", "tank", &daemon.text("state")]).refused(1, "the daemon needs files in");
    daemon.run(&["export", "fuse", "tank", "/proc"]).refused(1, "mount point");
    daemon.run(&["export", "fuse", "tank/v", &daemon.text("mnt")]).refused(2, "pool");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn the_last_descriptors_are_kept_for_the_daemon() {
    let mut daemon = Daemon::with_descriptors(96);
    daemon.run(&["pool", "create", "tank", &format!("{}:512M", daemon.text("tank.img"))]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    // at the limit of descriptors connected clients continue, and refused ones notice at once
    let mut clients = Vec::new();
    while let Ok(client) = nbd::connect(&socket) {
        clients.push(client);
        assert!(clients.len() < 96, "nobody is turned away");
    }
    assert!(clients.len() > 8, "{} clients", clients.len());
    clients[0].write(0, &[5; 4096]).expect("write");
    // an export would use the descriptors that are reserved for commands; a command does not
    let refused = daemon.run(&["export", "nbd", "tank/v", "--unix", &daemon.text("w.sock"), "--force"]);
    refused.refused(1, "file descriptors are in use");
    daemon.run(&["create", "tank/w", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/w@a"]).ok();
    drop(clients);
    eventually("there is room again", || nbd::connect(&socket).is_ok());
    let mut accepted = 1;
    loop {
        let export = daemon.run(&["export", "nbd", "tank/w", "--unix", &daemon.text(&format!("w{accepted}.sock")), "--force"]);
        if export.code != 0 {
            export.refused(1, "file descriptors are in use");
            break;
        }
        accepted += 1;
        assert!(accepted < 96, "none is refused");
    }
    // all accepted exports were saved
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    let exports = daemon.json(&["exports"]);
    assert_eq!(exports.as_array().map(Vec::len), Some(accepted));
    assert!(each(&exports, "state").iter().all(|state| *state == "online"), "{exports}");
    let mut bytes = [0; 4096];
    nbd::connect(&socket).expect("connect").read(0, &mut bytes).expect("read");
    assert_eq!(bytes, [5; 4096]);
}
