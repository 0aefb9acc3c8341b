use std::path::Path;
use std::time::Duration;

use millpond_api::{ClassSpec, CreatePool, DeviceGroup, DeviceSpec, EventKind, EventSeverity, ImportPool, IoMode, LayoutSpec, PoolHealth};

use super::*;
use crate::events::From;
use crate::{Options, StateDir};

const MIB: u64 = 1 << 20;

fn daemon(dir: &Path) -> Daemon {
    let options = Options { socket: dir.join("control"), ..Options::default() };
    Daemon::new(options, StateDir::open(&dir.join("state")).expect("state")).expect("daemon")
}

async fn make(daemon: &Daemon, dir: &Path, name: &str) {
    let device = DeviceSpec { path: dir.join(name).display().to_string(), create: Some(64 * MIB) };
    let groups = vec![DeviceGroup { class: ClassSpec::Data, layout: LayoutSpec::Linear, devices: vec![device] }];
    let request =
        CreatePool { name: name.to_owned(), groups, io: IoMode::default(), force: false, without_features: false, dry_run: false };
    daemon.create_pool(request).await.expect("pool");
}

#[tokio::test]
async fn a_defect_in_one_pool_stops_that_pool_and_says_so() {
    let dir = tempfile::tempdir().expect("directory");
    let daemon = daemon(dir.path());
    make(&daemon, dir.path(), "one").await;
    make(&daemon, dir.path(), "two").await;
    let mut events = daemon.listen_from(From::Now).1;
    let shard = daemon.shard("one").expect("shard");
    shard.panic();
    while shard.fallen().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    daemon.look_for_falls().await;
    let why = "a defect in the program stopped the pool (as a test asked)";
    let pool = daemon.pool("one").await.expect("listed");
    assert_eq!(pool.health, PoolHealth::Unavailable);
    assert!(pool.reason.expect("reason").starts_with(why));
    assert!(daemon.shard("one").err().is_some_and(|error| error.message.contains(why)));
    let event = events.try_recv().expect("event");
    assert_eq!(event.event, EventKind::PoolFaulted);
    assert_eq!((event.severity, event.pool.as_deref()), (EventSeverity::Error, Some("one")));
    assert!(event.message.starts_with(&format!("pool 'one' is stopped: {why}")), "{}", event.message);
    assert_eq!(daemon.pool("two").await.expect("listed").health, PoolHealth::Online, "other pools go on");
    let request = ImportPool { name: Some("one".to_owned()), search: vec![dir.path().display().to_string()], ..ImportPool::default() };
    daemon.import_pool(request).await.expect("import");
    assert_eq!(daemon.pool("one").await.expect("listed").health, PoolHealth::Online);
    daemon.look_for_falls().await;
    assert!(daemon.shard("one").is_ok());
    daemon.close().await.expect("close");
}
