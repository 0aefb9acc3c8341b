//! Two pools, one of which hangs: the other is not affected, and the hanging one can be given up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millpond_api::{
    ClassSpec, CreateExport, CreateNbd, CreatePool, CreateSnapshots, CreateVolume, Destroy, DeviceGroup, DeviceSpec, ErrorKind, ImportPool,
    IoMode, LayoutSpec, Pool, PoolHealth, SetProperties, Volume,
};
use millpond_block::MemberId;
use millpond_engine::Target;
use millpond_format::DeviceId;

use super::*;
use crate::locks::Deadlines;
use crate::service::{Options, PoolEntry};
use crate::shard::tests::client::{Client, hung};
use crate::state::{PoolRecord, StateDir};

/// Longer than any call takes that does not hang, on the busiest host.
const LONG: Duration = Duration::from_secs(300);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async { timeout(LONG, test).await.expect("it hangs") });
}

/// A daemon with a pool `good` on a file, a pool `hung` that never answers, and a volume in each.
async fn two_pools(dir: &Path, deadlines: Deadlines) -> Arc<Daemon> {
    let state = StateDir::open(&dir.join("state")).expect("state");
    let options = Options { socket: dir.join("control.sock"), deadlines, ..Options::default() };
    let daemon = Arc::new(Daemon::new(options, state).expect("daemon"));
    create(&daemon, dir, "good").await;
    let hung = PoolEntry::new(record("hung", dir), Ok(hung()));
    daemon.registry().pools.insert("hung".to_owned(), hung);
    daemon
}

fn record(name: &str, dir: &Path) -> PoolRecord {
    PoolRecord::new(name.to_owned(), "07".repeat(16), vec![dir.join(format!("{name}.img"))], IoMode::default())
}

async fn create(daemon: &Daemon, dir: &Path, name: &str) {
    let device = DeviceSpec { path: dir.join(format!("{name}.img")).display().to_string(), create: Some(256 << 20) };
    let group = DeviceGroup { class: ClassSpec::Data, layout: LayoutSpec::Linear, devices: vec![device] };
    let request = CreatePool {
        name: name.to_owned(),
        groups: vec![group],
        io: IoMode::default(),
        force: false,
        without_features: false,
        dry_run: false,
    };
    daemon.create_pool(request).await.expect("pool");
    let volume = CreateVolume { name: format!("{name}/disk"), size: 16 << 20, sector: None, properties: SetProperties::default() };
    daemon.create_volume(volume).await.expect("volume");
}

fn export_of(name: &str, socket: &Path) -> CreateExport {
    CreateExport::Nbd(CreateNbd { name: name.to_owned(), unix: Some(socket.display().to_string()), ..CreateNbd::default() })
}

fn cache(mode: &str) -> SetProperties {
    SetProperties { cache: Some(mode.to_owned().into()), ..SetProperties::default() }
}

fn destroy(name: &str) -> Destroy {
    Destroy { name: name.to_owned(), ..Destroy::default() }
}

/// Exports the volume of the pool that hangs, has a client write to it, and begins to end the
/// export, which waits for the write. From then on the pool's lock is held.
async fn hang(daemon: &Arc<Daemon>, dir: &Path) -> (Client, tokio::task::JoinHandle<Result<(), ApiError>>) {
    let socket = dir.join("hung.sock");
    let export = daemon.create_export(&export_of("hung/disk", &socket), true).await.expect("export");
    let path = socket.clone();
    let client = tokio::task::spawn_blocking(move || Client::with_a_write_in_the_pool(&path)).await.expect("client");
    let unexporting = tokio::spawn({
        let daemon = Arc::clone(daemon);
        async move { daemon.unexport(export.id, false, true).await }
    });
    while socket.exists() {
        tokio::task::yield_now().await;
    }
    (client, unexporting)
}

#[test]
fn commands_on_one_pool_do_not_wait_for_another() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let deadlines = Deadlines { turn: Duration::from_millis(50), ..Deadlines::default() };
        let daemon = two_pools(dir.path(), deadlines).await;
        let (_client, unexporting) = hang(&daemon, dir.path()).await;
        // every kind of command on the other pool works
        let name = "good/disk".parse().expect("name");
        let export = daemon.create_export(&export_of("good/disk", &dir.path().join("good.sock")), true).await.expect("export");
        daemon.set_properties(&name, &cache("none")).await.expect("set");
        let taken = CreateSnapshots { names: vec!["good/disk@a".to_owned()], ..CreateSnapshots::default() };
        daemon.create_snapshots(taken).await.expect("snapshot");
        assert_eq!(daemon.volumes(None).await.expect("volumes").len(), 2);
        assert_eq!(daemon.pools().await.len(), 2);
        assert_eq!(daemon.exports().await.expect("exports").len(), 2);
        assert!(daemon.jobs().await.is_empty());
        daemon.unexport(export.id, false, true).await.expect("unexport");
        daemon.destroy(&destroy("good/disk@a")).await.expect("destroy");
        create(&daemon, dir.path(), "other").await;
        daemon.destroy_pool("other", false).await.expect("destroy");
        assert!(daemon.export_pool("good", false).await.expect("export").clean);
        let search = vec![dir.path().display().to_string()];
        let import = ImportPool { name: Some("good".to_owned()), search, ..ImportPool::default() };
        daemon.import_pool(import).await.expect("import");
        // commands on the hanging pool are refused, with a message
        let refused = daemon.set_properties(&"hung/disk".parse().expect("name"), &cache("none")).await.expect_err("locked");
        assert!(refused.kind == ErrorKind::Busy && refused.message.contains("nothing was changed"), "{refused}");
        assert!(!unexporting.is_finished());
    });
}

#[test]
fn a_pool_whose_thread_is_held_is_asked_once_and_delays_nobody() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let deadlines = Deadlines { look: Duration::from_millis(200), ..Deadlines::default() };
        let daemon = two_pools(dir.path(), deadlines).await;
        let health = |pools: &[Pool]| pools.iter().map(|pool| (pool.name.clone(), pool.health.clone())).collect::<Vec<_>>();
        let shard = daemon.shard("hung").expect("in service");
        let free = shard.hold();
        let first = loop {
            let pools = daemon.pools().await;
            // the other pool may be slow on a busy machine
            if pools.iter().any(|pool| pool.name == "good" && pool.health == PoolHealth::Online) {
                break pools;
            }
        };
        let silent = |pools: &[Pool]| pools.iter().find(|pool| pool.name == "hung").and_then(|pool| pool.silent_since);
        let since = silent(&first);
        assert!(since.is_some(), "{:?}", health(&first));
        assert!(daemon.jobs().await.is_empty());
        assert!(daemon.exports().await.expect("exports").is_empty());
        // a list over all pools has those that answer; a list of this pool alone waits for it
        let listed = |volumes: Vec<Volume>| volumes.into_iter().map(|volume| volume.name).collect::<Vec<_>>();
        // the other pool may be slow on a busy machine
        while listed(daemon.volumes(None).await.expect("the other pool")) != ["good/disk"] {
            tokio::task::yield_now().await;
        }
        assert!(daemon.snapshots(None, None).await.expect("the other pool").is_empty());
        // a later look waits for the answer to the first one
        assert_eq!(silent(&daemon.pools().await), since);
        assert_eq!(silent(&daemon.status().await.expect("status").pools), since);
        drop(free);
        while silent(&daemon.pools().await).is_some() {
            tokio::task::yield_now().await;
        }
        // an answer is never older than its look
        let export = daemon.create_export(&export_of("hung/disk", &dir.path().join("hung.sock")), true).await.expect("export");
        let look = shard.look(LONG).await.expect("it answers");
        assert_eq!(look.exports.iter().map(|info| info.id.0).collect::<Vec<_>>(), [export.id]);
    });
}

#[test]
fn a_pool_that_hangs_is_given_up_by_force() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let deadlines = Deadlines { idle: Duration::from_millis(200), last: LONG, ..Deadlines::default() };
        let daemon = two_pools(dir.path(), deadlines).await;
        let (mut client, unexporting) = hang(&daemon, dir.path()).await;
        let refused = timeout(Duration::from_millis(1), daemon.export_pool("hung", false)).await;
        assert!(refused.is_err(), "without force it waits for its turn");
        let exported = daemon.export_pool("hung", true).await.expect("given up");
        assert!(!exported.clean && !exported.in_use, "{exported:?}");
        assert_eq!(exported.disconnected.len(), 1, "{exported:?}");
        let ended = unexporting.await.expect("ended").expect_err("it was not ended in good order");
        assert_eq!(ended.kind, ErrorKind::Unavailable, "{ended}");
        assert!(client.reply().is_err(), "disconnected");
        assert_eq!(daemon.pools().await.len(), 1);
        assert!(daemon.registry().known.iter().any(|known| known.name == "hung"), "remembered for the next import");
        // the second export with force succeeds; one without force does not
        assert!(!daemon.export_pool("hung", true).await.expect("done").in_use);
        assert_eq!(daemon.export_pool("hung", false).await.expect_err("gone").kind, ErrorKind::NotFound);
    });
}

#[test]
fn clients_are_named_in_a_refusal_and_disconnected_by_force() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = two_pools(dir.path(), Deadlines::default()).await;
        let socket = dir.path().join("good.sock");
        let export = daemon.create_export(&export_of("good/disk", &socket), true).await.expect("export");
        let mut client = tokio::task::spawn_blocking(move || Client::unix(&socket)).await.expect("client");
        let who = format!("export {} (good/disk): unix:pid={}", export.id, std::process::id());
        let refused = daemon.export_pool("good", false).await.expect_err("a client").message;
        assert!(refused.contains(&who) && refused.contains("millpond pool export good --force"), "{refused}");
        let exported = daemon.export_pool("good", true).await.expect("exported");
        assert_eq!(exported, PoolExport { name: "good".to_owned(), clean: true, reason: None, disconnected: vec![who], in_use: false });
        assert!(client.reply().is_err(), "disconnected");
    });
}

#[test]
fn the_daemon_ends_although_a_pool_does_not_and_closes_the_others() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        // the default limits and no shorter ones: the device of the other pool may be busy
        let daemon = two_pools(dir.path(), Deadlines::default()).await;
        let failed = daemon.close().await.expect_err("one was not closed").to_string();
        assert!(failed.contains("pool 'hung'") && !failed.contains("pool 'good'"), "{failed}");
        daemon.registry().pools.clear();
        let search = vec![dir.path().display().to_string()];
        let import = ImportPool { name: Some("good".to_owned()), search, ..ImportPool::default() };
        daemon.import_pool(import).await.expect("import");
        assert_eq!(daemon.pool("good").await.expect("good").io.replayed_batches, 0, "it was closed");
    });
}

#[test]
fn what_is_being_destroyed_is_not_exported_meanwhile() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = two_pools(dir.path(), Deadlines::default()).await;
        let volume = daemon.volume(&"good/disk".parse().expect("name")).await.expect("volume");
        // an export that is being made has the lock, and is not in the registry yet
        let lock = daemon.wait_for_pool("good").await;
        let destroying = tokio::spawn({
            let daemon = Arc::clone(&daemon);
            async move { daemon.destroy(&destroy("good/disk")).await }
        });
        for _ in 0..100 {
            assert_eq!(daemon.volumes(Some("good")).await.expect("volumes").len(), 1, "destroyed while it is being exported");
        }
        let export = daemon.reserve_export();
        let protocol = crate::state::Protocol::Nbd {
            access: millpond_api::Access::default(),
            served: Target::Head(millpond_engine::VolumeId(volume.id)).into(),
            unix: None,
            tcp: None,
            tls: None,
            limits: millpond_api::NbdLimits::default(),
        };
        let record = crate::state::ExportRecord { id: export.id, pool: "good".to_owned(), name: volume.name, readonly: false, protocol };
        let entry = crate::service::ExportEntry::new(record, false);
        daemon.registry().exports.insert(export.id, entry);
        drop(lock);
        let refused = destroying.await.expect("ended").expect_err("it is exported");
        assert!(refused.message.contains("is exported"), "{refused}");
    });
}

#[test]
fn devices_and_addresses_are_reserved_while_a_command_is_under_way() {
    let dir = tempfile::tempdir().expect("directory");
    run(async {
        let daemon = two_pools(dir.path(), Deadlines::default()).await;
        let (socket, device) = (dir.path().join("s"), dir.path().join("new.img").display().to_string());
        let address = Some("127.0.0.1:10809".parse().expect("address"));
        let first = daemon.reserve_export();
        daemon.reserve_addresses(first.id, Some(&socket), address).expect("free");
        let second = daemon.reserve_export();
        assert_ne!(first.id, second.id);
        for (unix, tcp) in [(Some(socket.as_path()), None), (None, address)] {
            assert_eq!(daemon.reserve_addresses(second.id, unix, tcp).expect_err("taken").kind, ErrorKind::Exists);
        }
        drop(first);
        daemon.reserve_addresses(second.id, Some(&socket), address).expect("free again");
        let taken = daemon.reserve_devices([device.as_str()].into_iter()).expect("free");
        assert_eq!(daemon.reserve_devices([device.as_str()].into_iter()).err().expect("taken").kind, ErrorKind::Busy);
        drop(taken);
        assert!(daemon.reserve_devices([device.as_str()].into_iter()).is_ok());
    });
}

#[test]
fn devices_that_were_given_up_are_those_that_were_up_to_date_before() {
    let labels = |generation: u64, current: &[u16]| LabelsInForce {
        generation,
        current: current.iter().map(|member| (MemberId(*member), DeviceId(u64::from(*member) + 100))).collect(),
        left_behind: false,
    };
    let lost = |before: &[u16], after: &[u16]| {
        let before = InForce::of(&labels(3, before), None);
        given_up(&before, &labels(4, after)).map(|member| member.0).collect::<Vec<u16>>()
    };
    assert_eq!(lost(&[0, 1, 2], &[0, 1, 2]), Vec::<u16>::new());
    assert_eq!(lost(&[0, 1, 2], &[1]), [0, 2]);
    assert_eq!(lost(&[1], &[0, 1]), Vec::<u16>::new());
}
