//! Wear of the disks of pools, as they report it themselves: looked at every hour.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millpond_api::{ConditionKind, Pool, Severity};
use tokio::time::sleep;

use super::conditions::Found;
use super::doctor::{self, Health};
use super::service::Daemon;

/// Time from the start to the first look: pools are in service then.
const FIRST: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(3600);
/// How long a look at one disk may take.
const PATIENCE: Duration = Duration::from_secs(25);

impl Daemon {
    /// Looks at the disks of all pools, as long as the daemon lives.
    pub(super) async fn watch_wear(self: Arc<Daemon>) {
        sleep(FIRST).await;
        loop {
            let looks = self.look().await;
            let pools = self.list_pools(&looks);
            let mut found = Vec::new();
            for pool in &pools {
                for device in &pool.devices {
                    // a call of its own for each disk: opening the device does not wait for it
                    let (key, path) = (PathBuf::from(format!("smart:{}", device.path)), PathBuf::from(&device.path));
                    let health = self.calls.call(&key, PATIENCE, move |_: &Path| doctor::wear_of(&path)).await;
                    if let Ok(Health::Bad { failing, facts }) = health {
                        found.push(worn(pool, device.key(), &device.path, failing, &facts));
                    }
                }
            }
            self.conditions.set_wear(found);
            sleep(LOOK).await;
        }
    }
}

fn worn(pool: &Pool, key: &str, path: &str, failing: bool, facts: &str) -> Found {
    let name = &pool.name;
    let cause = format!("pool {name}: the disk of device {path} reports: {facts}");
    let remedy = format!("'millpond pool replace {name} {path} NEW' fills a new one");
    Found {
        pool: Some(name.clone()),
        owner: pool.id.clone(),
        key: key.to_owned(),
        device: Some(path.to_owned()),
        severity: if failing { Severity::Error } else { Severity::Warning },
        ..Found::new(ConditionKind::DeviceWear, path, cause, &remedy)
    }
}
