//! Advice about special devices, from a census of what is stored.

use millpond_api::size::Size;
use millpond_api::{ApiError, SmallBytes, SpecialAdvice, SpecialThreshold, VolumeSmall};
use millpond_engine::{QueryCommand, Reply, VolumeCensus, VolumeInfo, WRITE_SIZES, WriteSizes};

use super::service::Daemon;

#[cfg(test)]
mod tests;

/// Part of the space for small writes that may be filled, in eighths; the cleaner needs the rest.
const FILLED: u64 = 7;
/// Space kept for nodes and objects, as a multiple of their live bytes: new ones are written before
/// old ones can be freed.
const NODE_FACTOR: u64 = 2;

/// Space on special devices: for small writes, and for nodes and objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    small: u64,
    nodes: u64,
}

impl Room {
    /// Space of special devices of `bytes` usable bytes that come together with data devices: half
    /// of it is for nodes and objects.
    fn of(bytes: u64) -> Room {
        Room { small: bytes / 2 / 8 * FILLED, nodes: bytes / 2 }
    }

    /// Space of the special devices that the pool has. Where no stripes are for nodes alone, a
    /// quarter is left to nodes.
    fn there(census: &WriteSizes) -> Room {
        match census.special_nodes {
            0 => Room { small: census.special / 4 * 3 / 8 * FILLED, nodes: census.special / 4 },
            nodes => Room { small: census.special / 8 * FILLED, nodes },
        }
    }

    /// Returns the usable bytes of special devices that have room for `small` bytes of small writes
    /// and `nodes` bytes of nodes and objects.
    fn needed(small: u64, nodes: u64) -> u64 {
        2 * (small * 8).div_ceil(FILLED).max(nodes * NODE_FACTOR)
    }
}

impl Daemon {
    /// Reports the small writes that special devices would hold: those of the pool, or devices of
    /// `size` usable bytes. Reads all map nodes. Data that changes meanwhile counts in its old or
    /// its new state.
    ///
    /// # Errors
    /// When there is no such pool, or a map node cannot be read.
    pub async fn advise_special(&self, pool: &str, size: Option<u64>) -> Result<SpecialAdvice, ApiError> {
        let shard = self.shard(pool)?;
        let during = format!("cannot examine the data of pool '{pool}'");
        let reply = shard.command(QueryCommand::WriteSizes).await.map_err(|e| ApiError::from(e).during(&during))?;
        let Reply::WriteSizes(census) = reply else { return Err(ApiError::internal("the pool answered something else")) };
        Ok(advice(pool, &census, &shard.volumes().await?, size))
    }
}

fn advice(pool: &str, census: &WriteSizes, volumes: &[VolumeInfo], size: Option<u64>) -> SpecialAdvice {
    let there = census.special + census.special_nodes;
    let special = size.or(Some(there).filter(|bytes| *bytes > 0));
    let room = special.map(|_| size.map_or_else(|| Room::there(census), Room::of));
    let sum = |at: usize| census.volumes.iter().map(|volume| up_to(volume, at)).sum::<u64>();
    let data = sum(WRITE_SIZES.len());
    let nodes = census.nodes + census.objects;
    let threshold = |(at, bytes): (usize, &u64)| {
        let small = sum(at);
        SpecialThreshold {
            special_small_blocks: *bytes,
            small_bytes: small,
            share: share(small, data),
            total_bytes: small + nodes,
            needed_bytes: Room::needed(small, nodes),
            full_percent: room.map(|room| (small * 100).div_ceil(room.small.max(1))),
            fits: room.map(|room| small <= room.small),
        }
    };
    let thresholds: Vec<SpecialThreshold> = WRITE_SIZES.iter().enumerate().map(threshold).collect();
    let largest = thresholds.iter().rfind(|row| row.fits == Some(true)).map(|row| row.special_small_blocks);
    let mut rows: Vec<VolumeSmall> = volumes.iter().map(|volume| row(pool, census, volume)).collect();
    rows.extend(census.volumes.iter().filter(|of| volumes.iter().all(|volume| volume.id != of.volume)).map(|of| held("-", 0, of)));
    let mut advised = SpecialAdvice {
        pool: pool.to_owned(),
        special_bytes: special,
        assumed: size.is_some(),
        data_bytes: data,
        node_bytes: census.nodes,
        object_bytes: census.objects,
        thresholds,
        largest_fitting: largest,
        volumes: rows,
        advice: String::new(),
    };
    advised.advice = words(&advised, room);
    advised
}

/// Returns the bytes that came with writes of the first sizes, up to the one at index `at`; all
/// bytes when `at` is past the last size.
fn up_to(volume: &VolumeCensus, at: usize) -> u64 {
    volume.sizes.iter().take(at + 1).sum()
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { (part as f64 / of as f64 * 1e4).round() / 1e4 }
}

fn row(pool: &str, census: &WriteSizes, volume: &VolumeInfo) -> VolumeSmall {
    let empty = VolumeCensus { volume: volume.id, sizes: Default::default(), special: 0 };
    let of = census.volumes.iter().find(|of| of.volume == volume.id).unwrap_or(&empty);
    held(&format!("{pool}/{}", volume.name), u64::from(volume.options.special_small_blocks), of)
}

fn held(name: &str, special_small_blocks: u64, of: &VolumeCensus) -> VolumeSmall {
    let data_bytes = up_to(of, WRITE_SIZES.len());
    let small = |(at, size): (usize, &u64)| {
        let bytes = up_to(of, at);
        SmallBytes { special_small_blocks: *size, bytes, share: share(bytes, data_bytes) }
    };
    let small = WRITE_SIZES.iter().enumerate().map(small).collect();
    VolumeSmall { name: name.to_owned(), special_small_blocks, data_bytes, special_bytes: of.special, small }
}

/// Returns the advice as one line.
fn words(advised: &SpecialAdvice, room: Option<Room>) -> String {
    let (Some(least), Some(most)) = (advised.thresholds.first(), advised.thresholds.last()) else { return String::new() };
    if advised.data_bytes == 0 {
        return "nothing is stored yet, so no advice is possible".to_owned();
    }
    let (Some(bytes), Some(room)) = (advised.special_bytes, room) else {
        return format!(
            "special devices of {} hold small writes of up to {}, those of {} writes of up to {}; map nodes and checkpoints alone need {}",
            Size(least.needed_bytes),
            Size(least.special_small_blocks),
            Size(most.needed_bytes),
            Size(most.special_small_blocks),
            Size(Room::needed(0, advised.node_bytes + advised.object_bytes))
        );
    };
    let nodes = (advised.node_bytes + advised.object_bytes) * NODE_FACTOR;
    let over = if nodes > room.nodes { "; not all map nodes fit, the rest stays on devices for data" } else { "" };
    match advised.thresholds.iter().rfind(|row| row.fits == Some(true)) {
        None => format!(
            "not even writes of up to {} fit into special devices of {}: they need {}{over}",
            Size(least.special_small_blocks),
            Size(bytes),
            Size(least.needed_bytes)
        ),
        Some(best) => format!(
            "special_small_blocks={} is the largest value that fits into special devices of {}: their space for small writes would be {} % full{over}",
            Size(best.special_small_blocks),
            Size(bytes),
            best.full_percent.unwrap_or(0)
        ),
    }
}
