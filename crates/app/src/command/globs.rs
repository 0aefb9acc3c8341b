//! Several names and patterns: `*` stands for any characters and `?` for one character, within one
//! part of a name, never across `/` or `@`.
//!
//! Patterns are expanded in this process, against the daemon's lists; requests to the daemon carry
//! names only.

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Doomed, Kind, SnapshotName, VolumeName, check, describe_look_alike};
use millpond_api::{Snapshot, Volume};

#[cfg(test)]
mod tests;

/// Kinds of objects that names and patterns may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Volumes only.
    Volumes,
    /// Snapshots only.
    Snapshots,
    /// Volumes, snapshots and ranges of snapshots.
    Doomed,
}

/// A name with `*` or `?` in one of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    pool: String,
    volume: Option<String>,
    snapshot: Option<String>,
}

/// Whether a word is a pattern.
pub fn is_pattern(word: &str) -> bool {
    word.contains(['*', '?'])
}

impl Pattern {
    /// Parses `POOL`, `POOL/VOL` or `POOL/VOL@SNAP`, each part a name or a pattern.
    ///
    /// # Errors
    /// Wrong usage if no replacement of `*` and `?` makes a part a valid name.
    pub fn parse(text: &str) -> Outcome<Pattern> {
        if let Some(hint) = describe_look_alike(text) {
            return Err(Failure::usage(format!("not a pattern: {hint}")));
        }
        let (pool, rest) = text.split_once('/').map_or((text, None), |(pool, rest)| (pool, Some(rest)));
        let (volume, snapshot) = match rest.map(|rest| rest.split_once('@')) {
            Some(Some((volume, snapshot))) => (Some(volume), Some(snapshot)),
            Some(None) => (rest, None),
            None => (None, None),
        };
        for (kind, part) in [(Kind::Pool, Some(pool)), (Kind::Volume, volume), (Kind::Snapshot, snapshot)] {
            // with a letter in place of each wildcard, the part must be a valid name
            let checked = part.map_or(Ok(()), |part| check(kind, &part.replace(['*', '?'], "a")));
            checked.map_err(|why| Failure::usage(format!("'{text}' is not a pattern: {why}")))?;
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Pattern { text: text.to_owned(), pool: pool.to_owned(), volume: owned(volume), snapshot: owned(snapshot) })
    }

    /// Whether the pattern has a part after `@`.
    pub fn is_of_snapshots(&self) -> bool {
        self.snapshot.is_some()
    }

    /// The pool, if the pool part is no pattern.
    fn one_pool(&self) -> Option<&str> {
        (!is_pattern(&self.pool)).then_some(&self.pool)
    }

    /// Whether the pattern, without its part after `@`, matches this volume.
    pub fn has_volume(&self, name: &str) -> bool {
        let Some((pool, volume)) = name.split_once('/') else { return false };
        matches(&self.pool, pool) && self.volume.as_ref().is_none_or(|pattern| matches(pattern, volume))
    }

    /// Whether the pattern matches this snapshot. A pattern without `@` matches all snapshots of
    /// its volumes.
    pub fn has_snapshot(&self, name: &str) -> bool {
        let Some((of, snapshot)) = name.split_once('@') else { return false };
        self.has_volume(of) && self.snapshot.as_ref().is_none_or(|pattern| matches(pattern, snapshot))
    }

    /// Lists the volumes that match, ignoring the part after `@`.
    ///
    /// # Errors
    /// When the daemon refuses, or nothing matches.
    pub async fn volumes(&self, client: &Client) -> Outcome<Vec<Volume>> {
        let of_pool = self.one_pool().map(|pool| format!("?pool={}", quoted(pool))).unwrap_or_default();
        let mut volumes: Vec<Volume> = client.get(&format!("/v1/volumes{of_pool}")).await?;
        volumes.retain(|volume| self.has_volume(&volume.name));
        self.some(volumes)
    }

    /// Lists the snapshots that match. A pattern without `@` matches all snapshots of its volumes.
    ///
    /// # Errors
    /// When the daemon refuses, or a pattern with `@` matches nothing.
    pub async fn snapshots(&self, client: &Client) -> Outcome<Vec<Snapshot>> {
        let of_pool = self.one_pool().map(|pool| format!("?pool={}", quoted(pool))).unwrap_or_default();
        let mut snapshots: Vec<Snapshot> = client.get(&format!("/v1/snapshots{of_pool}")).await?;
        snapshots.retain(|snapshot| self.has_snapshot(&snapshot.name));
        if self.is_of_snapshots() { self.some(snapshots) } else { Ok(snapshots) }
    }

    fn some<T>(&self, found: Vec<T>) -> Outcome<Vec<T>> {
        if !found.is_empty() {
            return Ok(found);
        }
        let list = if self.is_of_snapshots() { "list -t snapshot" } else { "list" };
        Err(Failure::failed(format!("nothing matches '{}'; see 'millpond {list}'", self.text)))
    }
}

/// Expands words to names, without duplicates, in the order of the words and of the daemon's lists.
///
/// # Errors
/// Wrong usage if a word is neither a name nor a pattern of the wanted kind; failure if a pattern
/// matches nothing.
pub async fn expand(client: &Client, words: &[String], wanted: Wanted) -> Outcome<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for word in words {
        let found = if is_pattern(word) { expand_one(client, word, wanted).await? } else { vec![named(word, wanted)?] };
        found.into_iter().for_each(|name| {
            if !names.contains(&name) {
                names.push(name);
            }
        });
    }
    Ok(names)
}

/// Checks a word that is no pattern.
fn named(word: &str, wanted: Wanted) -> Outcome<String> {
    match wanted {
        Wanted::Volumes => drop(word.parse::<VolumeName>()?),
        Wanted::Snapshots => drop(word.parse::<SnapshotName>()?),
        Wanted::Doomed => drop(word.parse::<Doomed>()?),
    }
    Ok(word.to_owned())
}

async fn expand_one(client: &Client, word: &str, wanted: Wanted) -> Outcome<Vec<String>> {
    // a range applies to each matching volume
    if let (Wanted::Doomed, Some((of, range))) = (wanted, word.split_once('@').filter(|(_, range)| range.contains('%'))) {
        if is_pattern(range) {
            return Err(Failure::usage(format!("'{word}' has a pattern in a range; give names around the '%'")));
        }
        let volumes = Pattern::parse(of)?.volumes(client).await?;
        return Ok(volumes.into_iter().map(|volume| format!("{}@{range}", volume.name)).collect());
    }
    let pattern = Pattern::parse(word)?;
    let (of_volumes, of_snapshots) = (pattern.volume.is_some() && !pattern.is_of_snapshots(), pattern.is_of_snapshots());
    match wanted {
        Wanted::Volumes if !of_volumes => Err(Failure::usage(format!("'{word}' is not a pattern of volumes; give POOL/VOL"))),
        Wanted::Snapshots if !of_snapshots => Err(Failure::usage(format!("'{word}' is not a pattern of snapshots; give POOL/VOL@SNAP"))),
        Wanted::Doomed if !of_volumes && !of_snapshots => {
            Err(Failure::usage(format!("'{word}' is a pattern of pools; give POOL/VOL, POOL/VOL@SNAP, or 'millpond pool destroy'")))
        }
        _ if of_snapshots => Ok(pattern.snapshots(client).await?.into_iter().map(|snapshot| snapshot.name).collect()),
        _ => Ok(pattern.volumes(client).await?.into_iter().map(|volume| volume.name).collect()),
    }
}

/// Expands names of new snapshots: only the part before `@` may be a pattern.
///
/// # Errors
/// Wrong usage if a word is neither a name nor such a pattern; failure if a pattern matches no
/// volume.
pub async fn expand_new(client: &Client, words: &[String]) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for word in words {
        let Some((of, snapshot)) = word.split_once('@').filter(|(of, _)| is_pattern(of)) else {
            names.push(named(word, Wanted::Snapshots)?);
            continue;
        };
        check(Kind::Snapshot, snapshot)?;
        let pattern = Pattern::parse(of)?;
        if pattern.volume.is_none() {
            return Err(Failure::usage(format!("'{word}' names no volumes; give POOL/VOL@SNAP, or -r POOL@SNAP for all of a pool")));
        }
        // a base cannot have other snapshots
        let volumes = pattern.volumes(client).await?.into_iter().filter(|volume| volume.base.is_none());
        names.extend(volumes.map(|volume| format!("{}@{snapshot}", volume.name)));
    }
    Ok(names)
}

/// Whether `pattern` matches all of `text`.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // place of the last star, and the position in the text after the characters that it has taken
    // so far
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || Some(c) == text.get(t) => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, t) = (at + 1, taken + 1);
            }
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}
