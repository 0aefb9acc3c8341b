//! Snapshots that `backup create` takes: the newest of each volume stays, because the next backup
//! builds on it.

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{SnapshotName, VolumeName};
use millpond_api::{CreateSnapshots, Created, Destroy, Destroyed, Snapshot, instant};

/// Start of the tags of the holds of backups.
pub const HOLDS: &str = "backup";
/// Start of their names.
const PREFIX: &str = "backup-";

/// Start of the descriptions of all of them.
pub const DESCRIPTION: &str = "of 'millpond backup' to target";

/// Start of their descriptions, different for each target.
fn description(target: &str) -> String {
    format!("{DESCRIPTION} {target}")
}

/// Takes a snapshot of each volume; of those of one pool at one instant.
///
/// # Errors
/// The daemon's.
pub async fn take(client: &Client, volumes: &[VolumeName], target: &str, place: &str) -> Outcome<Vec<SnapshotName>> {
    let snapshot = instant::now().strftime(&format!("{PREFIX}%Y%m%dT%H%M%S%3fZ")).to_string();
    let mut taken: Vec<SnapshotName> = Vec::new();
    let mut pools: Vec<&str> = volumes.iter().map(|volume| volume.pool.as_str()).collect();
    pools.dedup();
    for pool in pools {
        let of_pool = volumes.iter().filter(|volume| volume.pool == pool);
        let names: Vec<SnapshotName> = of_pool.map(|of| SnapshotName { of: of.clone(), snapshot: snapshot.clone() }).collect();
        let request = CreateSnapshots {
            names: names.iter().map(ToString::to_string).collect(),
            group: true,
            description: format!("{} {place}", description(target)),
            ..CreateSnapshots::default()
        };
        if let Err(failure) = client.post::<_, Created>("/v1/snapshots", &request).await {
            for name in &taken {
                destroy(client, &ToString::to_string(name)).await;
            }
            return Err(failure);
        }
        taken.extend(names);
    }
    Ok(taken)
}

/// Destroys the snapshots of earlier backups of a volume to this target, also those of backups that were
/// killed. Those with other holds, that are exported, or have clones, stay.
pub async fn thin(client: &Client, newest: &SnapshotName, target: &str) {
    let of = &newest.of;
    let all: Outcome<Vec<Snapshot>> = client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))).await;
    // the next backup tries again
    let Ok(all) = all else { return };
    let end = all.iter().find(|snapshot| snapshot.name == newest.to_string()).map(|snapshot| (snapshot.epoch, snapshot.id));
    let older = all.iter().filter(|snapshot| {
        let own = snapshot.name.split_once('@').is_some_and(|(_, name)| name.starts_with(PREFIX));
        own && snapshot.description.starts_with(&description(target)) && end.is_some_and(|end| (snapshot.epoch, snapshot.id) < end)
    });
    for snapshot in older.filter(|snapshot| snapshot.clones == 0) {
        let own = |tag: &&String| tag.strip_prefix(HOLDS).is_some_and(|rest| rest.starts_with('-'));
        if snapshot.hold_tags.iter().filter(own).count() as u64 != u64::from(snapshot.holds) {
            continue;
        }
        for tag in snapshot.hold_tags.iter().filter(own) {
            let (of, name) = snapshot.name.split_once('@').unwrap_or_default();
            let path = format!("/v1/snapshots/{of}/{name}/release?tag={}", quoted(tag));
            // then it is not destroyed either
            let _ = client.post::<_, Snapshot>(&path, &()).await;
        }
        let request = Destroy { name: snapshot.name.clone(), ..Destroy::default() };
        // another backup reads it; the next one tries again
        let _ = client.post::<_, Destroyed>("/v1/destroy", &request).await;
    }
}

/// Destroys a snapshot; says so if that fails.
pub async fn destroy(client: &Client, name: &str) {
    let request = Destroy { name: name.to_owned(), ..Destroy::default() };
    if let Err(left) = client.post::<_, Destroyed>("/v1/destroy", &request).await {
        eprintln!("millpond: the snapshot '{name}' is left: {left}");
    }
}

/// Returns a snapshot and those before it of the volume, newest first.
///
/// # Errors
/// The daemon's, or that there is no such snapshot.
pub async fn before(client: &Client, name: &SnapshotName) -> Outcome<(Snapshot, Vec<Snapshot>)> {
    let of = &name.of;
    let mut all: Vec<Snapshot> = client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))).await?;
    all.sort_by_key(|snapshot| std::cmp::Reverse((snapshot.epoch, snapshot.id)));
    let own = all.iter().position(|snapshot| snapshot.name == name.to_string());
    let own = own.ok_or_else(|| Failure::failed(format!("no snapshot '{name}'; 'millpond list -t snapshot {of}' shows all")))?;
    let older = all.split_off(own + 1);
    let own = all.pop().ok_or_else(|| Failure::failed(format!("no snapshot '{name}'")))?;
    Ok((own, older))
}
