//! Pools and exports for tests.

use serde_json::json;

use crate::{DeviceIo, Export, GuestIo, Pool, PoolIo};

/// Returns a pool `tank` of 1000 bytes in service, with a data device for each path, state and
/// health in `devices`.
pub fn pool(health: &str, devices: &[(&str, &str, &str)]) -> Pool {
    let device = |(path, state, health): &(&str, &str, &str)| {
        json!({
            "path": path, "class": "data", "layout": "mirror", "state": state, "size": 0, "allocated": 0, "free": 0, "errors": 0,
            "sector": 512, "direct": true, "health": health, "health_reason": (*health != "ok").then(|| format!("why {health}")),
            "io": DeviceIo::default(),
        })
    };
    let pool = json!({
        "name": "tank", "id": "7", "health": health, "readonly": false, "layout": { "kind": "mirror", "copies": 2 }, "size": 1000,
        "allocated": 0, "free": 1000, "devices": devices.iter().map(device).collect::<Vec<_>>(), "io": PoolIo::default(), "clients": 0,
        "reason": (health != "online").then(|| format!("why {health}")), "imported": "2027-01-01T00:00:00Z", "scrub": null,
    });
    serde_json::from_value(pool).expect("a pool")
}

/// Returns export 1, of `tank/v`, in this state.
pub fn export(state: &str) -> Export {
    let export = json!({
        "id": 1, "kind": "nbd", "name": "tank/v", "address": "/s", "uris": [], "unix": "/s", "tcp": null, "readonly": false, "tls": null,
        "state": state, "reason": (state != "online").then_some("why not"), "clients": 0, "connections": [], "io": GuestIo::default(),
    });
    serde_json::from_value(export).expect("an export")
}
