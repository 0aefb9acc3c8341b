//! `pool advise special`: the prediction for a pool without special devices must match the special
//! devices of another pool after the same writes.

use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::Millpond;
use serde_json::Value;

/// Writes every block once, never next to the previous one.
const SMALL: &[&str] = &["--bsrange=4k-4k", "--random_generator=lfsr"];
const LARGE: &[&str] = &["--bsrange=256k-256k"];

/// Writes one volume in small pieces and one in large ones.
fn write(millpond: &Millpond) -> Result<()> {
    for (name, sizes) in [("tank/small", SMALL), ("tank/large", LARGE)] {
        let uri = millpond.export(name)?.uri();
        fio(&uri, "randwrite", 1, sizes)?;
    }
    Ok(())
}

fn volume<'a>(advice: &'a Value, name: &str) -> Result<&'a Value> {
    let volumes = advice["volumes"].as_array().into_iter().flatten();
    volumes.into_iter().find(|volume| volume["name"] == name).with_context(|| format!("{name} is not listed: {advice}"))
}

/// Compares the prediction with a real pool.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let sized = |name: &str, size: &str| format!("{}:{size}", dir.join(name).display());
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", &sized("a", "512M")])?;
    let create = |millpond: &Millpond| {
        ["small", "large"].iter().try_for_each(|name| millpond.cli(&["create", &format!("tank/{name}"), "-L", "32M"]).map(drop))
    };
    create(millpond)?;
    write(millpond)?;
    let advice = millpond.json(&["pool", "advise", "special", "tank", "--special", "128M"])?;
    let share = |name: &str, at: usize| volume(&advice, name).map(|volume| volume["small"][at]["share"].as_f64().unwrap_or(-1.0));
    ensure!(share("tank/small", 0)? > 0.95 && (0.0..0.05).contains(&share("tank/large", 5)?), "{advice}");
    ensure!(advice["largest_fitting"] == 128 << 10 && advice["assumed"] == true && advice["node_bytes"].as_u64() > Some(0), "{advice}");
    let few = millpond.json(&["pool", "advise", "special", "tank", "--special", "16M"])?;
    ensure!(few["largest_fitting"].is_null() && few["thresholds"][0]["fits"] == false, "{few}");
    let said = millpond.cli(&["pool", "advise", "special", "tank"])?;
    ensure!(said.contains("tank/large") && said.contains("map nodes and checkpoints alone need"), "{said}");

    millpond.cli(&["pool", "destroy", "-y", "tank"])?;
    millpond.cli(&["pool", "create", "tank", &sized("b", "512M"), "special", &sized("s", "128M")])?;
    create(millpond)?;
    for name in ["tank/small", "tank/large"] {
        millpond.cli(&["set", "special_small_blocks=4k", name])?;
    }
    write(millpond)?;
    let there = millpond.json(&["pool", "advise", "special", "tank"])?;
    let foretold = advice["thresholds"][0]["small_bytes"].as_u64().context("no small_bytes")?;
    let special =
        ["tank/small", "tank/large"].iter().map(|name| volume(&there, name).map(|volume| volume["special_bytes"].as_u64().unwrap_or(0)));
    let special: u64 = special.sum::<Result<u64>>()?;
    ensure!(special > 16 << 20 && foretold.abs_diff(special) * 20 <= special, "{foretold} bytes foretold: {there}");
    ensure!(there["thresholds"][0]["fits"] == true && there["assumed"] == false, "{there}");
    Ok(())
}
