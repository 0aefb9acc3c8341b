//! `fio --verify=crc32c` with overwrites, discards and snapshots in between.

use super::subject::{Subject, has_snapshots};
use anyhow::{Context, Result, ensure};
use millpond_lab::process::run_tool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const SIZE: u64 = 128 << 20;

/// Runs fio, which verifies its data.
pub fn fio(uri: &str, rw: &str, seed: u64, extra: &[&str]) -> Result<()> {
    let mut args: Vec<String> =
        ["--name=e2e", "--ioengine=nbd", "--iodepth=16", "--bsrange=4k-64k", "--bs_unaligned=0", "--size=100%"].map(String::from).into();
    args.extend(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0"].map(String::from));
    args.extend([format!("--uri={uri}"), format!("--rw={rw}"), format!("--randseed={seed}")]);
    args.extend(extra.iter().map(|e| (*e).to_owned()));
    run_tool("fio", &args).map(|_| ()).with_context(|| format!("fio {rw} with seed {seed}"))
}

/// Three rounds: random fill; overwrites while snapshots are taken; discards and rewrites. Then a
/// rollback to the first round.
pub fn verify(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    let snapshots = has_snapshots(subject.server().name());
    fio(&uri, "randwrite", 1, &[])?;
    if snapshots {
        subject.server().snapshot("first")?;
    }
    let (done, ended) = mpsc::channel();
    let load = {
        let uri = uri.clone();
        thread::spawn(move || {
            let outcome = fio(&uri, "randwrite", 2, &[]).and_then(|()| fio(&uri, "randwrite", 3, &["--fsync=32"]));
            let _ = done.send(());
            outcome
        })
    };
    let mut taken = 0;
    while ended.recv_timeout(Duration::from_millis(100)).is_err() {
        if snapshots && taken < 20 {
            subject.server().snapshot(&format!("during{taken}"))?;
            taken += 1;
        }
    }
    load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))??;
    ensure!(!snapshots || taken > 0, "the load ended before a snapshot was taken");
    // with a deeper queue, discard and write of the same block would be in flight at the same time
    fio(&uri, "randtrimwrite", 4, &["--bsrange=4k-4k", "--iodepth=1"])?;
    if snapshots {
        subject.server().rollback("first")?;
        let uri = subject.server().endpoint()?.uri();
        fio(&uri, "randwrite", 1, &["--verify_only=1"])?;
    }
    Ok(())
}
