//! The snapshots that `send` is asked for.

use std::str::FromStr;

use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{SnapshotName, VolumeName};
use millpond_images::stream::StreamSnapshot;

/// Which snapshots are sent, by the parts of their names after `@`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    /// All, and a new one.
    New,
    /// One, whole.
    One(String),
    /// Those after the first up to the second; without it from the oldest or to the newest.
    Range(Option<String>, Option<String>),
}

/// A request to `send`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The volume.
    pub of: VolumeName,
    which: Which,
}

impl FromStr for Wanted {
    type Err = Failure;

    fn from_str(text: &str) -> Outcome<Wanted> {
        let Some((of, snapshots)) = text.split_once('@') else {
            return Ok(Wanted { of: text.parse()?, which: Which::New });
        };
        let of: VolumeName = of.parse()?;
        let named = |name: &str| {
            let parsed: SnapshotName = format!("{of}@{name}").parse()?;
            Ok::<_, Failure>(parsed.snapshot)
        };
        let end = |name: &str| if name.is_empty() { Ok(None) } else { named(name).map(Some) };
        let which = match snapshots.split_once('%') {
            None => Which::One(named(snapshots)?),
            Some((from, to)) => Which::Range(end(from)?, end(to)?),
        };
        Ok(Wanted { of, which })
    }
}

impl Wanted {
    /// True if a snapshot of the present state is taken first.
    pub fn takes_new(&self) -> bool {
        self.which == Which::New
    }

    /// Selects from all snapshots, oldest first: the base, and those that are sent.
    ///
    /// # Errors
    /// A name that does not exist, an empty range.
    pub fn select(&self, all: Vec<StreamSnapshot>) -> Outcome<(Option<StreamSnapshot>, Vec<StreamSnapshot>)> {
        let place = |name: &String| {
            let place = all.iter().position(|snapshot| snapshot.name == *name);
            place.ok_or_else(|| Failure::failed(format!("no snapshot '{}@{name}'; see 'millpond list -t snapshot {}'", self.of, self.of)))
        };
        let (from, to) = match &self.which {
            Which::New => (None, all.len()),
            Which::One(name) => {
                let one = all.get(place(name)?).cloned();
                return Ok((None, one.into_iter().collect()));
            }
            Which::Range(from, to) => {
                let to = to.as_ref().map(place).transpose()?.map_or(all.len(), |to| to + 1);
                (from.as_ref().map(place).transpose()?, to)
            }
        };
        let begin = from.map_or(0, |from| from + 1);
        let sent = all.get(begin..to).unwrap_or_default().to_vec();
        if sent.is_empty() {
            return Err(Failure::failed(match &self.which {
                Which::Range(Some(from), Some(to)) => format!("'{to}' is not newer than '{from}'"),
                Which::Range(Some(from), None) => {
                    format!("there is no snapshot newer than '{from}'; take one with 'millpond snapshot {}@NAME'", self.of)
                }
                _ => format!("the volume has no snapshots; take one with 'millpond snapshot {}@NAME'", self.of),
            }));
        }
        Ok((from.and_then(|from| all.get(from).cloned()), sent))
    }
}

#[cfg(test)]
mod tests {
    use millpond_api::identity::SnapshotIdentity;

    use super::*;

    fn select(text: &str, names: &[&str]) -> Result<(Option<String>, Vec<String>), String> {
        let all = names.iter().zip(1..).map(|(name, id)| StreamSnapshot {
            identity: SnapshotIdentity::new(&"a".repeat(32), id, id, id),
            name: (*name).to_owned(),
            created: jiff::Timestamp::UNIX_EPOCH,
            description: String::new(),
            size: 4096,
        });
        let wanted: Wanted = text.parse().map_err(|e: Failure| e.to_string())?;
        let (base, sent) = wanted.select(all.collect()).map_err(|e| e.to_string())?;
        Ok((base.map(|base| base.name), sent.into_iter().map(|snapshot| snapshot.name).collect()))
    }

    #[test]
    fn ranges_select_what_comes_after_their_first() {
        let names = ["a", "b", "c", "d"];
        let some = |base: Option<&str>, sent: &[&str]| Ok((base.map(str::to_owned), sent.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(select("t/v", &names), some(None, &names));
        assert_eq!(select("t/v@c", &names), some(None, &["c"]));
        assert_eq!(select("t/v@a%c", &names), some(Some("a"), &["b", "c"]));
        assert_eq!(select("t/v@b%", &names), some(Some("b"), &["c", "d"]));
        assert_eq!(select("t/v@%b", &names), some(None, &["a", "b"]));
        assert_eq!(select("t/v@%", &names), some(None, &names));
    }

    #[test]
    fn ranges_without_a_snapshot_are_refused() {
        let refused = |text, what: &str| {
            let line = select(text, &["a", "b"]).expect_err(text);
            assert!(line.contains(what), "{text}: {line}");
        };
        refused("t/v@x", "no snapshot 't/v@x'");
        refused("t/v@x%b", "no snapshot 't/v@x'");
        refused("t/v@b%a", "'a' is not newer than 'b'");
        refused("t/v@a%a", "'a' is not newer than 'a'");
        refused("t/v@b%", "no snapshot newer than 'b'");
        refused("t/v@a%b%c", "");
        assert!(select("t/v@%", &[]).is_err_and(|line| line.contains("has no snapshots")));
        assert!("t".parse::<Wanted>().is_err());
        assert!("t/v@".parse::<Wanted>().is_err());
    }
}
