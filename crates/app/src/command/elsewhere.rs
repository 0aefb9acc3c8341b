//! Commands of other systems (zfs and zpool, LVM, rbd, qemu-img, git), and the Millpond command for
//! each.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use super::Cli;

/// Commands of other systems, and a hint for each. If a word has several meanings, the hint names
/// them.
const WORDS: &[(&[&str], &str)] = &[
    (
        &["audit", "log", "logs", "messages", "watch"],
        "'millpond history NAME' lists the changes of a pool or volume and their users; 'millpond events --since 7d' lists events, --follow continues with new ones",
    ),
    (&["forecast"], "'millpond pool plan POOL' foretells how long its space lasts, and what a policy will take"),
    (
        &["health", "check", "verify", "diagnose", "conditions"],
        "'millpond status --check' lists problems; 'millpond doctor' looks at this host; 'millpond pool scrub POOL' reads and checks all data",
    ),
    (&["fsck"], "a pool needs no fsck: 'millpond pool scrub POOL' reads, checks and repairs all data while the pool is in use"),
    (
        &["offline", "online"],
        "a device cannot be taken offline temporarily in this version; 'millpond pool replace POOL OLD NEW' replaces it, 'millpond pool remove POOL DEVICE' empties it",
    ),
    (
        &["attach"],
        "'millpond pool add POOL mirror DEVICE DEVICE' adds a mirror, 'spare DEVICE' a spare; existing mirrors cannot get more copies",
    ),
    (
        &["detach", "pvremove", "vgreduce", "pvmove"],
        "'millpond pool remove POOL DEVICE' moves its data to the other devices and releases it; -n reports how much that is",
    ),
    (&["resilver"], "it starts automatically; 'millpond pool jobs' shows it"),
    (
        &["clear"],
        "a scrub without errors clears the device errors ('millpond pool scrub POOL'); a stopped pool is started again with 'pool export POOL --force' and 'pool import POOL'",
    ),
    (&["trim", "fstrim", "initialize"], "discards of guests and freed space are discarded on the devices automatically"),
    (
        &["labelclear", "wipefs"],
        "'millpond pool destroy POOL' and 'millpond pool remove POOL DEVICE' remove labels; 'wipefs -a DEVICE' does so manually",
    ),
    (
        &["upgrade", "features"],
        "'millpond pool get format,features POOL' shows the features of a pool, 'millpond pool upgrade POOL' turns them on",
    ),
    (&["stat", "top", "perf"], "'millpond pool iostat POOL 1' shows operations, bandwidth and latency each second"),
    (
        &["recv", "export-diff", "import-diff", "restore"],
        "'millpond send POOL/VOL@A%B' writes snapshots to a file or a pipe, 'millpond receive POOL/VOL' makes them of it; 'millpond export-image NAME FILE' writes a disk image",
    ),
    (
        &["convert", "dd"],
        "'millpond import-image FILE POOL/VOL' and 'millpond export-image NAME FILE' convert images; 'convert-sectors' changes the sector size of a volume",
    ),
    (&["commit", "flatten"], "'millpond promote POOL/CLONE' makes a clone independent of its origin"),
    (&["mount"], "'millpond export fuse POOL DIR' mounts a pool as a directory with a file for each volume"),
    (
        &["umount", "unmount", "unmap", "disconnect", "unshare"],
        "'millpond unexport ID|NAME|ADDRESS' ends an export; 'millpond exports' lists them",
    ),
    (
        &["map", "device", "share", "serve-nbd", "nbd", "attach-disk", "connect"],
        "'millpond export nbd POOL/VOL' serves a volume, 'millpond exports ID' prints lines for QEMU, libvirt and nbd-client",
    ),
    (&["showmapped", "watchers", "clients", "shares"], "'millpond exports' lists exports with their clients"),
    (&["vhost", "vhost-user", "fuse"], "'millpond export --help' lists the protocols"),
    (
        &["ls", "lvs", "volumes", "volume", "vols", "lvdisplay", "lvscan", "du", "df"],
        "'millpond list' lists volumes, with '-t snapshot' snapshots; 'millpond pool list' lists pools",
    ),
    (&["snapshots", "snaps"], "'millpond list -t snapshot' lists snapshots, 'millpond snapshot POOL/VOL@SNAP' takes one"),
    (&["pools", "vgs", "vgdisplay", "zpool", "vgscan"], "'millpond pool list' lists pools"),
    (&["disks", "devices", "pvs", "pvdisplay", "lsblk", "vdevs"], "'millpond pool status' lists the devices of pools"),
    (
        &["info", "display", "describe", "inspect", "properties"],
        "'millpond show NAME' shows a volume or snapshot, 'millpond pool show POOL' a pool, 'millpond get all NAME' every property",
    ),
    (
        &["rm", "delete", "del", "lvremove", "purge", "remove-snapshot"],
        "'millpond destroy NAME' destroys volumes and snapshots, 'millpond pool destroy POOL' a pool, 'millpond pool remove POOL DEVICE' takes a device out",
    ),
    (&["vgremove"], "'millpond pool destroy POOL' destroys a pool"),
    (&["mv", "move", "lvrename"], "'millpond rename OLD NEW' gives a volume or snapshot another name"),
    (&["cp", "copy"], "'millpond clone POOL/VOL@SNAP POOL/NEW' creates a volume from a snapshot at once"),
    (&["snap", "checkpoint"], "'millpond snapshot POOL/VOL@SNAP' takes a snapshot"),
    (&["revert", "reset", "undo"], "'millpond rollback POOL/VOL@SNAP' returns a volume to a snapshot; the old state is kept as a snapshot"),
    (&["lvcreate", "new", "mkvol", "make"], "'millpond create POOL/VOL -L SIZE' creates a volume"),
    (
        &["lvextend", "lvreduce", "lvresize", "extend", "expand", "grow", "shrink"],
        "'millpond resize POOL/VOL SIZE' sets the size of a volume, +5G adds to it",
    ),
    (&["vgcreate", "pvcreate"], "'millpond pool create POOL DEVICE...' creates a pool"),
    (&["vgextend"], "'millpond pool add POOL DEVICE...' adds devices"),
    (
        &["protect", "lock", "unprotect", "unlock"],
        "'millpond hold NAME' protects a snapshot from being destroyed, 'millpond release NAME' ends that",
    ),
    (&["start", "daemon", "run", "server"], "'millpond serve' is the daemon, 'millpond up' makes and serves one disk at once"),
    (
        &["stop", "shutdown", "quit", "down"],
        "the daemon ends with SIGTERM ('systemctl stop millpond'), 'up' with Ctrl-C; 'millpond pool export POOL' takes one pool out of service",
    ),
    (&["open", "activate", "load"], "'millpond pool import POOL' takes a pool into service"),
    (&["close", "deactivate", "unload"], "'millpond pool export POOL' takes a pool out of service"),
    (&["import"], "'millpond pool import' takes a pool into service, 'millpond import-image FILE POOL/VOL' reads an image"),
    (
        &["split", "reguid", "bookmark", "inherit", "allow", "project", "quota", "key", "publish", "cost"],
        "there is no such command; 'millpond --help' lists all",
    ),
    (&["version"], "'millpond --version' shows it"),
    (&["wait"], "'millpond pool jobs --wait ID' waits for a job; commands that start one take --wait"),
    (
        &["schedule", "cron", "autosnap", "sanoid", "prune"],
        "'millpond policy create NAME --keep RULES' takes snapshots by a schedule and thins them",
    ),
];

/// Returns a one-line hint for an unknown command, if its meaning is known.
pub fn describe(error: &clap::Error, words: &[String]) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    if let Some(hint) = is_name(word, words) {
        return Some(hint);
    }
    let before: Vec<&str> = words.iter().take_while(|said| *said != word).map(String::as_str).collect();
    let of_pools = before.contains(&"pool");
    let hint = meant(word, of_pools)?;
    let said = if of_pools { format!("pool {word}") } else { word.clone() };
    Some(format!("no command '{said}': {hint}"))
}

/// A hint if a volume's name is given where a protocol is expected.
fn is_name(word: &str, words: &[String]) -> Option<String> {
    let export = words.iter().any(|said| said == "export");
    (export && word.contains('/'))
        .then(|| format!("'{word}' is not a protocol: use 'millpond export nbd {word}', or vhost-user in place of nbd"))
}

/// A hint for a command of another system.
fn meant(word: &str, of_pools: bool) -> Option<String> {
    let lower = word.to_lowercase();
    let all = Cli::command();
    let pool = all.find_subcommand("pool");
    let has = |command: Option<&Command>, name: &str| {
        let found = command.and_then(|command| command.find_subcommand(name));
        found.is_some_and(|found| !found.is_hide_set())
    };
    // `pool` commands given without `pool`, or the reverse, or in the plural
    let singular = lower.strip_suffix('s').unwrap_or(&lower);
    let known = |name: &str| -> Option<String> {
        match (has(pool, name), has(Some(&all), name)) {
            (true, _) if of_pools && name != word => Some(format!("use 'millpond pool {name}'")),
            (_, true) if name != word || of_pools => Some(format!("use 'millpond {name}'")),
            (true, _) if !of_pools => Some(format!("use 'millpond pool {name}'")),
            _ => None,
        }
    };
    let listed = || WORDS.iter().find(|(words, _)| words.contains(&lower.as_str())).map(|(_, hint)| (*hint).to_owned());
    known(&lower).or_else(listed).or_else(|| known(singular))
}

#[cfg(test)]
mod tests {
    //! Commands that users of other systems try.
    use clap::Parser;

    use super::*;

    fn hint(words: &[&str]) -> Option<String> {
        let words: Vec<String> = std::iter::once("millpond").chain(words.iter().copied()).map(str::to_owned).collect();
        describe(&Cli::try_parse_from(&words).expect_err("no verb"), &words)
    }

    #[test]
    fn words_of_other_systems_lead_to_ours() {
        for (words, wanted) in [
            (&["audit"][..], "no command 'audit': 'millpond history NAME'"),
            (&["pool", "history"], "no command 'pool history': use 'millpond history'"),
            (&["plan"], "use 'millpond pool plan'"),
            (&["sanoid"], "'millpond policy create NAME --keep RULES'"),
            (&["diagnose"], "'millpond status --check'"),
            (&["pool", "offline", "tank", "/dev/sdb"], "'millpond pool replace POOL OLD NEW'"),
            (&["scrub", "tank"], "use 'millpond pool scrub'"),
            (&["pool", "scrubs"], "use 'millpond pool scrub'"),
            (&["scrubs"], "use 'millpond pool scrub'"),
            (&["pool", "snapshot", "tank/v@a"], "use 'millpond snapshot'"),
            (&["pool", "exports"], "use 'millpond exports'"),
            (&["iostat"], "use 'millpond pool iostat'"),
            (&["lvs"], "'millpond list'"),
            (&["ls"], "'millpond list'"),
            (&["snap", "tank/v@a"], "'millpond snapshot POOL/VOL@SNAP'"),
            (&["flatten", "tank/v"], "'millpond promote POOL/CLONE'"),
            (&["convert", "-O", "raw"], "import-image"),
            (&["RM", "tank/v"], "'millpond destroy NAME'"),
            (&["export", "tank/v"], "use 'millpond export nbd tank/v'"),
            (&["version"], "'millpond --version'"),
        ] {
            let given = hint(words);
            assert!(given.as_ref().is_some_and(|hint| hint.contains(wanted) && !hint.contains('\n')), "{words:?}: {given:?}");
        }
        assert_eq!(hint(&["frobnicate"]), None);
        assert_eq!(hint(&["list", "--nope"]), None);
    }

    #[test]
    fn no_word_of_the_table_is_a_verb_and_none_is_there_twice() {
        let all = Cli::command();
        let mut seen = Vec::new();
        for word in WORDS.iter().flat_map(|(words, _)| *words) {
            assert!(all.find_subcommand(word).is_none(), "{word} is a verb");
            assert!(!seen.contains(word), "{word} is there twice");
            seen.push(word);
        }
    }
}
