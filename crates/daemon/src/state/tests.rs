//! The state file.

use super::*;

fn sample(dir: &Path) -> State {
    State {
        next_export: 7,
        pools: vec![PoolRecord {
            name: "p".to_owned(),
            id: "00".to_owned(),
            // about to become members; and the second member was removed
            replacements: vec![dir.join("b"), PathBuf::from("/dev/y")],
            devices: vec![dir.join("a"), PathBuf::new(), PathBuf::from("/dev/x")],
            io: IoMode::Buffered,
            read_only: false,
            checkpoint: None,
            seen: BTreeMap::from([(
                2,
                SeenDevice { id: 9, serial: Some("WX11".to_owned()), size: 4096, errors: 3, ..SeenDevice::default() },
            )]),
            limits: BTreeMap::from([(1, DeviceCap { bps: Some(50 << 20), iops: None })]),
            in_force: Some(InForce {
                generation: 4,
                current: BTreeMap::from([(0, u64::MAX)]),
                replacements: BTreeMap::new(),
                left_behind: true,
                since: jiff::Timestamp::UNIX_EPOCH,
            }),
            removal_ended: Some(RemovalEnded { why: "no room".to_owned(), at: jiff::Timestamp::UNIX_EPOCH }),
        }],
        exports: vec![
            ExportRecord {
                id: 6,
                pool: "p".to_owned(),
                name: "p/v@s".to_owned(),
                readonly: true,
                protocol: Protocol::Nbd {
                    access: Access { gid: Some(104), mode: Some(0o660), ..Access::default() },
                    served: Served::Snapshot(9),
                    unix: Some(dir.join("v.sock")),
                    tcp: Some("127.0.0.1:1".to_owned()),
                    tls: Some(TlsRecord {
                        mode: TlsMode::Require,
                        files: TlsFiles::Psk { keys: "/etc/keys.psk".into() },
                        identity: Some("alice".to_owned()),
                        clients: vec!["vm1.example".to_owned()],
                    }),
                    limits: NbdLimits { max_clients: Some(3), ..NbdLimits::default() },
                },
            },
            ExportRecord {
                id: 7,
                pool: "p".to_owned(),
                name: "p/v".to_owned(),
                readonly: false,
                protocol: Protocol::VhostUser {
                    served: Served::Volume(3),
                    unix: dir.join("guest.sock"),
                    access: Access::default(),
                    queues: 4,
                    promised: true,
                },
            },
        ],
        ..State::default()
    }
}

#[test]
fn what_is_saved_is_loaded_and_survives_a_move() {
    let base = tempfile::tempdir().expect("tempdir");
    let (old, new) = (base.path().join("old"), base.path().join("new"));
    let state = StateDir::open(&old).expect("open");
    assert_eq!(state.load(), Ok(State::default()));
    state.save(&sample(&old)).expect("save");
    assert_eq!(state.load(), Ok(sample(&old)));
    let text = fs::read_to_string(old.join(FILE)).expect("read");
    assert!(!text.contains("/old"), "a path inside the directory is not relative: {text}");
    drop(state);
    fs::rename(&old, &new).expect("move");
    assert_eq!(StateDir::open(&new).expect("open").load(), Ok(sample(&new)));
}

#[test]
fn a_second_daemon_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let _first = StateDir::open(dir.path()).expect("first");
    assert!(StateDir::open(dir.path()).expect_err("second").to_string().contains("another daemon"));
}

#[test]
fn a_damaged_or_newer_file_is_refused_not_forgotten() {
    let dir = tempfile::tempdir().expect("tempdir");
    let state = StateDir::open(dir.path()).expect("open");
    // every file of version 2 names its program
    let versions = [2, 3].map(|version| format!("{{\"version\":{version},\"next_export\":1,\"pools\":[],\"exports\":[]}}"));
    for text in ["", "{}"].into_iter().chain(versions.iter().map(String::as_str)) {
        fs::write(dir.path().join(FILE), text).expect("write");
        assert!(state.load().is_err(), "{text}");
    }
}

#[test]
fn a_newer_file_names_its_program_and_is_left_alone() {
    let dir = tempfile::tempdir().expect("tempdir");
    let state = StateDir::open(dir.path()).expect("open");
    let newer = |program: &str| format!("{{\"version\":3,{program}\"pools\":{{\"in\":\"another form\"}}}}");
    let newer_version = "by a newer version of Millpond;";
    for (program, by) in [(r#""program":"9.4.0","#, "by Millpond 9.4.0;"), ("", newer_version), (r#""program":"\n","#, newer_version)] {
        fs::write(dir.path().join(FILE), newer(program)).expect("write");
        let why = state.load().expect_err("newer").to_string();
        assert!(why.contains(by) && why.contains("version 3") && !why.contains('\n'), "{why}");
        assert_eq!(fs::read_to_string(dir.path().join(FILE)).expect("read"), newer(program));
    }
}

#[test]
fn a_file_of_an_older_program_is_read() {
    let dir = tempfile::tempdir().expect("tempdir");
    let state = StateDir::open(dir.path()).expect("open");
    let text = r#"{"version": 2, "program": "0.1.0", "next_export": 1, "exports": [], "pools": [{"name": "tank", "id": "00", "devices": ["/a"],
                   "in_force": {"generation": 5, "current": {"0": 11}, "since": "1970-01-01T00:00:00Z"}}]}"#;
    fs::write(dir.path().join(FILE), text).expect("write");
    let pool = state.load().expect("read").pools.pop().expect("a pool");
    assert_eq!((pool.remembered().map(|labels| labels.left_behind), pool.removal_ended), (Some(false), None));
}
