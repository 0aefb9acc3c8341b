//! Guests whose agents answer, hang, answer late, refuse or send garbage. INV-FREEZE-1: each of them
//! is thawed.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::time::Instant;

use super::*;
use crate::service::Options;
use crate::state::StateDir;

/// Longer than any test takes that does not hang, on the busiest host.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Limits = Limits {
    sync: Duration::from_secs(2),
    freeze: Duration::from_secs(1),
    thaw: Duration::from_secs(2),
    frozen: Duration::from_secs(1),
    pause: Duration::from_millis(20),
};

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
        let fake = Fake { ways: Arc::new(Mutex::new(ways.iter().cloned().collect())), ..Fake::default() };
        let socket = dir.join("agent.sock");
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
        let (taken, reasons) = daemon.frozen(&[guest], true, seen).await;
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
        let (taken, reasons) = daemon.frozen(&[guest], required, async {}).await;
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
        let (taken, reasons) = daemon.frozen(std::slice::from_ref(&guest), false, async {}).await;
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
        assert_eq!(daemon.frozen(&[guest], true, async {}).await, (Some(()), Vec::new()));
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
        let (taken, reasons) = daemon.frozen(std::slice::from_ref(&guest), false, slow).await;
        assert!(taken == Some(7) && reasons.join("").contains("the pool did not take the snapshot within"), "{reasons:?}");
        fake.log.lock().expect("lock").clear();

        let taking = tokio::sync::Notify::new();
        let never = daemon.frozen(std::slice::from_ref(&guest), false, async {
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
        assert_eq!(daemon.frozen(&[guest(false)], true, async {}).await, (Some(()), Vec::new()));
        let (taken, reasons) = daemon.frozen(&[guest(true)], true, async {}).await;
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
