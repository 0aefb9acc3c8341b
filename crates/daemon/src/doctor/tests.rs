//! Each check finds a defect in an invented host, and none in a good one.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::smart::judge;
use super::*;

/// A host in a directory.
struct Invented {
    dir: tempfile::TempDir,
    host: Host,
}

impl Invented {
    /// Returns a host in good order, without devices.
    fn new() -> Invented {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().to_owned();
        let host = Host { pid: Some(7), state: root.join("state"), socket: root.join("control"), devices: Vec::new(), root };
        let invented = Invented { dir, host };
        invented.put("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
        invented.put("proc/sys/kernel/io_uring_disabled", "0\n");
        invented.put(
            "proc/7/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n",
        );
        for (path, text) in
            [("dev/fuse", ""), ("usr/bin/fusermount3", ""), ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"), ("control", "")]
        {
            invented.put(path, text);
        }
        invented.put("run/chronyd.pid", "1\n");
        invented.put("state/state.json", "{}");
        invented.mode("state", 0o700);
        invented.mode("control", 0o600);
        invented
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.dir.path().join(path)).expect("removes");
    }

    fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.dir.path().join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }

    /// Returns the checks that are not in good order.
    fn findings(&self) -> Vec<(CheckState, &'static str)> {
        let checks = self.host.checks().into_iter().filter(|check| check.state != CheckState::Ok);
        checks
            .map(|check| {
                assert!(!check.found.is_empty() && (check.state == CheckState::Unknown || !check.remedy.is_empty()), "{check:?}");
                (check.state, check.check)
            })
            .collect()
    }
}

#[test]
fn a_good_host_has_no_finding_and_each_defect_is_one() {
    use CheckState::{Fail, Unknown, Warn};
    assert_eq!(Invented::new().findings(), []);
    let defects: [(&str, Option<&str>, CheckState, &str); 12] = [
        ("proc/sys/kernel/osrelease", Some("5.15.0"), Fail, "kernel"),
        ("proc/sys/kernel/osrelease", None, Unknown, "kernel"),
        ("proc/sys/kernel/io_uring_disabled", Some("2"), Fail, "io_uring"),
        ("proc/sys/kernel/io_uring_disabled", Some("1"), Warn, "io_uring"),
        ("proc/7/limits", Some("Max open files 1024 4096 files\n"), Warn, "open-files"),
        ("proc/7/limits", Some("nothing"), Unknown, "open-files"),
        ("dev/fuse", None, Warn, "fuse"),
        ("usr/bin/fusermount3", None, Warn, "fuse"),
        ("etc/machine-id", Some("uninitialized"), Warn, "machine-id"),
        ("run/chronyd.pid", None, Warn, "clock"),
        ("etc/machine-id", None, Warn, "machine-id"),
        ("proc/7/limits", None, Unknown, "open-files"),
    ];
    for (path, text, state, check) in defects {
        let host = Invented::new();
        match text {
            Some(text) => host.put(path, text),
            None => host.remove(path),
        }
        assert_eq!(host.findings(), [(state, check)], "{path} {text:?}");
    }
    for (path, mode, state, check) in
        [("state", 0o755, Warn, "state-directory"), ("state", 0o777, Fail, "state-directory"), ("control", 0o666, Fail, "control-socket")]
    {
        let host = Invented::new();
        host.mode(path, mode);
        assert_eq!(host.findings(), [(state, check)], "{path}");
    }
}

#[test]
fn disks_are_judged_by_their_attributes() {
    use CheckState::{Fail, Unknown, Warn};
    let host = Invented::new();
    let of_disk = |disk: &str, files: &[(&str, &str)]| {
        files.iter().for_each(|(file, text)| host.put(&format!("sys/block/{disk}/{file}"), text));
        let checks = devices::of_disk(&host.host, "/dev/x", &host.dir.path().join("sys/block").join(disk));
        checks.into_iter().filter(|check| check.state != CheckState::Ok).map(|check| (check.state, check.check)).collect::<Vec<_>>()
    };
    let flash = [("queue/write_cache", "write back\n"), ("queue/rotational", "0\n"), ("queue/discard_max_bytes", "1024\n"), ("ro", "0\n")];
    assert_eq!(of_disk("sda", &flash), [(Unknown, "wear")], "smartctl is not installed");
    assert_eq!(of_disk("dm-0", &flash), [(Unknown, "wear")]);
    let poor = [("queue/write_cache", "write through\n"), ("queue/rotational", "0\n"), ("queue/discard_max_bytes", "0\n"), ("ro", "1\n")];
    assert_eq!(of_disk("sdb", &poor), [(Warn, "discard"), (Fail, "read-only"), (Unknown, "wear")]);
    assert_eq!(
        of_disk("sdc", &[("queue/rotational", "1\n"), ("queue/discard_max_bytes", "0\n")]),
        [(Unknown, "write-cache"), (Unknown, "wear")]
    );
    // a program that reports a worn disk
    host.put(
        "usr/sbin/script",
        "#!/bin/sh\necho '{\"smart_status\":{\"passed\":true},\"nvme_smart_health_information_log\":{\"percentage_used\":97}}'\nexit 64\n",
    );
    // copied by another process: a fork of this one must not hold the program open for writing
    let copy = "cp script smartctl && chmod 755 smartctl";
    let copied = std::process::Command::new("sh").args(["-c", copy]).current_dir(host.dir.path().join("usr/sbin")).status();
    assert!(copied.expect("sh").success());
    assert_eq!(of_disk("nvme0n1", &flash), [(Warn, "wear")]);
    // a partition is looked at as its disk
    host.put("sys/block/sda/sda1/partition", "1\n");
    fs::create_dir_all(host.dir.path().join("sys/dev/block")).expect("a directory");
    symlink("../../block/sda/sda1", host.dir.path().join("sys/dev/block/8:1")).expect("a link");
    let found = devices::disk_of(host.dir.path(), rustix::fs::makedev(8, 1)).expect("a disk");
    assert_eq!(devices::name_of(&found), "sda");
}

#[test]
fn reports_of_disks_are_understood() {
    let bad = |text: &str| match judge(text.as_bytes()) {
        Health::Bad { failing, facts } => (failing, facts),
        other => panic!("{other:?}"),
    };
    assert_eq!(judge(br#"{"smart_status":{"passed":true},"power_on_time":{"hours":12}}"#), Health::Good("12 hours on".to_owned()));
    assert_eq!(bad(r#"{"smart_status":{"passed":false}}"#), (true, "it expects to fail (SMART status)".to_owned()));
    let worn = r#"{"smart_status":{"passed":true},"nvme_smart_health_information_log":{"percentage_used":95,"available_spare":4,"available_spare_threshold":10,"critical_warning":1,"media_errors":2}}"#;
    let (failing, facts) = bad(worn);
    for part in ["95 % of its endurance", "4 % of its spare", "critical warning 0x01", "2 media errors"] {
        assert!(!failing && facts.contains(part), "{facts}");
    }
    let ata =
        r#"{"smart_status":{"passed":true},"ata_smart_attributes":{"table":[{"id":5,"raw":{"value":9}},{"id":197,"raw":{"value":8}}]}}"#;
    assert_eq!(bad(ata), (false, "8 sectors that cannot be read".to_owned()));
    let none = br#"{"smartctl":{"messages":[{"string":"/dev/vda: Unable to detect device type"}]}}"#;
    assert_eq!(judge(none), Health::NotReadable("/dev/vda: Unable to detect device type".to_owned()));
    assert!(matches!(judge(b"Segmentation fault"), Health::NotReadable(_)));
}

#[test]
fn mounts_below_pool_files_are_judged() {
    use CheckState::{Fail, Ok, Warn};
    let judged = |kind: &str, options: &str| {
        let mount = files::Mount { kind: kind.to_owned(), options: options.split(',').map(str::to_owned).collect() };
        files::mount_checks(Path::new("/srv/a"), &mount).into_iter().map(|check| check.state).collect::<Vec<_>>()
    };
    assert_eq!(judged("ext4", "rw,relatime"), [Ok]);
    assert_eq!(judged("xfs", "rw,nobarrier"), [Fail]);
    assert_eq!(judged("ext4", "rw,barrier=0,data=journal"), [Fail, Warn]);
    assert_eq!(judged("tmpfs", "rw"), [Fail]);
    assert_eq!(judged("ext4", "ro"), [Fail]);
    for kind in ["nfs4", "fuse.sshfs", "btrfs", "zfs", "overlay"] {
        assert_eq!(judged(kind, "rw"), [Warn], "{kind}");
    }
    let host = Invented::new();
    host.put(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n40 1 8:2 / /srv rw - xfs /dev/sdb rw\n41 40 8:2 / /srv rw shared:2 - xfs /dev/sdb rw,nobarrier\nrubbish\n",
    );
    let mount = files::mount_of(&host.host, "8:2").expect("a mount");
    assert!(mount.kind == "xfs" && mount.options.iter().any(|option| option == "nobarrier"), "the last one counts");
    assert!(files::mount_of(&host.host, "8:3").is_none());
}

#[test]
fn devices_are_those_in_the_state_file_and_missing_ones_are_found() {
    use CheckState::Fail;
    let mut host = Invented::new();
    let state = host.host.state.clone();
    assert_eq!(known_devices(&state.join("nowhere")), Ok(Vec::new()));
    host.put("state/state.json", r#"{"version":2,"pools":[{"name":"tank","devices":["/dev/x","","here.img"],"replacements":["/dev/y"]}]}"#);
    let known = known_devices(&state).expect("devices");
    assert_eq!(known, [PathBuf::from("/dev/x"), PathBuf::from("/dev/y"), state.join("here.img")]);
    host.put("state/state.json", "{");
    assert!(known_devices(&state).is_err_and(|why| why.contains("state.json")));
    host.host.devices = vec![PathBuf::from("/dev/x")];
    assert_eq!(host.findings(), [(Fail, "device")]);
}

#[test]
fn confined_guests_of_libvirt_need_a_rule_for_sockets() {
    let invented = Invented::new();
    let sockets = invented.host.socket.parent().expect("a directory").display().to_string();
    let rule = format!("  {sockets}/*.sock rw,\n");
    let warned = [(CheckState::Warn, "apparmor")];
    // no libvirt
    invented.put("sys/module/apparmor/parameters/enabled", "Y\n");
    assert_eq!(invented.findings(), []);
    // Debian 12 does not read the file of Millpond's package
    invented.put("etc/apparmor.d/abstractions/libvirt-qemu", "/dev/kvm rw,\n#include <local/abstractions/libvirt-qemu>\n");
    assert_eq!(invented.findings(), warned);
    invented.put("etc/apparmor.d/abstractions/libvirt-qemu.d/millpond", &rule);
    assert_eq!(invented.findings(), warned);
    invented.put("etc/apparmor.d/local/abstractions/libvirt-qemu", &format!("# {rule}"));
    assert_eq!(invented.findings(), warned);
    invented.put("etc/apparmor.d/local/abstractions/libvirt-qemu", &rule);
    assert_eq!(invented.findings(), []);
    // Debian 13 does
    invented.remove("etc/apparmor.d/local/abstractions/libvirt-qemu");
    invented.put("etc/apparmor.d/abstractions/libvirt-qemu", "include if exists <abstractions/libvirt-qemu.d>\n");
    assert_eq!(invented.findings(), []);
    invented.remove("etc/apparmor.d/abstractions/libvirt-qemu.d/millpond");
    assert_eq!(invented.findings(), warned);
    // AppArmor is off
    invented.put("sys/module/apparmor/parameters/enabled", "N\n");
    assert_eq!(invented.findings(), []);
}
