//! Holds: they keep snapshots from being destroyed. Making, releasing and showing them.

use millpond_api::instant;
use millpond_api::names::SnapshotName;
use millpond_api::{ApiError, EventKind, Hold, Snapshot, SnapshotHold};
use millpond_engine::{CatalogCommand, Command, HoldInfo, LOCK_TAG, SnapshotInfo, Time};

use super::service::Daemon;

impl Daemon {
    /// Adds a hold. Durable on return.
    ///
    /// # Errors
    /// When the snapshot is held with that tag already, or the engine refuses.
    pub async fn hold(&self, name: &SnapshotName, request: &Hold) -> Result<Snapshot, ApiError> {
        let until = request.until.map(|time| Time(instant::to_millis(time)));
        let (shard, _, snapshot) = self.find_snapshot(name).await?;
        let during = format!("cannot hold '{name}'");
        if request.tag.as_deref() == Some(LOCK_TAG) {
            let why = "the tag 'lock' is reserved for 'millpond snapshot --lock'; choose another";
            return Err(ApiError::invalid(why).during(during));
        }
        if let Some(over) = request.until.filter(|time| *time <= instant::now()) {
            return Err(ApiError::invalid(format!("{over} is in the past; give a future time")).during(during));
        }
        let command = Command::Catalog(CatalogCommand::Hold { snapshot: snapshot.id, tag: request.tag.clone(), until, locked: false });
        shard.command(command).await.map_err(|e| ApiError::from(e).during(during))?;
        self.tell(EventKind::SnapshotHeld, name_with_tag(name, request.tag.as_deref()));
        self.snapshot(name).await
    }

    /// Releases one hold: the one with `tag`, or one without a tag. Durable on return.
    ///
    /// # Errors
    /// When there is no such hold, or it is a lock whose time is not over.
    pub async fn release(&self, name: &SnapshotName, tag: Option<String>, sent: bool) -> Result<Snapshot, ApiError> {
        let (shard, _, snapshot) = self.find_snapshot(name).await?;
        check_release(&snapshot, tag.as_deref()).map_err(|e| e.during(format!("cannot release '{name}'")))?;
        let subject = name_with_tag(name, tag.as_deref());
        let command = Command::Catalog(CatalogCommand::Release { snapshot: snapshot.id, tag });
        shard.command(command).await.map_err(|e| ApiError::from(e).during(format!("cannot release '{name}'")))?;
        self.tell(EventKind::SnapshotReleased, subject);
        if sent {
            self.tell(EventKind::SnapshotSent, name.to_string());
        }
        self.snapshot(name).await
    }
}

fn name_with_tag(name: &SnapshotName, tag: Option<&str>) -> String {
    tag.map_or_else(|| name.to_string(), |tag| format!("{name} tag {tag}"))
}

/// Refuses what the engine would refuse, with times and tags in the message.
fn check_release(snapshot: &SnapshotInfo, tag: Option<&str>) -> Result<(), ApiError> {
    let tags: Vec<&str> = snapshot.hold_list.iter().filter_map(|hold| hold.tag.as_deref()).collect();
    let found = snapshot.hold_list.iter().find(|hold| hold.tag.as_deref() == tag);
    match (found, tag) {
        (Some(hold), Some(tag)) if hold.locked => {
            let until = hold.until.map_or_else(|| "for ever".to_owned(), |until| format!("until {}", seconds(until)));
            Err(ApiError::busy(format!("tag '{tag}' is locked {until}, and cannot be released before")))
        }
        (Some(_), _) => Ok(()),
        (None, None) if tags.is_empty() => Err(ApiError::invalid("it has no hold; see 'millpond list -t snapshot'")),
        (None, None) => Err(ApiError::invalid(format!("it has no hold without a tag; give --tag with one of {}", tags.join(", ")))),
        (None, Some(tag)) if tags.is_empty() => Err(ApiError::invalid(format!("it has no hold with tag '{tag}', and none with another"))),
        (None, Some(tag)) => Err(ApiError::invalid(format!("it has no hold with tag '{tag}'; its tags are {}", tags.join(", ")))),
    }
}

/// Returns a time of the engine, to the second.
fn seconds(time: Time) -> String {
    instant::from_millis(time.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a hold as the API shows it.
pub(super) fn view(hold: &HoldInfo) -> SnapshotHold {
    let time = |time: Time| instant::from_millis(time.0);
    SnapshotHold { tag: hold.tag.clone(), since: hold.since.map(time), until: hold.until.map(time), locked: hold.locked }
}

/// Returns why a snapshot cannot be destroyed, and the commands that release its holds.
pub(super) fn describe(name: &str, holds: &[HoldInfo]) -> (String, Vec<String>) {
    let one = |hold: &HoldInfo| {
        let tag = hold.tag.as_ref().map_or_else(|| "no tag".to_owned(), |tag| format!("tag {tag}"));
        let locked = if hold.locked { ", locked" } else { "" };
        let until = hold.until.map(|until| format!(" until {}", seconds(until))).unwrap_or_default();
        format!("{tag}{locked}{until}")
    };
    let command = |hold: &HoldInfo| {
        let tag = hold.tag.as_ref().map(|tag| format!(" --tag {tag}")).unwrap_or_default();
        format!("millpond release {name}{tag}")
    };
    let all: Vec<String> = holds.iter().map(one).collect();
    (format!("'{name}' ({})", all.join("; ")), holds.iter().filter(|hold| !hold.locked).map(command).collect())
}
