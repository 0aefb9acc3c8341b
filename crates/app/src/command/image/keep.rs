//! Snapshots that a command takes by itself, named after its purpose and the time.

use millpond_api::client::{Client, quoted};
use millpond_api::failure::Outcome;
use millpond_api::instant;
use millpond_api::names::{SnapshotName, VolumeName};
use millpond_api::{CreateSnapshots, Created, Snapshot};
use millpond_images::names::fitting;

/// Takes a snapshot named `PURPOSE-TIME`, or with a number after that if there is one already.
///
/// # Errors
/// The daemon's error.
pub async fn keep(client: &Client, of: &VolumeName, purpose: &str, description: &str) -> Outcome<SnapshotName> {
    let stamp = format!("{purpose}-{}", instant::now().strftime("%Y%m%dT%H%M%SZ"));
    let there: Vec<Snapshot> = client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))).await?;
    let taken: Vec<String> = there.iter().filter_map(|snapshot| snapshot.name.split('@').nth(1).map(str::to_owned)).collect();
    let name = SnapshotName { of: of.clone(), snapshot: fitting(&stamp, &taken) };
    let request = CreateSnapshots { names: vec![name.to_string()], description: description.to_owned(), ..CreateSnapshots::default() };
    client.post::<_, Created>("/v1/snapshots", &request).await?;
    Ok(name)
}
