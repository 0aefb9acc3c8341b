//! `pool plan`: foretells how long the space of a pool lasts, and what a policy will take.

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::show_span;
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{PolicyPlan, PoolPlan, VolumePlan};

use crate::command::candidates;
use crate::output::{Cell, Column, Format, Listing, Shown, print, write_out};

/// Foretell how long the space of a pool lasts at its rate of change, and how much a policy will
/// take
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool plan tank
  millpond pool plan tank --policy continuous

The daemon measures over the last hour, or since the pool came into service; there is no figure in the first minute. The figure of a policy is
an upper bound: overwriting the same blocks takes less.")]
pub struct Plan {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Also foretell what this policy will take
    #[arg(long, value_name = "POLICY", add = candidates::policies())]
    policy: Option<String>,
    #[command(flatten)]
    how: Listing,
}

const VOLUME: &[Column<VolumePlan>] = &[
    Column { name: "name", cell: |v| Cell::Text(v.name.clone()), shown: Shown::Always },
    Column { name: "size", cell: |v| Cell::Bytes(v.size), shown: Shown::Always },
    Column { name: "write_rate", cell: |v| v.write_rate.map_or(Cell::None, |rate| Cell::Rate(rate as f64)), shown: Shown::Always },
    Column { name: "snapshot_bytes", cell: |v| v.snapshot_bytes.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
];

const NO_FIGURE: &str = "no figure yet, the daemon measures for less than a minute";

impl Plan {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let of = self.policy.as_ref().map(|policy| format!("?policy={}", quoted(policy))).unwrap_or_default();
        let plan: PoolPlan = client.get(&format!("/v1/pools/{}/plan{of}", self.name)).await?;
        if !self.how.columns.is_empty() || self.how.no_header {
            return print(&plan.volumes, VOLUME, &self.how);
        }
        if self.how.format == Format::Json {
            let all = serde_json::to_string_pretty(&plan).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(all + "\n"));
        }
        write_out(&describe(&plan))?;
        write_out("\n")?;
        print(&plan.volumes, VOLUME, &self.how)
    }
}

/// Describes the forecast for people.
fn describe(plan: &PoolPlan) -> String {
    let mut text = format!("pool {}: {} of {} are free\n", plan.name, Size(plan.free), Size(plan.size));
    text += &match (plan.measured_seconds, plan.growth_rate, plan.full_in_seconds) {
        (Some(span), Some(rate), full) => {
            let change = match rate {
                0 => "its live data did not grow".to_owned(),
                rate if rate < 0 => format!("its live data shrank by {}/s", Size(rate.unsigned_abs())),
                rate => format!("its live data grew by {}/s", Size(rate.unsigned_abs())),
            };
            let lasts = full.map(|full| format!(", so it is full in about {}", show_span(full))).unwrap_or_default();
            format!("in the last {} {change}{lasts}\n", show_span(span))
        }
        _ => format!("growth: {NO_FIGURE}\n"),
    };
    if let Some(rate) = plan.write_rate {
        text += &format!("guests wrote {}/s\n", Size(rate));
    }
    plan.policy.iter().for_each(|policy| text += &of_policy(policy));
    text
}

fn of_policy(policy: &PolicyPlan) -> String {
    let volumes = if policy.attached { "its volumes" } else { "every volume of the pool (none is attached)" };
    let mut text = format!(
        "policy {} ({}): {} snapshots of {volumes} after {}\n",
        policy.name,
        policy.keep,
        policy.snapshots,
        show_span(policy.full_after_seconds)
    );
    text += &match (policy.most_bytes, policy.fits) {
        (Some(bytes), Some(true)) => format!("they take at most {} then, which fits into the free space\n", Size(bytes)),
        (Some(bytes), _) => format!("they take at most {} then, which is more than is free\n", Size(bytes)),
        (None, _) => format!("their space: {NO_FIGURE}\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    //! The words of forecasts.
    use super::*;

    fn plan(measured: Option<u64>, rate: i64) -> PoolPlan {
        PoolPlan {
            name: "tank".to_owned(),
            size: 100 << 30,
            allocated: 40 << 30,
            free: 60 << 30,
            measured_seconds: measured,
            growth_rate: measured.map(|_| rate),
            write_rate: measured.map(|_| 2 << 20),
            full_in_seconds: measured.filter(|_| rate > 0).map(|_| 61_440),
            volumes: Vec::new(),
            policy: None,
        }
    }

    #[test]
    fn a_forecast_says_what_is_not_known() {
        assert!(describe(&plan(None, 0)).contains("no figure yet"));
        assert!(
            describe(&plan(Some(3600), 1 << 20)).contains("in the last 1 h its live data grew by 1M/s, so it is full in about 17 h 4 min")
        );
        assert!(describe(&plan(Some(90), -5)).contains("shrank"));
        let policy = PolicyPlan {
            name: "p".to_owned(),
            keep: "1h:1d".to_owned(),
            attached: false,
            snapshots: 24,
            full_after_seconds: 86_400,
            most_bytes: None,
            fits: None,
        };
        let text = describe(&PoolPlan { policy: Some(policy), ..plan(None, 0) });
        assert!(text.contains("24 snapshots of every volume of the pool (none is attached) after 1 d"), "{text}");
        assert!(text.contains("their space: no figure yet"), "{text}");
    }
}
