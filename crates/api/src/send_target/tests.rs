//! Targets are read as they are written, and no text of one becomes an option or a command.

use super::*;

fn own() -> OwnProgram {
    OwnProgram { program: "/usr/bin/millpond".to_owned(), socket: PathBuf::from("/run/own.sock") }
}

fn target(text: &str) -> SendTarget {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn targets_are_read_and_written() {
    let ssh = |user: Option<&str>, host: &str, port| {
        let (user, host, pool) = (user.map(str::to_owned), host.to_owned(), "tank".to_owned());
        SendTarget::Ssh { user, host, port, pool }
    };
    for (text, is) in [
        ("backup", SendTarget::Pool("backup".to_owned())),
        ("ssh://host/tank", ssh(None, "host", None)),
        ("ssh://root@host.example:2222/tank", ssh(Some("root"), "host.example", Some(2222))),
        ("ssh://[fe80::1%eth0]:22/tank", ssh(None, "fe80::1%eth0", Some(22))),
        ("ssh://[::1]/tank", ssh(None, "::1", None)),
        ("unix:/run/other/control.sock/tank", SendTarget::Unix { socket: "/run/other/control.sock".into(), pool: "tank".to_owned() }),
        ("/srv/backups", SendTarget::Backup("/srv/backups".to_owned())),
        ("s3://bucket/some/prefix", SendTarget::Backup("s3://bucket/some/prefix".to_owned())),
    ] {
        assert_eq!(target(text), is);
        assert_eq!(is.to_string(), text);
    }
}

#[test]
fn nothing_becomes_an_option_of_ssh() {
    for wrong in [
        "",
        "ssh://-oProxyCommand=x/tank",
        "ssh://-l@host/tank",
        "ssh://user@-host/tank",
        "ssh://host",
        "ssh:///tank",
        "ssh://host/",
        "ssh://host/tank/more",
        "ssh://host/-n",
        "ssh://host:0/tank",
        "ssh://host:99999/tank",
        "ssh://host:-1/tank",
        "ssh://ho st/tank",
        "ssh://a;b/tank",
        "ssh://[-o]/tank",
        "ssh://[::1]x/tank",
        "unix:relative/tank",
        "unix:tank",
        "unix:/run/s/",
        "s3://",
        "s3:///prefix",
        "tank/vm1",
        "-tank",
        "a\nb",
    ] {
        let error = wrong.parse::<SendTarget>().expect_err(wrong);
        assert!(error.message.starts_with("cannot send to '") && !error.message.contains('\n'), "{}", error.message);
    }
}

#[test]
fn commands_run_where_the_target_is() {
    let words = ["receive", "tank/vm1", "--resume", "0a:1:2:3"];
    assert_eq!(target("tank").command(&own(), &words)[..3], ["/usr/bin/millpond", "--socket", "/run/own.sock"]);
    let there = target("unix:/run/b.sock/tank").command(&own(), &words);
    assert_eq!(there[..4], ["/usr/bin/millpond", "--socket", "/run/b.sock", "receive"]);
    let there = target("ssh://root@host:22/tank").command(&own(), &["list", "tank/*vm'1", ""]);
    assert_eq!(there[..2], ["ssh", "-T"]);
    assert!(there.windows(2).any(|pair| pair == ["-o", "BatchMode=yes"]), "{there:?}");
    let end = ["-p", "22", "-l", "root", "--", "host", r"millpond list 'tank/*vm'\''1' ''"];
    assert!(there.ends_with(&end.map(str::to_owned)), "{there:?}");
    let plain = target("ssh://host/tank").command(&own(), &words);
    assert!(plain.ends_with(&["--", "host", "millpond receive tank/vm1 --resume 0a:1:2:3"].map(str::to_owned)), "{plain:?}");
}

#[test]
fn a_backup_is_a_command_of_this_program() {
    let command = target("s3://bucket/vm").backup_command(&own(), "tank/vm1@a", "1h:2d 1d:30d", false);
    let words = ["backup", "create", "s3://bucket/vm", "tank/vm1@a", "--keep", "1h:2d 1d:30d"];
    assert_eq!(command, Some(own().here(&words)));
    assert_eq!(target("tank").backup_command(&own(), "tank/vm1@a", "1h:2d", true), None);
    let again = target("/mnt/nas").backup_command(&own(), "tank/vm1@a", "1h:2d", true);
    assert_eq!(again.and_then(|command| command.last().cloned()).as_deref(), Some("--no-init"));
    assert_eq!((target("/srv/b").pool(), target("ssh://h/tank").pool()), (None, Some("tank")));
}
