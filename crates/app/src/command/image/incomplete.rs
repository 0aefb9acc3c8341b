//! A volume that an import fills: it has another name until it is complete.

use std::time::{Duration, Instant};

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{MAX_NAME, VolumeName};
use millpond_api::{CreateVolume, Destroy, Destroyed, Rename, Resize, Resized, SetProperties, Volume, VolumeSector};

/// Start of the name of a volume whose import is not complete.
const INCOMPLETE: &str = "importing-";
/// How long a rerun waits for the clients of a killed import to leave.
const LEAVING: Duration = Duration::from_secs(30);
/// Time between two attempts.
const LOOK: Duration = Duration::from_millis(250);

/// A volume that is made by an import.
pub struct Incomplete<'a> {
    /// Name once it is complete.
    pub name: &'a VolumeName,
    /// Name until then.
    pub part: VolumeName,
}

impl Incomplete<'_> {
    /// Chooses the name until it is complete. Makes nothing yet.
    pub fn new(name: &VolumeName) -> Incomplete<'_> {
        let part = VolumeName { pool: name.pool.clone(), volume: incomplete(&name.volume) };
        Incomplete { name, part }
    }

    /// Checks that there are volumes of neither name in the pool; with `restart` there may be an
    /// incomplete one. Returns true if there is.
    ///
    /// # Errors
    /// Wrong usage, that there is such a volume, or the daemon's error.
    pub async fn check(&self, client: &Client, restart: bool) -> Outcome<bool> {
        let (name, part) = (self.name, &self.part);
        let during = format!("cannot fill '{name}'");
        if name.volume.starts_with(INCOMPLETE) {
            return Err(Failure::usage(format!("{during}: '{INCOMPLETE}' begins the names of incomplete volumes; choose another name")));
        }
        let volumes: Vec<Volume> = client.get(&format!("/v1/volumes?pool={}", quoted(&name.pool))).await?;
        let taken = |name: &VolumeName| volumes.iter().any(|volume| volume.name == name.to_string());
        if taken(name) {
            return Err(Failure::failed(format!("{during}: it exists already; choose another name")));
        }
        if taken(part) && !restart {
            let next = "if the command that made it was killed, add --restart, which destroys it";
            return Err(Failure::failed(format!("{during}: there is an incomplete volume '{part}'; {next}")));
        }
        Ok(taken(part))
    }

    /// Does the same, and destroys the incomplete one.
    ///
    /// # Errors
    /// Those of [`check`](Incomplete::check).
    pub async fn free(&self, client: &Client, restart: bool) -> Outcome {
        let part = &self.part;
        if !self.check(client, restart).await? {
            return Ok(());
        }
        // refused while a client is connected: that is an import which runs, or requests of a killed
        // one that the volume's limits delay
        let request = Destroy { name: part.to_string(), recursive: true, unexport: true, ..Destroy::default() };
        let end = Instant::now() + LEAVING;
        loop {
            match client.post::<_, Destroyed>("/v1/destroy", &request).await {
                Err(_) if Instant::now() < end => tokio::time::sleep(LOOK).await,
                done => return done.map(drop),
            }
        }
    }

    /// Makes the volume under its first name.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn create(&self, client: &Client, size: u64, sector: VolumeSector, properties: SetProperties) -> Outcome {
        let request = CreateVolume { name: self.part.to_string(), size, sector: Some(sector), properties };
        client.post::<_, Volume>("/v1/volumes", &request).await.map(drop)
    }

    /// Sets the size in bytes, also to a smaller one.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn resize(&self, client: &Client, size: u64) -> Outcome {
        resize(client, &self.part, size).await
    }

    /// Gives the volume its property `readonly`, then its name. This is the last step: a volume of
    /// this name is complete.
    ///
    /// # Errors
    /// The daemon's error.
    pub async fn complete(&self, client: &Client, read_only: Option<bool>) -> Outcome {
        let part = &self.part;
        if read_only.is_some() {
            let properties = SetProperties { readonly: read_only, ..SetProperties::default() };
            client.patch::<_, Volume>(&format!("/v1/volumes/{part}"), &properties).await?;
        }
        client.post::<_, ()>(&format!("/v1/volumes/{part}/rename"), &Rename { name: self.name.to_string(), ..Rename::default() }).await
    }

    /// Destroys the volume after a failure, which is returned.
    pub async fn remove(&self, client: &Client, failure: Failure) -> Failure {
        let request = Destroy { name: self.part.to_string(), recursive: true, ..Destroy::default() };
        match client.post::<_, Destroyed>("/v1/destroy", &request).await {
            Ok(_) => failure,
            Err(left) => Failure::failed(format!("{failure}; the incomplete volume '{}' may be left: {left}", self.part)),
        }
    }
}

/// Sets the size of an incomplete volume in bytes. It keeps no snapshot when it shrinks.
///
/// # Errors
/// The daemon's error.
pub async fn resize(client: &Client, part: &VolumeName, size: u64) -> Outcome {
    let request = Resize {
        size: size.to_string(),
        allow_shrink: true,
        no_snapshot: true,
        force: false,
        reconnect: false,
        dry_run: false,
        export: None,
    };
    client.post::<_, Resized>(&format!("/v1/volumes/{part}/resize"), &request).await.map(drop)
}

/// Returns the name under which a volume is imported: not that of a disk of Proxmox VE, which would
/// offer it to its guest.
fn incomplete(volume: &str) -> String {
    let mut name = format!("{INCOMPLETE}{volume}");
    name.truncate(MAX_NAME); // names are ASCII
    name
}
