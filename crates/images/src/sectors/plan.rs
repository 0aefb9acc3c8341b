//! Plans a conversion before anything is changed.

use std::io;

use millpond_api::size::Size;

use super::contents::{self, Verdict};
use super::finding::{Finding, Read, Table};
use super::gpt::{BIOS_BOOT, ESP};
use super::mbr::{self, Mbr};

#[cfg(test)]
pub mod tests;

/// A file system to rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Number of the partition; 0 is the whole disk.
    pub number: usize,
}

/// A conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Report for the user: each finding and its fate, one line each.
    pub lines: Vec<String>,
    /// Reasons to refuse the conversion; the first one is the error message.
    pub refusals: Vec<String>,
    /// Bytes to write, with their offsets, in this order.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// File systems to rebuild.
    pub rebuilds: Vec<Rebuild>,
}

/// A partition as a range of bytes.
struct Part {
    number: usize,
    start: u64,
    end: u64,
    note: &'static str,
}

/// Plans the conversion of a disk to sectors of `to` bytes. With `force`, contents of unclear
/// effect are accepted.
///
/// # Errors
/// The host's I/O error.
pub fn plan(finding: &Finding, to: u64, force: bool, read: Read<'_>) -> io::Result<Plan> {
    let mut plan = Plan::default();
    let size = finding.size;
    match &finding.table {
        Table::Nothing => {
            plan.lines.push("no partition table".to_owned());
            let content = contents::look(0, size, read)?;
            plan.content(&Part { number: 0, start: 0, end: size, note: "" }, content, to, force);
        }
        _ if finding.sector == Some(to) => plan.lines.push(format!("the partition table is for {to}-byte sectors already")),
        Table::Gpt(gpt, first) => {
            let (from, parts) = (gpt.sector, gpt.partitions());
            let copy = if *first { "" } else { ", the first copy of which is damaged" };
            let starts: Vec<u64> = parts.iter().map(|p| p.first.saturating_mul(from)).collect();
            plan.lines.push(format!("GPT for {from}-byte sectors{copy}: protective MBR and both copies are written for {to}"));
            let of_esp = |kind| if kind == ESP { ", EFI system partition" } else { "" };
            for p in parts {
                let note =
                    if p.kind == BIOS_BOOT { ", for the loader of a BIOS, which cannot boot 4096-byte sectors" } else { of_esp(p.kind) };
                let (Some(start), Some(end)) = (p.first.checked_mul(from), p.last.checked_add(1).and_then(|end| end.checked_mul(from)))
                else {
                    plan.refusals
                        .push(format!("partition {} lies beyond the largest possible disk; repair the partition table first", p.number));
                    continue;
                };
                let tail = size.saturating_sub(gpt.tail(to));
                plan.part(&Part { number: p.number, start, end, note }, size, next(&starts, start, u64::MAX), to, force, read)?;
                plan.room(p.number, start, end.next_multiple_of(to), gpt.head(to), tail);
            }
            let mut raw = vec![0; mbr::BYTES];
            read(0, &mut raw)?;
            let old = Mbr::read(size, read)?;
            if old.is_some_and(|old| !old.partitions.is_empty()) {
                plan.refusals
                    .push("its protective MBR has partitions of its own (a hybrid MBR); remove them with 'gdisk' first".to_owned());
            }
            if plan.refusals.is_empty() {
                let head = gpt.head(4096).max(gpt.head(512));
                let tail = gpt.tail(4096).max(gpt.tail(512));
                let (front, back) = gpt.convert(to).encode(size);
                let mut start = Mbr::protective(&raw, size / to);
                start.resize(usize::try_from(to).unwrap_or(0), 0);
                start.extend(front);
                // Remains of the old table are overwritten too, as far as no partition lies there;
                // tables for 512-byte sectors are shorter than those for 4096.
                let lowest = gpt.partitions().iter().map(|p| p.first.saturating_mul(from)).min().unwrap_or(head);
                start.resize(start.len().max(usize::try_from(head.min(lowest)).unwrap_or(0)), 0);
                let mut end = vec![0; usize::try_from(tail).unwrap_or(0).saturating_sub(back.len())];
                let highest = gpt.partitions().iter().map(|p| (p.last + 1).saturating_mul(from)).max().unwrap_or(0);
                let keep = highest.saturating_sub(size.saturating_sub(tail));
                end.extend(back);
                let end = end.split_off(usize::try_from(keep).unwrap_or(0).min(end.len()));
                plan.writes.push((size - end.len() as u64, end));
                plan.writes.push((0, start));
            }
        }
        Table::Mbr(mbr) => plan.mbr(mbr, finding, to, force, read)?,
    }
    Ok(plan)
}

/// Start of the next partition, or `end` of the space for partitions.
fn next(starts: &[u64], start: u64, end: u64) -> u64 {
    starts.iter().copied().filter(|other| *other > start).min().unwrap_or(end)
}

impl Plan {
    fn mbr(&mut self, mbr: &Mbr, finding: &Finding, to: u64, force: bool, read: Read<'_>) -> io::Result<()> {
        // If the sector size is unknown, 512 is assumed, as on nearly all disks.
        let from = finding.sector.unwrap_or(512);
        if from == to {
            self.lines.push(format!("the partition table is for {to}-byte sectors already"));
            return Ok(());
        }
        self.lines.push(format!("MBR for {from}-byte sectors: it is written for {to}; a BIOS cannot boot 4096-byte sectors"));
        let starts: Vec<u64> = mbr.partitions.iter().map(|p| p.first * from).collect();
        for p in &mbr.partitions {
            if Mbr::is_extended(p.kind) {
                self.refusals.push(format!(
                    "partition {} contains logical partitions; convert the table to GPT with 'sgdisk --mbrtogpt' first",
                    p.number
                ));
                continue;
            }
            let (start, end) = (p.first * from, (p.first + p.count) * from);
            let limit = next(&starts, start, finding.size);
            self.part(&Part { number: p.number, start, end, note: "" }, finding.size, limit, to, force, read)?;
            let fits = u32::try_from(p.count * from / to).is_ok() && u32::try_from(p.first * from / to).is_ok();
            if !fits {
                self.refusals.push(format!("partition {} is larger than an MBR can describe; convert the table to GPT first", p.number));
            }
        }
        if self.refusals.is_empty() {
            self.writes.push((0, mbr.convert(from, to)));
        }
        Ok(())
    }

    /// Checks the bounds and the content of a partition.
    fn part(&mut self, part: &Part, size: u64, limit: u64, to: u64, force: bool, read: Read<'_>) -> io::Result<()> {
        let number = part.number;
        if part.start >= part.end || part.end > size {
            self.refusals.push(format!("partition {number} lies beyond the end of the disk; repair the partition table first"));
            return Ok(());
        }
        if !part.start.is_multiple_of(to) {
            let at = part.start;
            self.refusals
                .push(format!("partition {number} begins at byte {at}, which is not a multiple of {to}; move it with 'parted' first"));
        }
        // Free space after the partition completes its last sector. An overlap with the second
        // table is reported by `room`.
        let end = part.end.next_multiple_of(to);
        if end > limit && part.end <= limit {
            let why = format!(
                "partition {number} ends at byte {}, within a {to}-byte sector that another begins in; move it with 'parted' first",
                part.end
            );
            self.refusals.push(why);
        } else if end > part.end {
            self.lines.push(format!("partition {number} gets {} bytes more, up to the end of a sector", end - part.end));
        }
        let content = contents::look(part.start, part.end - part.start, read)?;
        self.content(part, content, to, force);
        Ok(())
    }

    fn content(&mut self, part: &Part, content: contents::Content, to: u64, force: bool) {
        let whole = if part.number == 0 { "the disk".to_owned() } else { format!("partition {}", part.number) };
        let name = content.name();
        let becomes = match content.verdict(to) {
            Verdict::Fine if content == contents::Content::Unknown => {
                "left as it is; check whether it depends on the sector size".to_owned()
            }
            Verdict::Fine => "left as it is".to_owned(),
            Verdict::Rebuild => {
                self.rebuilds.push(Rebuild { start: part.start, length: part.end - part.start, number: part.number });
                format!("recreated with {to}-byte sectors and the same files")
            }
            Verdict::Unclear(_) if force => "left as it is".to_owned(),
            Verdict::Unclear(way) | Verdict::Refuse(way) => {
                self.refusals.push(format!("{whole} is {name}, which depends on the sector size; {way}"));
                "depends on the sector size".to_owned()
            }
        };
        self.lines.push(format!("{whole} ({}, {name}{}): {becomes}", Size(part.end - part.start), part.note));
    }

    /// Checks that a partition does not overlap the first `head` bytes and the space from `tail`
    /// on, which the new tables take.
    fn room(&mut self, number: usize, start: u64, end: u64, head: u64, tail: u64) {
        if start < head {
            self.refusals.push(format!(
                "partition {number} begins at byte {start}, where the new table is (up to {head}); move it with 'parted' first"
            ));
        }
        if end > tail {
            // whole MiB, as sizes of volumes usually are
            let more = Size((end - tail).next_multiple_of(1 << 20));
            self.refusals.push(format!(
                "partition {number} ends at byte {end}, where the second table will be; make the volume larger with 'millpond resize POOL/VOL +{more}' first"
            ));
        }
    }
}
