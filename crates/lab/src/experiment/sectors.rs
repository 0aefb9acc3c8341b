//! `sectors`: compares volumes with 512-byte, emulated and 4 KiB sectors: whole blocks must have
//! the same speed, and the cost of writes smaller than a block is shown.

use super::Setup;
use super::looked_at::LookedAt;
use super::sample::measure_into;
use crate::load::{LoadSpec, Mix, run};
use crate::peer::{Contender, POOL};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};

const SIZE: u64 = 512 << 20;
const PROFILES: [&str; 3] = ["512n", "512e", "4kn"];

pub fn run_sectors(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    results.note(
        "an image read with another sector size (C-4kn: 1 GiB as 128 MiB) is a matter of right or wrong and not of speed: the end-to-end tests hold it",
    );
    for rep in 0..setup.reps {
        let size = setup.size_or(SIZE);
        let open = setup.open_millpond(size, 6 * size + (512 << 20), &[])?;
        let millpond = &open.millpond;
        let pid = millpond.pid()?;
        for turn in 0..PROFILES.len() {
            let Some(profile) = PROFILES.get((turn + rep) % PROFILES.len()) else { continue };
            results.say(&format!("repetition {} of {}: {profile}", rep + 1, setup.reps));
            let volume = format!("{POOL}/v{profile}");
            millpond.cli(&["create", &volume, "-L", &size.to_string(), "--sector", profile])?;
            let endpoint = millpond.export(&volume)?;
            run(&endpoint, &LoadSpec::fill()).with_context(|| format!("filling {profile}"))?;
            for (case, mix, block) in [
                ("4k randread q32", Mix::Read, 4096),
                ("4k randwrite q32", Mix::Write, 4096),
                ("512 randread q32", Mix::Read, 512),
                ("512 randwrite q32", Mix::Write, 512),
            ] {
                if block == 512 && *profile == "4kn" {
                    continue; // such a disk has no such requests
                }
                let spec = LoadSpec { secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(mix, block, 32) };
                measure_into(results, rep, case, profile, &LookedAt::new(endpoint.clone(), pid), &spec)?;
            }
        }
    }
    for case in ["4k randread q32", "4k randwrite q32"] {
        results.goal(case, "iops", "4kn", Goal::times_of("512n", 0.97));
    }
    Ok(())
}
