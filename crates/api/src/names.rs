//! Names of pools, volumes and snapshots, `pool/volume@snapshot`; defines their limits and
//! characters.
//!
//! An error names the character that is not allowed. If the character looks like an allowed one (a
//! Cyrillic letter, a dash that is not a hyphen), the error gives its code point and the character
//! that it looks like.

use std::fmt;
use std::str::FromStr;

#[cfg(test)]
mod tests;

/// Maximum length of a pool name in bytes, so that it fits into the device label.
pub const MAX_POOL_NAME: usize = 64;
/// Maximum length of a volume or snapshot name in bytes.
pub const MAX_NAME: usize = 255;

/// Kind of object that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pool.
    Pool,
    /// A volume.
    Volume,
    /// A snapshot of a volume.
    Snapshot,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Pool => "pool",
            Kind::Volume => "volume",
            Kind::Snapshot => "snapshot",
        })
    }
}

/// A text that is not a valid name. Display is one line: the text, the reason, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(String);

/// Characters that look like allowed ones: character, look-alike, name in the Unicode character
/// database.
const LOOK_ALIKES: &[(char, char, &str)] = &[
    ('а', 'a', "CYRILLIC SMALL LETTER A"),
    ('е', 'e', "CYRILLIC SMALL LETTER IE"),
    ('ё', 'e', "CYRILLIC SMALL LETTER IO"),
    ('о', 'o', "CYRILLIC SMALL LETTER O"),
    ('р', 'p', "CYRILLIC SMALL LETTER ER"),
    ('с', 'c', "CYRILLIC SMALL LETTER ES"),
    ('у', 'y', "CYRILLIC SMALL LETTER U"),
    ('х', 'x', "CYRILLIC SMALL LETTER HA"),
    ('к', 'k', "CYRILLIC SMALL LETTER KA"),
    ('м', 'm', "CYRILLIC SMALL LETTER EM"),
    ('т', 't', "CYRILLIC SMALL LETTER TE"),
    ('г', 'r', "CYRILLIC SMALL LETTER GHE"),
    ('п', 'n', "CYRILLIC SMALL LETTER PE"),
    ('в', 'b', "CYRILLIC SMALL LETTER VE"),
    ('н', 'h', "CYRILLIC SMALL LETTER EN"),
    ('і', 'i', "CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I"),
    ('ј', 'j', "CYRILLIC SMALL LETTER JE"),
    ('ѕ', 's', "CYRILLIC SMALL LETTER DZE"),
    ('һ', 'h', "CYRILLIC SMALL LETTER SHHA"),
    ('ԁ', 'd', "CYRILLIC SMALL LETTER KOMI DE"),
    ('А', 'A', "CYRILLIC CAPITAL LETTER A"),
    ('В', 'B', "CYRILLIC CAPITAL LETTER VE"),
    ('Е', 'E', "CYRILLIC CAPITAL LETTER IE"),
    ('К', 'K', "CYRILLIC CAPITAL LETTER KA"),
    ('М', 'M', "CYRILLIC CAPITAL LETTER EM"),
    ('Н', 'H', "CYRILLIC CAPITAL LETTER EN"),
    ('О', 'O', "CYRILLIC CAPITAL LETTER O"),
    ('Р', 'P', "CYRILLIC CAPITAL LETTER ER"),
    ('С', 'C', "CYRILLIC CAPITAL LETTER ES"),
    ('Т', 'T', "CYRILLIC CAPITAL LETTER TE"),
    ('У', 'Y', "CYRILLIC CAPITAL LETTER U"),
    ('Х', 'X', "CYRILLIC CAPITAL LETTER HA"),
    ('І', 'I', "CYRILLIC CAPITAL LETTER BYELORUSSIAN-UKRAINIAN I"),
    ('Ѕ', 'S', "CYRILLIC CAPITAL LETTER DZE"),
    ('Ј', 'J', "CYRILLIC CAPITAL LETTER JE"),
    ('З', '3', "CYRILLIC CAPITAL LETTER ZE"),
    ('α', 'a', "GREEK SMALL LETTER ALPHA"),
    ('ο', 'o', "GREEK SMALL LETTER OMICRON"),
    ('ν', 'v', "GREEK SMALL LETTER NU"),
    ('ρ', 'p', "GREEK SMALL LETTER RHO"),
    ('τ', 't', "GREEK SMALL LETTER TAU"),
    ('υ', 'u', "GREEK SMALL LETTER UPSILON"),
    ('χ', 'x', "GREEK SMALL LETTER CHI"),
    ('ι', 'i', "GREEK SMALL LETTER IOTA"),
    ('κ', 'k', "GREEK SMALL LETTER KAPPA"),
    ('Α', 'A', "GREEK CAPITAL LETTER ALPHA"),
    ('Β', 'B', "GREEK CAPITAL LETTER BETA"),
    ('Ε', 'E', "GREEK CAPITAL LETTER EPSILON"),
    ('Ζ', 'Z', "GREEK CAPITAL LETTER ZETA"),
    ('Η', 'H', "GREEK CAPITAL LETTER ETA"),
    ('Ι', 'I', "GREEK CAPITAL LETTER IOTA"),
    ('Κ', 'K', "GREEK CAPITAL LETTER KAPPA"),
    ('Μ', 'M', "GREEK CAPITAL LETTER MU"),
    ('Ν', 'N', "GREEK CAPITAL LETTER NU"),
    ('Ο', 'O', "GREEK CAPITAL LETTER OMICRON"),
    ('Ρ', 'P', "GREEK CAPITAL LETTER RHO"),
    ('Τ', 'T', "GREEK CAPITAL LETTER TAU"),
    ('Υ', 'Y', "GREEK CAPITAL LETTER UPSILON"),
    ('Χ', 'X', "GREEK CAPITAL LETTER CHI"),
    ('ı', 'i', "LATIN SMALL LETTER DOTLESS I"),
    ('ɡ', 'g', "LATIN SMALL LETTER SCRIPT G"),
    ('‐', '-', "HYPHEN"),
    ('‑', '-', "NON-BREAKING HYPHEN"),
    ('‒', '-', "FIGURE DASH"),
    ('–', '-', "EN DASH"),
    ('—', '-', "EM DASH"),
    ('―', '-', "HORIZONTAL BAR"),
    ('−', '-', "MINUS SIGN"),
    ('\u{ad}', '-', "SOFT HYPHEN"),
    ('․', '.', "ONE DOT LEADER"),
    ('‥', '.', "TWO DOT LEADER"),
    ('…', '.', "HORIZONTAL ELLIPSIS"),
    ('∶', ':', "RATIO"),
    ('ː', ':', "MODIFIER LETTER TRIANGULAR COLON"),
    ('‿', '_', "UNDERTIE"),
    ('∕', '/', "DIVISION SLASH"),
    ('⁄', '/', "FRACTION SLASH"),
    ('﹫', '@', "SMALL COMMERCIAL AT"),
];

/// Returns the allowed character that `c` looks like, and the name of `c`.
fn look_alike(c: char) -> Option<(char, String)> {
    // Fullwidth forms have a fixed distance from ASCII.
    if ('\u{ff01}'..='\u{ff5e}').contains(&c) {
        let plain = char::from_u32(u32::from(c) - 0xfee0)?;
        return Some((plain, format!("FULLWIDTH FORM OF '{plain}'")));
    }
    LOOK_ALIKES.iter().find(|(odd, ..)| *odd == c).map(|(_, plain, name)| (*plain, (*name).to_owned()))
}

/// Describes the first character of `text` that only looks like ASCII; `None` if there is none.
pub fn describe_look_alike(text: &str) -> Option<String> {
    text.chars().enumerate().find_map(|(at, c)| {
        let (plain, name) = look_alike(c)?;
        Some(format!(
            "character {} of '{text}' is {name} '{c}' (U+{:04X}), which looks like '{plain}'; type '{plain}'",
            at + 1,
            u32::from(c)
        ))
    })
}

/// Describes the first word that only looks like an option: `–L` with an en dash, `—size`, or a
/// Cyrillic letter in `-с`. Words after `--` and the value of `--description` are not checked.
pub fn describe_odd_option(words: impl IntoIterator<Item = String>) -> Option<String> {
    let mut before = String::new();
    for word in words {
        if word == "--" {
            return None;
        }
        let free = before == "--description";
        if let Some(hint) = odd_option(&word).filter(|_| !free) {
            return Some(hint);
        }
        before = word;
    }
    None
}

fn odd_option(word: &str) -> Option<String> {
    let plain = |c: char| look_alike(c).map_or(c, |(plain, _)| plain);
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let straight: String = name.chars().map(plain).collect();
    let letters = straight.trim_start_matches('-');
    let is_option = straight.starts_with('-') && letters.starts_with(|c: char| c.is_ascii_alphabetic());
    let same = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let (at, odd) = name.chars().enumerate().find(|(_, c)| look_alike(*c).is_some())?;
    let (like, called) = look_alike(odd)?;
    if !is_option || !straight.chars().all(same) {
        return None;
    }
    // word processors replace two dashes by one long dash
    let dashes = if letters.len() > 1 && !word.starts_with('-') { "--" } else { straight.get(..straight.len() - letters.len())? };
    let value = value.map(|value| format!("={value}")).unwrap_or_default();
    Some(format!(
        "not an option: character {} of '{word}' is {called} '{odd}' (U+{:04X}), which looks like '{like}'; type '{dashes}{letters}{value}'",
        at + 1,
        u32::from(odd)
    ))
}

/// Checks one part of a name.
///
/// # Errors
/// The limit that it violates, or the character that is not allowed.
pub fn check(kind: Kind, text: &str) -> Result<(), NameError> {
    let limit = if kind == Kind::Pool { MAX_POOL_NAME } else { MAX_NAME };
    if text.is_empty() {
        return Err(NameError(format!("the {kind} name is empty; give 1 to {limit} of A-Z a-z 0-9 . _ : -")));
    }
    if let Some(hint) = describe_look_alike(text) {
        return Err(NameError(format!("not a {kind} name: {hint}")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    if let Some(c) = text.chars().find(|c| !allowed(*c)) {
        let shown: String = c.escape_debug().collect();
        return Err(NameError(format!(
            "'{}' is not a {kind} name: '{shown}' (U+{:04X}) is not allowed; use A-Z a-z 0-9 . _ : -",
            text.escape_debug(),
            u32::from(c)
        )));
    }
    if text.len() > limit {
        return Err(NameError(format!("the {kind} name '{text}' has {} characters; use at most {limit}", text.len())));
    }
    if text.starts_with(['-', '.']) {
        return Err(NameError(format!("'{text}' is not a {kind} name: it starts with '-' or '.'; start with a letter or digit")));
    }
    Ok(())
}

/// `pool/volume`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeName {
    /// Name of the pool.
    pub pool: String,
    /// Name of the volume in its pool.
    pub volume: String,
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.volume)
    }
}

/// `pool/volume@snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// Volume of the snapshot.
    pub of: VolumeName,
    /// Part after `@`.
    pub snapshot: String,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.of, self.snapshot)
    }
}

/// Name of a volume or of one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// `pool/volume`.
    Volume(VolumeName),
    /// `pool/volume@snapshot`.
    Snapshot(SnapshotName),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Volume(name) => name.fmt(f),
            Name::Snapshot(name) => name.fmt(f),
        }
    }
}

/// Scope of a list: a pool, a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything in a pool.
    Pool(String),
    /// One volume or snapshot.
    Name(Name),
}

/// Argument of `destroy`: a volume, a snapshot, or a range of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doomed {
    /// `pool/volume` or `pool/volume@snapshot`.
    One(Name),
    /// `pool/volume@first%last`, inclusive; a missing end stands for the oldest or newest snapshot.
    Range {
        /// Volume of the snapshots.
        of: VolumeName,
        /// Oldest snapshot of the range.
        first: Option<String>,
        /// Newest snapshot of the range.
        last: Option<String>,
    },
}

impl FromStr for VolumeName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse()? {
            Name::Volume(name) => Ok(name),
            Name::Snapshot(_) => Err(NameError(format!("'{text}' names a snapshot; give a volume, POOL/VOL"))),
        }
    }
}

impl FromStr for SnapshotName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse()? {
            Name::Snapshot(name) => Ok(name),
            Name::Volume(_) => Err(NameError(format!("'{text}' names a volume; give a snapshot, POOL/VOL@SNAP"))),
        }
    }
}

/// Splits a name into pool, volume and the part after `@`, which is not checked.
fn split(text: &str) -> Result<(VolumeName, Option<&str>), NameError> {
    let Some((pool, rest)) = text.split_once('/') else {
        if let Some(hint) = describe_look_alike(text) {
            return Err(NameError(format!("not a name: {hint}")));
        }
        return Err(NameError(format!("'{text}' has no '/'; give POOL/VOL or POOL/VOL@SNAP, or for a pool use 'millpond pool ...'")));
    };
    let (volume, snapshot) = match rest.split_once('@') {
        Some((volume, snapshot)) => (volume, Some(snapshot)),
        None => (rest, None),
    };
    check(Kind::Pool, pool)?;
    check(Kind::Volume, volume)?;
    Ok((VolumeName { pool: pool.to_owned(), volume: volume.to_owned() }, snapshot))
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let (of, snapshot) = split(text)?;
        Ok(match snapshot {
            None => Name::Volume(of),
            Some(snapshot) => {
                check(Kind::Snapshot, snapshot)?;
                Name::Snapshot(SnapshotName { of, snapshot: snapshot.to_owned() })
            }
        })
    }
}

impl FromStr for Scope {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.contains('/') {
            return Ok(Scope::Name(text.parse()?));
        }
        check(Kind::Pool, text)?;
        Ok(Scope::Pool(text.to_owned()))
    }
}

impl FromStr for Doomed {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let (of, snapshot) = split(text)?;
        let Some((first, last)) = snapshot.and_then(|snapshot| snapshot.split_once('%')) else {
            return Ok(Doomed::One(text.parse()?));
        };
        let end = |name: &str| -> Result<Option<String>, NameError> {
            if name.is_empty() {
                return Ok(None);
            }
            check(Kind::Snapshot, name)?;
            Ok(Some(name.to_owned()))
        };
        Ok(Doomed::Range { of, first: end(first)?, last: end(last)? })
    }
}

impl Doomed {
    /// Returns the volume, or the volume of the snapshots.
    pub fn of(&self) -> &VolumeName {
        match self {
            Doomed::One(Name::Volume(of)) | Doomed::Range { of, .. } => of,
            Doomed::One(Name::Snapshot(name)) => &name.of,
        }
    }
}

impl Name {
    /// Returns the pool's name.
    pub fn pool(&self) -> &str {
        match self {
            Name::Volume(name) => &name.pool,
            Name::Snapshot(name) => &name.of.pool,
        }
    }
}
