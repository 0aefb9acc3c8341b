//! `show -m`: shows on which devices and segments the data of a volume or snapshot is stored.

use millpond_api::client::{Client, quoted};
use millpond_api::failure::Outcome;
use millpond_api::names::Name;
use millpond_api::size::Size;
use millpond_api::{DeviceClass, Extent, Place};
use serde::Serialize;

use crate::output::{Cell, Column, Listing, Shown, print};

/// Data of the volume or snapshot on one device.
#[derive(Serialize)]
struct Share {
    device: String,
    class: DeviceClass,
    extents: u64,
    extent_bytes: u64,
    live_bytes: u64,
}

const SHARE: &[Column<Share>] = &[
    Column { name: "device", cell: |s| Cell::Text(s.device.clone()), shown: Shown::Always },
    Column { name: "class", cell: |s| Cell::Text(s.class.to_string()), shown: Shown::Always },
    Column { name: "extents", cell: |s| Cell::Count(s.extents), shown: Shown::Always },
    Column { name: "extent_bytes", cell: |s| Cell::Bytes(s.extent_bytes), shown: Shown::Always },
    Column { name: "live_bytes", cell: |s| Cell::Bytes(s.live_bytes), shown: Shown::Always },
];

const PLACE: &[Column<Place>] = &[
    Column { name: "segment", cell: |p| Cell::Count(u64::from(p.segment)), shown: Shown::Always },
    Column { name: "class", cell: |p| Cell::Text(p.class.to_string()), shown: Shown::Always },
    Column { name: "live_bytes", cell: |p| Cell::Bytes(p.live_bytes), shown: Shown::Always },
    Column { name: "extents", cell: |p| Cell::Text(extents(&p.extents)), shown: Shown::Always },
];

/// Formats extents as device, offset and length.
fn extents(extents: &[Extent]) -> String {
    let one = |extent: &Extent| format!("{}:{}+{}", extent.device, Size(extent.offset), Size(extent.length));
    extents.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Prints the places by device or, if `verbose`, by segment.
///
/// # Errors
/// When the volume or snapshot does not exist, or the daemon does not answer.
pub async fn show(client: &Client, name: &Name, verbose: bool, how: &Listing) -> Outcome {
    let places: Vec<Place> = client.get(&format!("/v1/places?name={}", quoted(&name.to_string()))).await?;
    if verbose {
        return print(&places, PLACE, how);
    }
    print(&shares(&places), SHARE, how)
}

fn shares(places: &[Place]) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for (class, extent) in places.iter().flat_map(|place| place.extents.iter().map(|extent| (&place.class, extent))) {
        let known = shares.iter_mut().find(|share| share.device == extent.device && share.class == *class);
        match known {
            Some(share) => {
                share.extents += 1;
                share.extent_bytes += extent.length;
                share.live_bytes += extent.live_bytes;
            }
            None => shares.push(Share {
                device: extent.device.clone(),
                class: class.clone(),
                extents: 1,
                extent_bytes: extent.length,
                live_bytes: extent.live_bytes,
            }),
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_sums_by_device() {
        let extent = |device: &str, live_bytes| Extent { device: device.to_owned(), offset: 0, length: 100, live_bytes };
        let place = |segment, extents| Place { segment, class: DeviceClass::Data, live_bytes: 0, extents };
        let places = [place(1, vec![extent("a", 5), extent("b", 6)]), place(2, vec![extent("b", 7)])];
        let counted: Vec<_> = shares(&places).into_iter().map(|s| (s.device, s.extents, s.extent_bytes, s.live_bytes)).collect();
        assert_eq!(counted, [("a".to_owned(), 1, 100, 5), ("b".to_owned(), 2, 200, 13)]);
    }
}
