//! Conversion of tables to another sector size and back, and refusals.
use super::*;
use crate::sectors::finding::look;
use crate::sectors::gpt::Gpt;

/// Reads bytes in memory like a disk.
pub fn reader(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> {
    |offset, into| {
        let at = usize::try_from(offset).expect("small");
        into.copy_from_slice(bytes.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Makes a disk with a GPT; partitions are given by offset and length in bytes.
pub fn disk(size: u64, sector: u64, partitions: &[(u64, u64)]) -> Vec<u8> {
    let mut entries = vec![0; 128 * 128];
    for (entry, (start, length)) in entries.chunks_exact_mut(128).zip(partitions) {
        entry[..32].copy_from_slice(&[0x11; 32]);
        entry[32..40].copy_from_slice(&(start / sector).to_le_bytes());
        entry[40..48].copy_from_slice(&((start + length) / sector - 1).to_le_bytes());
    }
    let mut header = vec![0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    let (head, tail) = Gpt::of_parts(sector, header, entries).encode(size);
    let mut bytes = vec![0; usize::try_from(size).expect("small")];
    let protective = Mbr::protective(&[], size / sector);
    bytes[..512].copy_from_slice(&protective);
    let at = usize::try_from(sector).expect("small");
    bytes[at..at + head.len()].copy_from_slice(&head);
    let at = bytes.len() - tail.len();
    bytes[at..].copy_from_slice(&tail);
    bytes
}

fn converted(bytes: &[u8], to: u64) -> Plan {
    let finding = look(bytes.len() as u64, &mut reader(bytes)).expect("looks");
    plan(&finding, to, false, &mut reader(bytes)).expect("plans")
}

fn apply(bytes: &mut [u8], plan: &Plan) {
    for (offset, new) in &plan.writes {
        let at = usize::try_from(*offset).expect("small");
        bytes[at..at + new.len()].copy_from_slice(new);
    }
}

#[test]
fn a_gpt_goes_there_and_back() {
    let size = 64 << 20;
    let parts = [(1 << 20, 8 << 20), (9 << 20, 50 << 20)];
    let before = disk(size, 512, &parts);
    let mut bytes = before.clone();
    let there = converted(&bytes, 4096);
    assert_eq!(there.refusals, Vec::<String>::new());
    apply(&mut bytes, &there);
    assert!(bytes == disk(size, 4096, &parts), "not what a 4096-byte table looks like");
    let back = converted(&bytes, 512);
    apply(&mut bytes, &back);
    assert!(bytes == before, "not as before");
}

#[test]
fn what_cannot_be_is_refused_with_a_way_out() {
    let refusal = |parts: &[(u64, u64)]| {
        let plan = converted(&disk(64 << 20, 512, parts), 4096);
        assert!(plan.writes.is_empty());
        plan.refusals.first().cloned().unwrap_or_default()
    };
    assert!(refusal(&[((1 << 20) + 512, 1 << 20)]).contains("begins at byte 1049088"));
    assert!(refusal(&[(1 << 20, (1 << 20) + 512), ((2 << 20) + 512, 1 << 20)]).contains("ends at byte 2097664, within"));
    assert!(refusal(&[(20480, 1 << 20)]).contains("where the new table is"));
    assert!(refusal(&[(1 << 20, (63 << 20) - 16896)]).contains("millpond resize POOL/VOL +1M"));
}

#[test]
fn an_end_within_a_sector_is_made_whole() {
    let mut bytes = disk(64 << 20, 512, &[(1 << 20, (1 << 20) + 512)]);
    let plan = converted(&bytes, 4096);
    assert_eq!(plan.refusals, Vec::<String>::new());
    assert!(plan.lines.iter().any(|line| line.contains("gets 3584 bytes more")));
    apply(&mut bytes, &plan);
    assert!(bytes == disk(64 << 20, 4096, &[(1 << 20, (1 << 20) + 4096)]));
}

#[test]
fn a_gpt_for_the_right_sectors_is_left() {
    let plan = converted(&disk(64 << 20, 512, &[(1 << 20, 1 << 20)]), 512);
    assert!(plan.writes.is_empty() && plan.refusals.is_empty());
}

#[test]
fn an_mbr_is_scaled() {
    let mut bytes = vec![0; 8 << 20];
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    bytes[446 + 12..446 + 16].copy_from_slice(&8192u32.to_le_bytes());
    let plan = converted(&bytes, 4096);
    apply(&mut bytes, &plan);
    assert_eq!(bytes[446 + 8..446 + 16], [0, 1, 0, 0, 0, 4, 0, 0]);
    bytes[446 + 16 + 4] = 0x0f;
    bytes[446 + 16 + 12] = 9;
    assert!(converted(&bytes, 4096).refusals.iter().any(|why| why.contains("logical")));
}
