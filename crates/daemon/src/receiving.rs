//! Volumes with an incomplete receive: their present state is of no instant, so nothing may be made
//! of it. The receive itself is a client of the API; its snapshots have reserved names.

use millpond_api::identity::{
    INTERRUPTED, RECEIVED_UNVERIFIED, RECEIVING, RECEIVING_NEXT, RECEIVING_VERIFIED, RECEIVING_VOLUME, RESERVED, SnapshotOrigin,
    is_reserved,
};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::{ApiError, CreateSnapshots};
use millpond_engine::{SnapshotInfo, Target, VolumeId, VolumeInfo};

use super::shard::{ShardError, ShardHandle};

pub(super) mod incomplete;
mod step;

/// True for a snapshot of an incomplete receive. Another one of such a name is its user's.
pub(super) fn has_mark(snapshot: &SnapshotInfo) -> bool {
    RESERVED.contains(&snapshot.name.as_str()) && SnapshotOrigin::split(&snapshot.description).1.is_some()
}

/// True for a snapshot that is of no instant, so that it stands for no snapshot of another pool.
pub(super) fn is_incomplete(snapshot: &SnapshotInfo) -> bool {
    has_mark(snapshot) || snapshot.name.starts_with(INTERRUPTED)
}

/// Checks the names of a request to take snapshots, and returns it with the description that the
/// pool stores.
///
/// # Errors
/// A reserved name without an origin, an origin without its name, or a description that reads as an
/// origin.
pub(super) fn with_origin(request: CreateSnapshots, names: &[SnapshotName]) -> Result<CreateSnapshots, ApiError> {
    let Some(origin) = &request.origin else {
        if let Some(name) = names.iter().find(|name| is_reserved(&name.snapshot)) {
            return Err(ApiError::invalid(reserved(&name.snapshot)));
        }
        if SnapshotOrigin::split(&request.description).1.is_some() {
            return Err(ApiError::invalid("the last line of the description reads as the mark of a received snapshot; change it"));
        }
        return Ok(request);
    };
    let names: Vec<&str> = names.iter().map(|name| name.snapshot.as_str()).collect();
    let right = match origin.position {
        Some(_) => matches!(names.as_slice(), [RECEIVING_NEXT]),
        None => matches!(names.as_slice(), [RECEIVED_UNVERIFIED]),
    };
    if !right {
        let message = format!("a snapshot with an origin is named '{RECEIVING_NEXT}' when it has a position, else '{RECEIVED_UNVERIFIED}'");
        return Err(ApiError::invalid(message));
    }
    let description = origin.stored(&request.description);
    Ok(CreateSnapshots { description, ..request })
}

/// Checks the rename of a snapshot: only a receive renames its own, and no other snapshot gets one
/// of their names.
///
/// # Errors
/// When it is not allowed.
pub(super) fn check_rename(snapshot: &SnapshotInfo, to: &SnapshotName, by_receive: bool) -> Result<(), ApiError> {
    if by_receive {
        return Ok(());
    }
    match is_reserved(&to.snapshot) {
        true => Err(ApiError::invalid(reserved(&to.snapshot))),
        false if is_incomplete(snapshot) => Err(ApiError::invalid(reserved(&snapshot.name))),
        false => Ok(()),
    }
}

fn reserved(name: &str) -> String {
    format!("the snapshot name '{name}' is reserved for incomplete receives; choose another name")
}

/// Refuses to use a snapshot of an incomplete receive.
///
/// # Errors
/// When it is one.
pub(super) fn refuse_incomplete(snapshot: &SnapshotInfo) -> Result<(), ApiError> {
    if has_mark(snapshot) {
        return Err(ApiError::busy("it is part of an incomplete receive, so its content is of no instant; use a complete snapshot"));
    }
    Ok(())
}

/// True if a receive into the volume is incomplete.
///
/// # Errors
/// When the pool does not answer.
pub(super) async fn is_receiving(shard: &ShardHandle, volume: VolumeId) -> Result<bool, ShardError> {
    // while data comes, one of the two is there at every instant
    Ok(shard.find_snapshots(volume, &[RECEIVING, RECEIVING_VERIFIED]).await?.iter().any(has_mark))
}

/// Refuses to use the present state of a volume while a receive into it is incomplete.
///
/// # Errors
/// When one is, or the pool does not answer.
pub(super) async fn refuse(shard: &ShardHandle, name: &VolumeName, volume: VolumeId) -> Result<(), ApiError> {
    if is_receiving(shard, volume).await? {
        let of = name.volume.strip_prefix(RECEIVING_VOLUME).unwrap_or(&name.volume);
        let message = format!(
            "a receive into it is incomplete, so its present state is of no instant; finish it, or 'millpond receive {}/{of} --abandon' \
             gives it up",
            name.pool
        );
        return Err(ApiError::busy(message));
    }
    Ok(())
}

/// As [`refuse`], for the target of a name.
///
/// # Errors
/// Those of [`refuse`] and [`refuse_incomplete`].
pub(super) async fn refuse_head(shard: &ShardHandle, name: &Name, target: Target) -> Result<(), ApiError> {
    match (name, target) {
        (Name::Volume(name), Target::Head(volume)) => refuse(shard, name, volume).await,
        (Name::Snapshot(name), Target::Snapshot(id)) if is_reserved(&name.snapshot) => {
            let listed = shard.snapshots().await?;
            listed.iter().find(|snapshot| snapshot.id == id).map_or(Ok(()), refuse_incomplete)
        }
        _ => Ok(()),
    }
}

/// Returns the refusal to destroy a snapshot that shows that a receive is incomplete: without it, the
/// present state of its volume would look like any other.
pub(super) fn mark_stays(name: &str) -> ApiError {
    let of = name.split_once('@').map_or(name, |(of, _)| of).replacen(&format!("/{RECEIVING_VOLUME}"), "/", 1);
    ApiError::busy(format!("'{name}' shows that a receive is incomplete; 'millpond receive {of} --abandon' gives that up"))
}

/// Refuses to promote a clone while a receive into the volume of its origin is incomplete: the mark
/// of that would move to the clone.
///
/// # Errors
/// When one is.
pub(super) fn refuse_promotion(volume: &VolumeInfo, volumes: &[VolumeInfo], snapshots: &[SnapshotInfo]) -> Result<(), ApiError> {
    let origin = volume.origin.as_deref().and_then(|origin| origin.split_once('@')).map(|(origin, _)| origin);
    let origin = volumes.iter().find(|of| Some(of.name.as_str()) == origin);
    match origin.filter(|origin| snapshots.iter().any(|snapshot| snapshot.volume == origin.id && has_mark(snapshot))) {
        Some(origin) => {
            Err(ApiError::busy(format!("a receive into '{}', its origin, is incomplete; finish it, or give it up", origin.name)))
        }
        None => Ok(()),
    }
}
