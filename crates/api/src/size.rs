//! Sizes as users type and read them, in powers of 1024.

use std::fmt;
use std::str::FromStr;

use crate::names::describe_look_alike;

#[cfg(test)]
mod tests;

/// A text that is not a size. Display is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

/// Unit letters in order of their power of 1024.
const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A new size, absolute or relative; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// Absolute: `10G`.
    To(u64),
    /// Growth: `+5G`.
    By(u64),
    /// Reduction: `-5G`.
    Less(u64),
}

impl FromStr for Size {
    type Err = SizeError;
    /// Parses `512`, `64k`, `10G`, `1.5T`, `8MiB`, `4KB`; all units are powers of 1024. A fraction
    /// of a unit is rounded down to whole bytes.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let wrong =
            |why: &str| SizeError(format!("'{}' is not a size: {why}; give for example 512, 64k, 10G, 1.5T or 8MiB", text.escape_debug()));
        if let Some(hint) = describe_look_alike(text) {
            return Err(SizeError(format!("not a size: {hint}")));
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let power = power_of(unit).ok_or_else(|| wrong("unknown unit"))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(wrong("no number"));
        }
        let scale = 1u128 << (10 * power);
        let whole: u128 = whole.parse().map_err(|_| wrong("too large"))?;
        let tens = u32::try_from(fraction.len()).ok().and_then(|n| 10u128.checked_pow(n)).ok_or_else(|| wrong("too many digits"))?;
        let part = fraction.parse::<u128>().ok().and_then(|part| part.checked_mul(scale)).ok_or_else(|| wrong("too many digits"))?;
        if part % tens != 0 && power == 0 {
            return Err(wrong("not whole bytes"));
        }
        let bytes = whole.checked_mul(scale).and_then(|bytes| bytes.checked_add(part / tens)).ok_or_else(|| wrong("too large"))?;
        u64::try_from(bytes).ok().filter(|bytes| *bytes <= i64::MAX as u64).map(Size).ok_or_else(|| wrong("too large"))
    }
}

/// Returns the power of 1024 that a unit stands for.
fn power_of(unit: &str) -> Option<u32> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else { return Some(0) };
    let power = UNITS.iter().position(|u| *u == first.to_ascii_uppercase())?;
    let tail = letters.as_str();
    let known = tail.is_empty() || (power > 0 && (tail.eq_ignore_ascii_case("ib") || tail.eq_ignore_ascii_case("b")));
    known.then(|| u32::try_from(power).ok()).flatten()
}

impl FromStr for SizeChange {
    type Err = SizeError;
    fn from_str(text: &str) -> Result<Self, SizeError> {
        if let Some(more) = text.strip_prefix('+') {
            return more.parse().map(|Size(by)| SizeChange::By(by));
        }
        if let Some(less) = text.strip_prefix('-') {
            return less.parse().map(|Size(by)| SizeChange::Less(by));
        }
        text.parse().map(|Size(to)| SizeChange::To(to))
    }
}

impl SizeChange {
    /// Applies the change to `old` bytes; `None` if the result is negative or too large.
    pub fn apply(self, old: u64) -> Option<u64> {
        match self {
            SizeChange::To(to) => Some(to),
            SizeChange::By(by) => old.checked_add(by).filter(|new| *new <= i64::MAX as u64),
            SizeChange::Less(by) => old.checked_sub(by),
        }
    }
}

impl fmt::Display for Size {
    /// Formats as `512B`, `64K`, `1.50G`: two digits after the point unless the number is whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut power = 0;
        let mut unit = 1u64;
        while power + 1 < UNITS.len() && self.0 / unit >= 1024 {
            unit <<= 10;
            power += 1;
        }
        let letter = UNITS.get(power).copied().unwrap_or('B');
        if self.0.is_multiple_of(unit) {
            return write!(f, "{}{letter}", self.0 / unit);
        }
        // Truncated, not rounded, so that a size is never shown too large.
        let hundredths = u128::from(self.0) * 100 / u128::from(unit);
        write!(f, "{}.{:02}{letter}", hundredths / 100, hundredths % 100)
    }
}
