//! Forecast of a pool's space, from rates that the daemon measures.
//!
//! Once a minute the daemon notes the live bytes of each pool and the bytes that guests wrote to
//! each volume; rates are over the last hour, or since the pool came into service.
//!
//! A snapshot holds the blocks that were overwritten before the next one was taken: at most the
//! bytes written in between, and at most the volume. So the snapshots of a policy take at most the
//! sum of that over the gaps between them. Overwriting the same blocks takes less, so it is an
//! upper bound.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_api::{ApiError, PolicyPlan, PoolPlan, VolumePlan};
use millpond_engine::VolumeId;
use tokio::time::timeout;

use super::policy::Keep;
use super::service::Daemon;

/// Time between two samples; with so many samples as are kept, rates are over an hour.
const SAMPLE: Duration = Duration::from_secs(60);
const SAMPLES: usize = 61;
/// Shortest time over which a rate is given.
const SHORTEST: Duration = Duration::from_secs(60);
/// Longest forecast that is given.
const FAR_SECONDS: u64 = 100 * 366 * 86_400;

/// Bytes of a pool at one time.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    allocated: u64,
    written: BTreeMap<VolumeId, u64>,
}

/// Samples of a pool since it came into service.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<Sample>);

impl Samples {
    fn add(&mut self, sample: Sample) {
        // counters begin anew with each import
        let is_anew = |last: &Sample| last.written.iter().any(|(volume, bytes)| sample.written.get(volume).is_some_and(|new| new < bytes));
        if self.0.back().is_some_and(is_anew) {
            self.0.clear();
        }
        if self.0.len() >= SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns the oldest sample, if it is old enough for a rate.
    fn base(&self, now: Instant) -> Option<&Sample> {
        self.0.front().filter(|sample| now.saturating_duration_since(sample.at) >= SHORTEST)
    }
}

/// Returns the gaps between the snapshots that rules keep, newest first, in seconds: the step of
/// the finest rule up to the age where that ends, then that of the next one.
fn gaps(keep: &Keep) -> Vec<u64> {
    let (mut gaps, mut age) = (Vec::new(), 0);
    for rule in keep.rules() {
        let (step, span) = (rule.every.seconds(), rule.every.seconds() * rule.kept());
        while age + step <= span {
            // a step that has begun is filled up
            let next = (age / step + 1) * step;
            gaps.push(next - age);
            age = next;
        }
    }
    gaps
}

/// Returns the most bytes that snapshots with these gaps hold of a volume.
fn most_bytes(gaps: &[u64], bytes_per_second: u64, size: u64) -> u64 {
    gaps.iter().map(|gap| bytes_per_second.saturating_mul(*gap).min(size)).fold(0, u64::saturating_add)
}

fn per_second(bytes: u64, span: Duration) -> u64 {
    u64::try_from(u128::from(bytes) * 1000 / span.as_millis().max(1)).unwrap_or(u64::MAX)
}

impl Daemon {
    /// Samples all pools once a minute, as long as the daemon lives.
    pub(super) async fn sample_rates(self: Arc<Daemon>) {
        loop {
            for (name, shard) in self.shards() {
                let patience = self.options.deadlines.look;
                let Ok(Ok((uses, _))) = timeout(patience, shard.volume_uses()).await else { continue };
                let Ok(Ok(status)) = timeout(patience, shard.status()).await else { continue };
                let written = uses.iter().map(|volume| (volume.info.id, volume.load.io.write_bytes)).collect();
                let sample = Sample { at: Instant::now(), allocated: status.pool.allocated, written };
                if let Some(entry) = self.registry().pools.get_mut(&name) {
                    entry.samples.add(sample);
                }
            }
            tokio::time::sleep(SAMPLE).await;
        }
    }

    /// Returns the forecast of a pool's space, and what a policy will take.
    ///
    /// # Errors
    /// When there is no such pool or policy, or the pool is not in service.
    pub async fn plan(&self, name: &str, policy: Option<&str>) -> Result<PoolPlan, ApiError> {
        let shard = self.shard(name)?;
        let terms = policy.map(|policy| self.terms_for_plan(policy, name)).transpose()?;
        let (status, (uses, _)) = (shard.status().await?.pool, shard.volume_uses().await?);
        let now = Instant::now();
        let base = self.registry().pools.get(name).and_then(|entry| entry.samples.base(now).cloned());
        let span = base.as_ref().map(|base| now.saturating_duration_since(base.at));
        let rate = |volume: VolumeId, bytes: u64| {
            let before = base.as_ref()?.written.get(&volume).copied().unwrap_or(0);
            Some(per_second(bytes.saturating_sub(before), span?))
        };
        let write_rate = base.as_ref().and(Some(uses.iter().filter_map(|of| rate(of.info.id, of.load.io.write_bytes)).sum()));
        let of_keep = terms.as_ref().map(|(_, keep, _)| gaps(keep));
        let attached = terms.as_ref().is_some_and(|(_, _, volumes)| !volumes.is_empty());
        let planned = uses.iter().filter(|of| !attached || terms.as_ref().is_some_and(|(_, _, volumes)| volumes.contains(&of.info.id)));
        let volumes: Vec<VolumePlan> = planned
            .map(|of| {
                let rate = rate(of.info.id, of.load.io.write_bytes);
                let snapshot_bytes = of_keep.as_ref().zip(rate).map(|(gaps, rate)| most_bytes(gaps, rate, of.info.size));
                VolumePlan { name: format!("{name}/{}", of.info.name), size: of.info.size, write_rate: rate, snapshot_bytes }
            })
            .collect();
        let growth_rate = base.as_ref().zip(span).map(|(base, span)| {
            let change = i64::try_from(per_second(status.allocated.abs_diff(base.allocated), span)).unwrap_or(i64::MAX);
            if status.allocated < base.allocated { -change } else { change }
        });
        let filling = growth_rate.and_then(|rate| u64::try_from(rate).ok()).filter(|rate| *rate > 0);
        let full_in_seconds = filling.and_then(|rate| status.free.checked_div(rate)).filter(|left| *left <= FAR_SECONDS);
        let policy = terms.map(|(policy, keep, _)| {
            let most = volumes.iter().map(|volume| volume.snapshot_bytes).sum::<Option<u64>>();
            let gaps = of_keep.unwrap_or_default();
            PolicyPlan {
                name: policy,
                keep: keep.to_string(),
                attached,
                snapshots: gaps.len() as u64,
                full_after_seconds: gaps.iter().sum(),
                most_bytes: most,
                fits: most.map(|most| most <= status.free),
            }
        });
        Ok(PoolPlan {
            name: name.to_owned(),
            size: status.size,
            allocated: status.allocated,
            free: status.free,
            measured_seconds: span.map(|span| span.as_secs()),
            growth_rate,
            write_rate,
            full_in_seconds,
            volumes,
            policy,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Gaps and bounds, against a run of a policy second by second.
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_gaps_are_those_of_a_policy_that_has_run_for_long() {
        for rules in ["1s:10s", "1s:10s 5s:30s", "1s:10s 5s:30s 1m:5m", "7s:1m 1m:10m", "10s:20s 1m:1m"] {
            let keep: Keep = rules.parse().expect("rules");
            // what is kept at the end of a step of the coarsest rule
            let end = 3600u64;
            let mut kept: BTreeSet<u64> = BTreeSet::from([end]);
            for rule in keep.rules() {
                let step = rule.every.seconds();
                kept.extend((0..rule.kept()).map(|n| (end / step - n) * step));
            }
            let times: Vec<u64> = kept.into_iter().rev().collect();
            let real: u64 = times.first().zip(times.last()).map_or(0, |(newest, oldest)| newest - oldest);
            let gaps = gaps(&keep);
            assert!(gaps.iter().sum::<u64>() >= real, "{rules}: {gaps:?} for {times:?}");
            assert!(gaps.len() + 1 >= times.len(), "{rules}: {gaps:?} for {times:?}");
        }
    }

    #[test]
    fn a_gap_takes_no_more_than_was_written_in_it_nor_than_the_volume() {
        let day = 86_400;
        assert_eq!(most_bytes(&[1, 1, 60, day], 10, 1000), 10 + 10 + 600 + 1000);
        assert_eq!(most_bytes(&[day; 3], 0, 1 << 30), 0);
        assert_eq!(most_bytes(&[day; 3], u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn there_is_no_rate_before_a_minute_and_counters_that_begin_anew_give_none() {
        let begun = Instant::now();
        let sample = |after: u64, bytes: u64| Sample {
            at: begun + Duration::from_secs(after),
            allocated: 0,
            written: BTreeMap::from([(VolumeId(1), bytes)]),
        };
        let mut samples = Samples::default();
        samples.add(sample(0, 100));
        assert!(samples.base(begun + Duration::from_secs(59)).is_none());
        assert!(samples.base(begun + Duration::from_secs(60)).is_some());
        (1..200).for_each(|n| samples.add(sample(60 * n, 100 + n)));
        let base = samples.base(begun + Duration::from_secs(60 * 199)).expect("a base");
        assert_eq!(base.at, begun + Duration::from_secs(60 * 139), "an hour before");
        samples.add(sample(12_000, 5));
        assert!(samples.base(begun + Duration::from_secs(12_030)).is_none());
    }
}
