//! A transient export ends when it has no client for a time; other exports stay.

use std::path::Path;

use millpond_api::{
    ClassSpec, CreateExport, CreateNbd, CreatePool, CreateVolume, DeviceGroup, DeviceSpec, EventKind, IoMode, LayoutSpec, SetProperties,
};

use super::*;
use crate::service::Options;
use crate::shard::tests::client::Client;
use crate::state::StateDir;

/// Longer than any call takes that does not hang, on the busiest host.
const LONG: Duration = Duration::from_secs(300);

async fn with_pool(dir: &Path) -> Arc<Daemon> {
    let state = StateDir::open(&dir.join("state")).expect("state");
    let daemon = Daemon::new(Options { socket: dir.join("control.sock"), ..Options::default() }, state).expect("daemon");
    let device = DeviceSpec { path: dir.join("tank.img").display().to_string(), create: Some(256 << 20) };
    let group = DeviceGroup { class: ClassSpec::Data, layout: LayoutSpec::Linear, devices: vec![device] };
    let request = CreatePool {
        name: "tank".to_owned(),
        groups: vec![group],
        io: IoMode::default(),
        force: false,
        without_features: false,
        dry_run: false,
    };
    daemon.create_pool(request).await.expect("pool");
    for name in ["tank/a", "tank/b"] {
        let volume = CreateVolume { name: name.to_owned(), size: 16 << 20, sector: None, properties: SetProperties::default() };
        daemon.create_volume(volume).await.expect("volume");
    }
    Arc::new(daemon)
}

/// Makes an export; returns its id and its socket.
async fn export(daemon: &Daemon, name: &str, transient: bool) -> (u64, String) {
    let request = CreateExport::Nbd(CreateNbd { name: name.to_owned(), transient, ..CreateNbd::default() });
    let made = daemon.create_export(&request, !transient).await.expect("export");
    (made.id, made.unix.expect("a socket"))
}

async fn connect(socket: &str) -> Client {
    let socket = socket.to_owned();
    tokio::task::spawn_blocking(move || Client::unix(Path::new(&socket))).await.expect("client")
}

/// Looks at the exports as of `now`, until a look shows this number of clients of all of them.
async fn look(daemon: &Arc<Daemon>, clients: usize, now: Instant) {
    loop {
        let looks = daemon.look().await;
        let exports = looks.iter().filter_map(PoolLook::answer).flat_map(|look| &look.exports);
        if exports.map(|export| export.clients.len()).sum::<usize>() == clients {
            daemon.end_unused_exports(&looks, now);
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ids(daemon: &Daemon) -> Vec<u64> {
    daemon.exports().await.expect("exports").iter().map(|export| export.id).collect()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async { tokio::time::timeout(LONG, test).await.expect("it hangs") });
}

#[test]
fn a_transient_export_ends_without_clients_and_others_stay() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = with_pool(dir.path()).await;
        let (kept, _) = export(&daemon, "tank/a", false).await;
        let (private, socket) = export(&daemon, "tank/b", true).await;
        let begun = Instant::now();
        let client = connect(&socket).await;
        // connected, without a request, for any time
        for seconds in [0, 100, 200] {
            look(&daemon, 1, begun + Duration::from_secs(seconds)).await;
        }
        // its client is killed
        drop(client);
        look(&daemon, 0, begun + Duration::from_secs(300)).await;
        look(&daemon, 0, begun + Duration::from_secs(359)).await;
        // the task of an end would be done by then
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(ids(&daemon).await, [kept, private], "too early");
        look(&daemon, 0, begun + Duration::from_secs(360)).await;
        while ids(&daemon).await != [kept] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!Path::new(&socket).exists());
        let (events, _) = daemon.listen_from(crate::events::From::After(0));
        assert!(
            events.iter().any(|event| event.event == EventKind::ExportRemoved && event.subject == format!("{private} tank/b")),
            "{events:?}"
        );
    });
}

#[test]
fn an_export_that_was_used_between_two_looks_or_is_used_again_stays() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = with_pool(dir.path()).await;
        let (private, socket) = export(&daemon, "tank/b", true).await;
        let begun = Instant::now();
        look(&daemon, 0, begun).await;
        // a client of a moment
        let mut client = connect(&socket).await;
        let client = tokio::task::spawn_blocking(move || {
            assert_eq!(client.write(0, &[1; 4096]), 0);
            client
        });
        drop(client.await.expect("client"));
        look(&daemon, 0, begun + UNUSED).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(ids(&daemon).await, [private], "it was used");
        // a client that connects after the last look
        let client = connect(&socket).await;
        daemon.end_unused_export(private).await;
        assert_eq!(ids(&daemon).await, [private], "it is used");
        drop(client);
        daemon.end_unused_export(private).await;
        assert_eq!(ids(&daemon).await, [0; 0]);
    });
}
