//! Properties of policies as words: of `policy create` as options, of `policy set` as assignments.

use clap::Args;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::parse_span;
use millpond_api::{CreatePolicy, SetPolicy};

/// Create a policy, without volumes
///
/// EVERY:FOR keeps the first snapshot of each EVERY, for as many EVERY as are in FOR. A run is due
/// at the beginning of each step of the finest rule, or at the calendar time of --at.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond policy create continuous --keep '1s:1h 1m:1d 1h:7d 1d:60d'
  millpond policy create nightly --keep '1d:30d 1mo:1y 1y:10y' --at 'mon-fri 02:30' --zone Europe/Berlin
  millpond policy create safe --keep '1h:2d' --lock 7d
  millpond policy create clean --keep '1h:2d' --freeze /var/run/qemu-server/{vmid}.qga
  millpond policy create replica --keep '15m:1d 1d:30d' --send ssh://backup@host2/tank
  millpond policy attach continuous tank/vm1 tank/vm2

Units are s, m, h, d, w, mo, y. Calendar times: hourly, daily, weekly, monthly, yearly, 'daily 02:30', 'sat,sun 04:00', 'day 1,15 03:00',
'day last 23:00'.")]
pub struct Create {
    /// Name of the policy
    name: String,
    /// Rules EVERY:FOR, separated by spaces
    #[arg(long, value_name = "RULES")]
    keep: String,
    /// Take the snapshots of all its volumes of a pool at one instant
    #[arg(long)]
    group: bool,
    /// Calendar time of the runs [default: the beginning of each step of the finest rule]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Time zone of days and calendar times [default: that of the daemon's host]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Lock each snapshot for this time: it cannot be destroyed before
    #[arg(long, value_name = "SPAN")]
    lock: Option<String>,
    /// Destroy each snapshot after this time in any case
    #[arg(long, value_name = "SPAN")]
    expire: Option<String>,
    /// Destroy snapshots before their time when less than a twentieth of a pool is free; policies
    /// with lower numbers first
    #[arg(long, value_name = "NUMBER")]
    prune: Option<u32>,
    /// Names of the snapshots, with {policy} and {time} [default: auto-{policy}-{time}]
    #[arg(long, value_name = "TEMPLATE")]
    template: Option<String>,
    /// Freeze the filesystems of each volume's guest meanwhile: socket of its QEMU guest agent, in
    /// which {pool}, {volume} and {vmid} (100 of vm-100-disk-0) are replaced
    #[arg(long, value_name = "SOCKET")]
    freeze: Option<String>,
    /// Take no snapshot of a guest that cannot be frozen [default: take it, and report that]
    #[arg(long, requires = "freeze")]
    freeze_required: bool,
    /// Send the snapshots after each run to another pool: POOL, ssh://[USER@]HOST[:PORT]/POOL, or unix:/path/of/socket/POOL; or as
    /// backups to /directory or s3://BUCKET/PREFIX
    #[arg(long, value_name = "TARGET")]
    send: Option<String>,
}

impl Create {
    /// Returns the request.
    pub fn request(self) -> Outcome<CreatePolicy> {
        let seconds = |span: Option<String>| span.as_deref().map(parse_span).transpose().map(|span| span.map(|span| span.as_secs()));
        Ok(CreatePolicy {
            name: self.name,
            keep: self.keep,
            group: self.group,
            at: self.at,
            zone: self.zone,
            lock_seconds: seconds(self.lock)?,
            expire_seconds: seconds(self.expire)?,
            prune: self.prune,
            template: self.template,
            freeze: self.freeze,
            freeze_required: self.freeze_required,
            send: self.send,
            dry_run: false,
        })
    }
}

/// Properties that can be set.
pub const SETTABLE: [&str; 11] =
    ["keep", "group", "at", "zone", "lock", "expire", "prune", "template", "freeze", "freeze_required", "send"];

/// Parses `PROP=VAL` into a change.
///
/// # Errors
/// Wrong usage.
pub fn assign(word: &str, change: &mut SetPolicy) -> Outcome {
    let Some((property, value)) = word.split_once('=') else {
        return Err(Failure::usage(format!("'{word}' is not PROP=VAL; give for example keep='1h:7d 1d:60d'")));
    };
    let seconds = |value: &str| if value == "none" { Ok(0) } else { parse_span(value).map(|span| span.as_secs()) };
    match property {
        "keep" => change.keep = Some(value.to_owned()),
        "at" => change.at = Some(if value == "none" { String::new() } else { value.to_owned() }),
        "zone" => change.zone = Some(value.to_owned()),
        "template" => change.template = Some(value.to_owned()),
        "lock" => change.lock_seconds = Some(seconds(value)?),
        "expire" => change.expire_seconds = Some(seconds(value)?),
        "prune" => {
            let number = if value == "none" { Ok(0) } else { value.parse() };
            change.prune =
                Some(number.map_err(|_| Failure::usage(format!("prune: '{value}' is not a number; give for example 1, or none")))?);
        }
        "freeze" => change.freeze = Some(if value == "none" { String::new() } else { value.to_owned() }),
        "send" => change.send = Some(if value == "none" { String::new() } else { value.to_owned() }),
        "group" => change.group = Some(switch(property, value)?),
        "freeze_required" => change.freeze_required = Some(switch(property, value)?),
        _ => {
            return Err(Failure::usage(format!("no property '{property}' can be set; choose from {}", SETTABLE.join(", "))));
        }
    }
    Ok(())
}

fn switch(property: &str, value: &str) -> Outcome<bool> {
    match value {
        "on" | "yes" | "true" => Ok(true),
        "off" | "no" | "false" => Ok(false),
        _ => Err(Failure::usage(format!("{property}: '{value}' is neither on nor off; give on or off"))),
    }
}

#[cfg(test)]
mod tests {
    //! Assignments.
    use super::*;

    #[test]
    fn assignments_are_read_or_refused() {
        let mut change = SetPolicy::default();
        for word in [
            "keep=1h:7d 1d:60d",
            "at=none",
            "lock=7d",
            "expire=none",
            "group=on",
            "zone=UTC",
            "prune=2",
            "freeze=none",
            "freeze_required=off",
            "send=ssh://host/tank",
        ] {
            assign(word, &mut change).expect(word);
        }
        assert_eq!((change.lock_seconds, change.expire_seconds, change.group), (Some(7 * 86_400), Some(0), Some(true)));
        assert_eq!((change.freeze.as_deref(), change.freeze_required), (Some(""), Some(false)));
        assert_eq!(change.send.as_deref(), Some("ssh://host/tank"));
        assert_eq!((change.at.as_deref(), change.keep.as_deref()), (Some(""), Some("1h:7d 1d:60d")));
        for word in ["keep", "kept=1h:7d", "group=maybe", "lock=soon", "prune=first"] {
            assert!(assign(word, &mut SetPolicy::default()).is_err(), "{word}");
        }
    }
}
