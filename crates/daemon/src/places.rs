//! Places of the data of a volume or snapshot.

use millpond_api::names::Name;
use millpond_api::{ApiError, Extent, Place};
use millpond_engine::{ExtentPlace, QueryCommand, Reply, SegmentPlace};

use super::service::Daemon;
use super::view::class_word;

impl Daemon {
    /// Returns the segments that hold the data of a volume or snapshot, by number. Concurrent
    /// writes may be included or not.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, or a map node cannot be read.
    pub async fn places(&self, name: &Name) -> Result<Vec<Place>, ApiError> {
        let (shard, target) = self.find_target(name).await?;
        let found = shard.command(QueryCommand::Places { target }).await;
        let found = found.map_err(|e| ApiError::from(e).during(format!("cannot find out where '{name}' is")))?;
        let Reply::Places(segments) = found else { return Err(ApiError::internal("the pool answered something else")) };
        let status = shard.status().await?;
        let names = self.device_names(name.pool(), &status);
        let extent = |extent: ExtentPlace| Extent {
            device: names.member(extent.member),
            offset: extent.range.offset,
            length: extent.range.length,
            live_bytes: extent.live_bytes,
        };
        let place = |place: SegmentPlace| Place {
            segment: place.segment,
            class: class_word(place.class),
            live_bytes: place.live_bytes,
            extents: place.extents.into_iter().map(extent).collect(),
        };
        Ok(segments.into_iter().map(place).collect())
    }
}
