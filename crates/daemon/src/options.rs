//! Limits and reservation of a volume: translates between names in the API and the values of the
//! pool.

use std::collections::BTreeMap;

use millpond_engine::{Rate, VolumeOptions};

use millpond_api::size::{Size, SizeError};
use millpond_api::{ApiError, LIMITS, SetProperties};

/// Longest burst in seconds: an hour.
const MAX_LENGTH: u64 = 3600;
/// Longest write that counts as small, in bytes.
const MAX_SMALL: u32 = 1 << 20;
/// Kinds of limits, in the order of the pool's `rates`.
const KINDS: [&str; 6] = ["iops", "iops_rd", "iops_wr", "bps", "bps_rd", "bps_wr"];

/// Returns all limits by name.
pub(super) fn words(options: &VolumeOptions) -> BTreeMap<String, u64> {
    let kinds = KINDS.into_iter().zip(options.limits.rates());
    let three = |(kind, rate): (&str, &Rate)| {
        let length = if rate.burst == 0 { 0 } else { u64::from(rate.seconds.max(1)) };
        [(kind.to_owned(), rate.sustained), (format!("{kind}_max"), rate.burst), (format!("{kind}_max_length"), length)]
    };
    kinds.flat_map(three).collect()
}

/// Returns the options after a change; `None` when it changes nothing.
///
/// # Errors
/// When a name is unknown or the numbers do not fit together.
pub(super) fn changed(old: VolumeOptions, change: &SetProperties) -> Result<Option<VolumeOptions>, ApiError> {
    if let Some(name) = change.limits.keys().find(|name| !LIMITS.contains(&name.as_str())) {
        return Err(ApiError::usage(format!("no property '{name}' can be set")));
    }
    let mut options = old;
    options.reservation = change.reservation.unwrap_or(old.reservation);
    options.special_small_blocks = match change.special_small_blocks {
        None => old.special_small_blocks,
        Some(bytes) => u32::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= MAX_SMALL)
            .ok_or_else(|| ApiError::usage(format!("special_small_blocks={bytes} is too much; give at most 1M, or 0 for none")))?,
    };
    options.read_cache = match change.read_cache.as_deref() {
        None => old.read_cache,
        Some("auto") => None,
        Some("none") => Some(0),
        Some(size) => Some(size.parse().map(|Size(bytes)| bytes).map_err(|e: SizeError| ApiError::usage(format!("read_cache: {e}")))?),
    };
    for (kind, rate) in KINDS.into_iter().zip(options.limits.rates_mut()) {
        let given = |suffix: &str| change.limits.get(&format!("{kind}{suffix}")).copied();
        let (sustained, burst, length) = (given(""), given("_max"), given("_max_length"));
        rate.sustained = sustained.unwrap_or(rate.sustained);
        if rate.sustained == 0 && burst.is_none_or(|burst| burst == 0) {
            // without a sustained rate, a burst has no meaning
            *rate = Rate::default();
            continue;
        }
        rate.burst = burst.unwrap_or(rate.burst);
        if rate.burst > 0 && rate.burst < rate.sustained {
            return Err(ApiError::invalid(format!(
                "{kind}_max={} is less than {kind}={}; give more, or {kind}_max=0",
                rate.burst, rate.sustained
            )));
        }
        if rate.sustained == 0 {
            return Err(ApiError::invalid(format!("{kind}_max is how fast a burst above {kind} may be; set {kind} too")));
        }
        let length = length.unwrap_or(u64::from(rate.seconds));
        if length > MAX_LENGTH {
            return Err(ApiError::usage(format!("{kind}_max_length={length} is too long; give at most {MAX_LENGTH} seconds")));
        }
        rate.seconds = if rate.burst == 0 { 0 } else { u32::try_from(length).unwrap_or(0) };
    }
    Ok(Some(options).filter(|options| *options != old))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(words: &[(&str, u64)]) -> SetProperties {
        let limits = words.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        SetProperties { limits, ..SetProperties::default() }
    }

    #[test]
    fn changes_add_up_and_are_told_by_name() {
        let none = VolumeOptions::default();
        assert!(changed(none, &change(&[])).is_ok_and(|options| options.is_none()));
        let first = changed(none, &change(&[("iops", 100), ("bps_wr", 4096)])).expect("fits").expect("a change");
        let second = changed(first, &change(&[("iops_max", 300), ("bps_wr", 0)])).expect("fits").expect("a change");
        assert_eq!(second.limits.iops, Rate { sustained: 100, burst: 300, seconds: 0 });
        let view = words(&second);
        assert_eq!(view.len(), LIMITS.len());
        assert!(LIMITS.iter().all(|name| view.contains_key(*name)));
        assert_eq!((view["iops"], view["iops_max"], view["iops_max_length"], view["bps_wr"]), (100, 300, 1, 0));
        assert_eq!(changed(second, &change(&[("iops", 0)])).expect("fits"), Some(none), "the burst goes with it");
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let limited = changed(VolumeOptions::default(), &change(&[("iops", 100)])).expect("fits").expect("a change");
        for words in [("iops_max", 99), ("bps_max", 1), ("iops_max_length", 3601), ("colour", 1)] {
            assert!(changed(limited, &change(&[words])).is_err(), "{words:?}");
        }
    }
}
