//! Guests whose agents answer, hang, answer late, refuse or send garbage. INV-FREEZE-1: each of them
//! is thawed.

use std::fs;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::time::{Instant, sleep};

use super::guest::socket_of;
use super::thaw::{STATUS, THAW};
use super::*;
use crate::service::Options;
use crate::state::StateDir;

/// Longer than any test takes that does not hang, on the busiest host.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Limits = Limits {
    lock: Duration::from_secs(60),
    sync: Duration::from_secs(2),
    freeze: Duration::from_secs(1),
    freeze_together: Duration::from_millis(900),
    thaw: Duration::from_secs(2),
    frozen: Duration::from_secs(1),
    pause: Duration::from_millis(20),
    rest: Duration::from_millis(50),
};
const REQUIRED: How = How { required: true, patient: true };
const WANTED: How = How { required: false, patient: true };
/// As a policy freezes.
const OF_POLICY: How = How { required: false, patient: false };

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async { timeout(LONG, test).await.expect("it hangs") });
}

fn daemon(dir: &Path) -> Arc<Daemon> {
    let state = StateDir::open(&dir.join("state")).expect("state");
    let mut daemon = Daemon::new(Options { socket: dir.join("control.sock"), ..Options::default() }, state).expect("daemon");
    daemon.freezer.limits = SHORT;
    Arc::new(daemon)
}

/// How the agent answers one command.
#[derive(Clone)]
enum Way {
    Right,
    Late(Duration),
    Text(&'static str),
    Never,
    Close,
}

/// An agent behind a socket, as QEMU has it: one client at a time, and commands in order.
#[derive(Clone, Default)]
struct Fake {
    log: Arc<Mutex<Vec<String>>>,
    ways: Arc<Mutex<BTreeMap<&'static str, Vec<Way>>>>,
}

impl Fake {
    fn start(dir: &Path, ways: &[(&'static str, Vec<Way>)]) -> (Fake, Guest) {
        Fake::named(dir, "agent.sock", ways)
    }

    fn named(dir: &Path, name: &str, ways: &[(&'static str, Vec<Way>)]) -> (Fake, Guest) {
        let fake = Fake { ways: Arc::new(Mutex::new(ways.iter().cloned().collect())), ..Fake::default() };
        let socket = dir.join(name);
        let listener = UnixListener::bind(&socket).expect("bound");
        let other = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                other.talk(stream).await;
            }
        });
        (fake, Guest { socket, volume: "tank/vm1".to_owned(), used: true })
    }

    async fn talk(&self, stream: tokio::net::UnixStream) {
        let (read, mut write) = stream.into_split();
        // left by an earlier client
        let _ = write.write_all(b"{\"return\": 5}\n{\"ret").await;
        let mut lines = BufReader::new(read).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            let line: Vec<u8> = line.into_iter().filter(|byte| *byte != SENTINEL).collect();
            let request: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
            let command = request["execute"].as_str().expect("a command").to_owned();
            let way = {
                let mut ways = self.ways.lock().expect("lock");
                let left = ways.get_mut(command.as_str()).filter(|left| !left.is_empty());
                left.map_or(Way::Right, |left| left.remove(0))
            };
            self.log.lock().expect("lock").push(command.trim_start_matches("guest-").to_owned());
            let right = match request["arguments"]["id"].as_u64() {
                Some(id) => format!("\n{{\"error\": {{\"desc\": \"JSON parse error\"}}}}\n\u{0}{{\"return\": {id}}}\n"),
                None => "{\"return\": 3}\n".to_owned(),
            };
            let bytes: Vec<u8> = right.bytes().map(|byte| if byte == 0 { SENTINEL } else { byte }).collect();
            let bytes = match way {
                Way::Right => bytes,
                Way::Late(time) => {
                    sleep(time).await;
                    bytes
                }
                Way::Text(text) => text.as_bytes().to_vec(),
                Way::Never => continue,
                Way::Close => return,
            };
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().expect("lock").clone()
    }

    /// Waits until the guest is thawed and its mark is gone.
    async fn thawed(&self, dir: &Path) {
        let end = Instant::now() + LONG;
        while !self.log().contains(&"fsfreeze-thaw".to_owned()) || marks(dir) > 0 {
            assert!(Instant::now() < end, "{:?}, {} marks", self.log(), marks(dir));
            sleep(Duration::from_millis(5)).await;
        }
    }
}

const SENTINEL: u8 = 0xff;
const FREEZING: &str = FREEZE;
const FROZEN: [&str; 4] = ["sync-delimited", "fsfreeze-freeze", "sync-delimited", "fsfreeze-thaw"];

fn marks(dir: &Path) -> usize {
    fs::read_dir(dir.join("state/frozen")).map_or(0, Iterator::count)
}

#[test]
fn a_guest_is_frozen_while_the_snapshot_is_taken_and_thawed_after_it() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &[]));
        let seen = async { (fake.log(), marks(dir.path())) };
        let (taken, reasons) = daemon.frozen(&[guest], REQUIRED, seen).await;
        assert_eq!((taken, reasons), (Some((FROZEN[..2].iter().map(|s| (*s).to_owned()).collect(), 1)), Vec::new()));
        assert_eq!((fake.log(), marks(dir.path())), (FROZEN.map(str::to_owned).to_vec(), 0));
    });
}

/// Freezes a guest whose agent answers so, and takes a snapshot or not; returns whether it was taken,
/// and the reason.
fn attempt(required: bool, ways: &[(&'static str, Vec<Way>)], thaws: bool) -> (bool, String) {
    let dir = tempfile::tempdir().expect("directory");
    let mut result = (false, String::new());
    run(async {
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), ways));
        let (taken, reasons) = daemon.frozen(&[guest], How { required, patient: true }, async {}).await;
        if thaws {
            fake.thawed(dir.path()).await;
        }
        assert_eq!(marks(dir.path()), 0);
        assert_eq!(fake.log().contains(&"fsfreeze-thaw".to_owned()), thaws, "{:?}", fake.log());
        assert!(daemon.stuck_guests("tank").is_empty());
        result = (taken.is_some(), reasons.join(" "));
    });
    result
}

#[test]
fn a_guest_that_cannot_be_frozen_is_thawed_and_the_snapshot_is_taken_or_not() {
    let late = Duration::from_millis(1500);
    let refusal = Way::Text("{\"error\": {\"class\": \"GenericError\", \"desc\": \"it is frozen\"}}\n");
    for required in [false, true] {
        for (way, thaws, reason) in [
            (Way::Never, true, "no answer to guest-fsfreeze-freeze"),
            (Way::Late(late), true, "no answer to guest-fsfreeze-freeze"),
            (Way::Text("{]\n"), true, "makes no sense"),
            (Way::Close, true, "connection ended"),
            (refusal.clone(), false, "refuses guest-fsfreeze-freeze: it is frozen"),
        ] {
            let (taken, said) = attempt(required, &[(FREEZING, vec![way])], thaws);
            assert!(taken != required && said.contains(reason), "{required} {said}");
        }
        let (taken, said) = attempt(required, &[("guest-sync-delimited", vec![Way::Never])], false);
        assert!(taken != required && said.contains("no answer to guest-sync-delimited"), "{said}");
    }
}

#[test]
fn a_thaw_without_an_answer_is_reported_and_repeated() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let ways = [(THAW, vec![Way::Never, Way::Text("{\"error\": {\"desc\": \"no\"}}\n"), Way::Close])];
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &ways));
        let (taken, reasons) = daemon.frozen(std::slice::from_ref(&guest), WANTED, async {}).await;
        assert_eq!((taken, reasons), (Some(()), Vec::new()));
        let end = Instant::now() + LONG;
        while daemon.stuck_guests("tank").is_empty() {
            assert!(Instant::now() < end, "no guest is reported");
            sleep(Duration::from_millis(1)).await;
        }
        assert!(marks(dir.path()) == 1 && daemon.stuck_guests("other").is_empty());
        fake.thawed(dir.path()).await;
        while !daemon.stuck_guests("tank").is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(fake.log().iter().filter(|command| *command == "fsfreeze-thaw").count(), 4);
        // the next snapshot can freeze it
        assert_eq!(daemon.frozen(&[guest], REQUIRED, async {}).await, (Some(()), Vec::new()));
    });
}

#[test]
fn a_guest_is_thawed_when_the_pool_is_slow_and_when_nobody_waits_any_more() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &[]));
        let slow = async {
            fake.thawed(dir.path()).await;
            7
        };
        let (taken, reasons) = daemon.frozen(std::slice::from_ref(&guest), WANTED, slow).await;
        assert!(taken == Some(7) && reasons.join("").contains("the pool did not take the snapshot within"), "{reasons:?}");
        fake.log.lock().expect("lock").clear();

        let taking = tokio::sync::Notify::new();
        let never = daemon.frozen(std::slice::from_ref(&guest), WANTED, async {
            taking.notify_one();
            std::future::pending::<()>().await;
        });
        tokio::select! {
            _ = never => panic!("nothing is taken"),
            () = taking.notified() => {}
        }
        fake.thawed(dir.path()).await;
    });
}

#[test]
fn a_guest_is_thawed_when_the_command_ends_while_it_freezes() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let (daemon, (fake, guest)) =
            (daemon(dir.path()), Fake::start(dir.path(), &[(FREEZE, vec![Way::Late(Duration::from_millis(300))])]));
        let dropped = timeout(Duration::from_millis(100), daemon.frozen(&[guest], WANTED, async {})).await;
        assert!(dropped.is_err(), "it was frozen at once");
        fake.thawed(dir.path()).await;
    });
}

#[test]
fn a_guest_that_thaws_by_itself_is_reported() {
    let refusal = Way::Text("{\"error\": {\"desc\": \"writes could not be held\"}}\n");
    for (thaw, status) in [(Way::Text("{\"return\": 0}\n"), Way::Right), (refusal, Way::Text("{\"return\": \"thawed\"}\n"))] {
        let dir = tempfile::tempdir().expect("directory");
        run(async {
            let (daemon, (_, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &[(THAW, vec![thaw]), (STATUS, vec![status])]));
            let (taken, reasons) = daemon.frozen(&[guest], REQUIRED, async {}).await;
            assert!(taken.is_some() && reasons.join("").contains("was thawed before the snapshot was complete"), "{reasons:?}");
            assert!(marks(dir.path()) == 0 && daemon.stuck_guests("tank").is_empty());
        });
    }
}

#[test]
fn a_tardy_agent_keeps_one_run_waiting_and_is_asked_again_in_the_background() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let ways = [("guest-sync-delimited", vec![Way::Never, Way::Never])];
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &ways));
        let attempt = || daemon.frozen(std::slice::from_ref(&guest), OF_POLICY, async {});
        let (_, first) = attempt().await;
        assert!(first.join("").contains("no answer to guest-sync-delimited within"), "{first:?}");
        let begun = Instant::now();
        assert_eq!(attempt().await, (Some(()), first.clone()), "and the same reason at once");
        assert!(begun.elapsed() < SHORT.sync / 2, "the second run waits, too");
        // the first question in the background has no answer either, the second one has
        let mut reasons = first;
        while !reasons.is_empty() {
            sleep(Duration::from_millis(20)).await;
            let begun = Instant::now();
            reasons = attempt().await.1;
            assert!(begun.elapsed() < SHORT.sync / 2, "a run waits: {reasons:?}");
        }
        assert_eq!(fake.log().iter().filter(|command| *command == "fsfreeze-thaw").count(), 1);
    });
}

#[test]
fn a_guest_that_is_slow_to_freeze_is_left_alone_for_longer_each_time() {
    let freezer = Freezer { limits: Limits { rest: Duration::from_secs(1000), ..SHORT }, ..Freezer::new(Path::new("/none")) };
    let socket = Path::new("/run/agent.sock");
    let mut spans = Vec::new();
    for _ in 0..9 {
        freezer.note_tardy(socket, "slow", true);
        let until = freezer.tardy().get(socket).expect("an entry").until;
        spans.push((until - Instant::now()).as_secs_f64() / 1000.0);
        assert_eq!(freezer.is_tardy(socket), Some(("slow".to_owned(), false)));
    }
    let rounded: Vec<f64> = spans.iter().map(|span| span.round()).collect();
    assert_eq!(rounded, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0, 32.0]);
    // one that has answered meanwhile is asked when its time has passed
    freezer.tardy().get_mut(socket).expect("an entry").until = Instant::now();
    assert_eq!(freezer.is_tardy(socket), None);
}

#[test]
fn commands_with_the_same_guests_do_not_wait_for_each_other_frozen() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = daemon(dir.path());
        let (one, a) = Fake::named(dir.path(), "a.sock", &[]);
        let (two, b) = Fake::named(dir.path(), "b.sock", &[]);
        let (some, same) = ([a.clone(), b.clone()], [b, a]);
        let both = tokio::join!(daemon.frozen(&some, REQUIRED, async {}), daemon.frozen(&same, REQUIRED, async {}));
        assert_eq!(both, ((Some(()), Vec::new()), (Some(()), Vec::new())));
        for fake in [one, two] {
            assert_eq!(fake.log(), [FROZEN, FROZEN].concat());
        }
    });
}

#[test]
fn a_sick_guest_of_a_group_keeps_no_other_one_frozen() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = daemon(dir.path());
        let (well, a) = Fake::named(dir.path(), "a.sock", &[]);
        let (sick, b) = Fake::named(dir.path(), "b.sock", &[("guest-sync-delimited", vec![Way::Never])]);
        for (how, taken) in [(REQUIRED, None), (OF_POLICY, Some(1))] {
            let guests = [a.clone(), b.clone()];
            let (seen, reasons) =
                daemon.frozen(&guests, how, async { well.log().iter().filter(|word| word.contains("freeze-freeze")).count() }).await;
            assert!(seen == taken && reasons.len() == 1, "{seen:?} {reasons:?}");
        }
        assert!(!sick.log().contains(&"fsfreeze-freeze".to_owned()), "{:?}", sick.log());
        assert_eq!(well.log(), [&FROZEN[..1], &FROZEN[..]].concat(), "not frozen in vain");
    });
}

#[test]
fn a_daemon_that_ends_freezes_no_guest() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let (daemon, (fake, guest)) = (daemon(dir.path()), Fake::start(dir.path(), &[]));
        let taking = daemon.frozen(std::slice::from_ref(&guest), WANTED, sleep(Duration::from_millis(300)));
        let ending = async {
            sleep(Duration::from_millis(100)).await;
            assert_eq!(marks(dir.path()), 1);
            daemon.wait_for_thaws().await;
            assert_eq!(marks(dir.path()), 0, "it ends before the thaw");
        };
        tokio::join!(taking, ending);
        let (taken, reasons) = daemon.frozen(&[guest], WANTED, async {}).await;
        assert!(taken.is_some() && reasons == ["the daemon ends"], "{reasons:?}");
        assert_eq!(fake.log(), FROZEN);
    });
}

#[test]
fn the_next_daemon_thaws_what_a_killed_one_left() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let (fake, guest) = Fake::start(dir.path(), &[]);
        {
            // as after the freeze of a daemon that is killed then
            let killed = Freezer::new(&dir.path().join("state"));
            killed.mark(&guest).expect("a mark");
            assert_eq!(killed.marked().first().map(|(guest, _)| guest.clone()), Some(guest.clone()));
        }
        let next = daemon(dir.path());
        next.thaw_left();
        fake.thawed(dir.path()).await;
        // one whose guest has ended meanwhile
        let gone = Guest { socket: dir.path().join("gone.sock"), ..guest };
        next.freezer.mark(&gone).expect("a mark");
        // one that was not written completely
        fs::write(dir.path().join("state/frozen/half"), "/run/vm1").expect("written");
        next.thaw_left();
        while marks(dir.path()) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        next.wait_for_thaws().await;
    });
}

#[test]
fn a_volume_without_clients_needs_no_guest() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = daemon(dir.path());
        let guest = |used| Guest { socket: dir.path().join("none.sock"), volume: "tank/vm1".to_owned(), used };
        assert_eq!(daemon.frozen(&[guest(false)], REQUIRED, async {}).await, (Some(()), Vec::new()));
        let (taken, reasons) = daemon.frozen(&[guest(true)], REQUIRED, async {}).await;
        assert!(taken.is_none() && reasons.join("").contains("no guest listens there"), "{reasons:?}");
    });
}

#[test]
fn sockets_are_named_by_templates() {
    let socket = |template: &str, volume: &str| socket_of(template, volume).map(|path| path.display().to_string());
    assert_eq!(socket("/run/{vmid}.qga", "tank/vm-100-disk-0"), Ok("/run/100.qga".to_owned()));
    assert_eq!(socket("/run/{vmid}.qga", "tank/base-9-x"), Ok("/run/9.qga".to_owned()));
    assert_eq!(socket("/run/{pool}/{volume}", "tank/web"), Ok("/run/tank/web".to_owned()));
    assert!(socket("/run/{vmid}.qga", "tank/web").is_err() && socket("/run/{vmid}.qga", "tank/vm-x-1").is_err());
    assert!(socket(&format!("/{}", "x".repeat(107)), "tank/web").is_err());
    let (one, two) = (Guest { socket: "/a".into(), volume: "tank/a".into(), used: false }, PathBuf::from("/b"));
    let list = vec![one.clone(), Guest { socket: two, ..one.clone() }, Guest { used: true, ..one.clone() }];
    let once = merged(list);
    assert!(once.len() == 2 && once.first().is_some_and(|guest| guest.used));
}
