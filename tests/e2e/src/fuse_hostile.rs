//! A program that makes all kinds of calls on a mount with invalid numbers: the daemon answers, and
//! other volumes stay unchanged.

use super::fuse::mount;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Op, Rng};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ftruncate, openat, renameat, seek, statvfs, unlinkat, utimensat};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Number of calls, most of which the kernel passes on; `MILLPOND_HOSTILE_CALLS` overrides it for
/// longer runs than CI has time for.
const CALLS: u64 = 100_000;

pub fn run(subject: &mut Subject) -> Result<()> {
    let calls = std::env::var("MILLPOND_HOSTILE_CALLS").ok().and_then(|text| text.parse().ok()).unwrap_or(CALLS);
    let dir = mount(subject, SIZE)?;
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/hostile", "-L", &SIZE.to_string()])?;
    millpond.cli(&["snapshot", "lab/hostile@s"])?;
    let endpoint = subject.server().endpoint()?;
    let mut other = Client::connect(&endpoint, 1, BLOCK, false)?;
    other.data(0).fill(9);
    other.call(Op::Write, 4096, BLOCK)?;
    let mut rng = Rng::new(0xf5e);
    let mut refused = 0u64;
    let mut file = File::options().read(true).write(true).open(dir.join("hostile"))?;
    let mut bytes = vec![0; 300_000];
    rng.fill(&mut bytes);
    for call in 0..calls {
        if call % 1000 == 0 {
            other.call(Op::Read, 4096, BLOCK).with_context(|| format!("another client, after {call} calls"))?;
            ensure!(other.data(0).iter().all(|byte| *byte == 9), "another volume has changed after {call} calls");
            file = File::options().read(true).write(true).open(dir.join("hostile")).with_context(|| format!("after {call} calls"))?;
        }
        refused += u64::from(!ask(&dir, &file, &mut bytes, &mut rng));
    }
    println!("{calls} calls, {refused} of them refused");
    ensure!(refused > calls / 10, "only {refused} of {calls} calls were refused: not hostile enough");
    let snapshot = fs::read(dir.join(".snapshots/hostile/s"))?;
    ensure!(snapshot.len() as u64 == SIZE && snapshot.iter().all(|byte| *byte == 0), "a snapshot was changed");
    file.write_all_at(b"at last", 12_345)?;
    let mut found = [0; 7];
    file.read_exact_at(&mut found, 12_345)?;
    ensure!(&found == b"at last", "what was written is not read");
    ensure!(fs::metadata(dir.join("hostile"))?.len() == SIZE, "the size has changed");
    Ok(())
}

/// Makes a random call; true if it succeeded.
fn ask(dir: &Path, file: &File, bytes: &mut [u8], rng: &mut Rng) -> bool {
    let largest = i64::MAX as u64;
    let offset = [rng.below(SIZE), SIZE - 1, SIZE, SIZE + rng.below(1 << 40), largest, largest - rng.below(1 << 20)][rng.below(6) as usize];
    let length = [1, 511, 4097, rng.below(9000) + 1, 300_000][rng.below(5) as usize];
    let wide = [length, SIZE, SIZE * 2, largest][rng.below(4) as usize];
    let names =
        ["hostile", "disk", "none", ".snapshots", ".snapshots/hostile", ".snapshots/hostile/s", ".snapshots/none/s", "a\nb", "..", ""];
    let name = names[rng.below(names.len() as u64) as usize];
    let long = "x".repeat(250 + rng.below(20) as usize);
    let path = if rng.below(20) == 0 { dir.join(long) } else { dir.join(name) };
    let place = &mut bytes[..length as usize];
    match rng.below(16) {
        0..3 => file.read_at(place, offset).is_ok(),
        3..6 => file.write_at(place, offset).is_ok(),
        6 => fallocate(file, FallocateFlags::from_bits_retain(rng.below(0x80) as u32), offset, wide).is_ok(),
        7 => fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, wide).is_ok(),
        8 => seek(file, if rng.below(2) == 0 { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) }).is_ok(),
        9 => ftruncate(file, offset).is_ok(),
        10 => {
            // Opening a special file could block, and there are none here; all other flags are
            // allowed.
            let flags = OFlags::from_bits_retain(rng.below(1 << 22) as u32) | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(CWD, &path, flags, Mode::from_raw_mode(0o600)).is_ok()
        }
        11 => renameat(CWD, &path, CWD, dir.join("other")).is_ok() || unlinkat(CWD, &path, AtFlags::empty()).is_ok(),
        12 => fs::metadata(&path).is_ok() && statvfs(&path).is_ok(),
        13 => fs::read_dir(&path).is_ok_and(|entries| entries.take(5).count() > 0),
        14 => {
            let time = Timespec { tv_sec: rng.below(1 << 40) as i64, tv_nsec: 5 };
            utimensat(CWD, &path, &Timestamps { last_access: time, last_modification: time }, AtFlags::empty()).is_ok()
        }
        _ if rng.below(30) == 0 => file.sync_data().is_ok(),
        _ => fs::hard_link(&path, dir.join("link")).is_ok() || fs::create_dir(dir.join("folder")).is_ok(),
    }
}
