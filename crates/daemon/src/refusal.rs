//! Messages about pools that the daemon does not import by itself: the reason, and what to do.

use std::path::PathBuf;

use millpond_api::FoundState;
use millpond_api::size::Size;
use millpond_block::MemberId;
use millpond_engine::Refusal;
use millpond_format::FormatError;

use super::scan::newer;
use super::state::{InForce, PoolRecord};

#[cfg(test)]
mod tests;

/// Returns the state of a refused pool, for the list of pools that were found.
pub(super) fn state_of(refusal: &Refusal) -> FoundState {
    match refusal {
        Refusal::Apart => FoundState::Contradictory,
        Refusal::OtherProgram(_) => FoundState::Newer,
        Refusal::NothingFound | Refusal::OtherHost { .. } => FoundState::Incomplete,
        Refusal::Older { .. } | Refusal::NotCurrent { .. } => FoundState::Outdated,
    }
}

/// Returns the message for a refusal to import a pool. `sides` are its devices, by the history in
/// their labels; `foreign` are those with labels that this version does not know.
pub(super) fn describe(refusal: &Refusal, record: &PoolRecord, sides: &[Vec<PathBuf>], foreign: &[(PathBuf, FormatError)]) -> String {
    let by_hand = format!("'millpond pool import {} --degraded'", record.name);
    let since = |known: &InForce| format!(" since {}", known.since.strftime("%Y-%m-%dT%H:%M:%SZ"));
    let since = record.in_force.as_ref().map_or(String::new(), since);
    match refusal {
        Refusal::Apart => {
            let listed = |side: &Vec<PathBuf>| side.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            let listed = sides.iter().filter(|side| !side.is_empty()).map(listed).collect::<Vec<_>>().join(" against ");
            format!(
                "its devices contradict each other ({listed}): they were written to apart, or the power failed while labels were written; take those \
                 of one side away, or import the other side alone with {by_hand} and '-d DEVICE' for each of its devices, and replace the rest"
            )
        }
        Refusal::OtherProgram(why) => match foreign.first() {
            Some((path, why)) => newer(path, why),
            None => format!("one of its devices has a label of a newer version of Millpond ({why}); install that version or a later one"),
        },
        Refusal::NothingFound => "none of its devices was found; bring them back".to_owned(),
        Refusal::Older { found, remembered, wanted } => format!(
            "the devices found have labels of generation {found}, and generation {remembered} was in service here{since}: {}, or use the older \
             state with {by_hand}, which gives up everything written since then",
            bring_back(record, wanted)
        ),
        // there is nothing to bring back: two starts that ended before they wrote labels can leave
        // the newest label on a device that the host no longer trusts
        Refusal::NotCurrent { remembered, wanted } if wanted.is_empty() => {
            let known = record.in_force.iter().flat_map(|known| known.current.keys());
            let known: Vec<MemberId> = known.copied().map(MemberId).collect();
            format!(
                "its newest label is on a device that was not up to date in generation {remembered} of the labels, in service here{since}. \
                 The devices of that time are all there: {}. Labels do not say which state was used last: import these devices alone with \
                 {by_hand} and '-d DEVICE' for each, and replace the rest, or import the state of the newest label with {by_hand}; either \
                 one gives up what was written only to the other",
                names(record, &known)
            )
        }
        Refusal::NotCurrent { remembered, wanted } => format!(
            "the devices found were not up to date in generation {remembered} of the labels, in service here{since}: {}, or use what was found \
             with {by_hand}, which gives up everything written since then",
            bring_back(record, wanted)
        ),
        Refusal::OtherHost { name, missing } => format!(
            "host '{name}' had the pool last and may have written to devices that are missing: {}, or import it without them with {by_hand}",
            bring_back(record, missing)
        ),
    }
}

fn bring_back(record: &PoolRecord, members: &[MemberId]) -> String {
    match members {
        [] => "bring back the devices in that state".to_owned(),
        members => format!("bring back {}", names(record, members)),
    }
}

/// Describes members by last path, serial number and size, as far as these are remembered. Another
/// device may be at the path now.
pub(super) fn names(record: &PoolRecord, members: &[MemberId]) -> String {
    let name = |member: &MemberId| {
        let was = record.last_path(*member).map(|path| format!("was {}", path.display()));
        let seen = record.seen.get(&member.0);
        let serial = seen.and_then(|seen| seen.serial.as_ref()).map(|serial| format!("serial {serial}"));
        let size = seen.filter(|seen| seen.size > 0).map(|seen| Size(seen.size).to_string());
        match [was, serial, size].into_iter().flatten().collect::<Vec<_>>().join(", ") {
            known if known.is_empty() => format!("device {member}"),
            known => format!("device {member} ({known})"),
        }
    };
    members.iter().map(name).collect::<Vec<_>>().join(", ")
}
