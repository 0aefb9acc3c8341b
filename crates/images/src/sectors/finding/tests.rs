//! Detection of partition tables and messages about a mismatch, on disks in memory.
use super::*;
use crate::sectors::plan::tests::{disk, reader};

#[test]
fn a_gpt_tells_the_sectors() {
    for sector in SIZES {
        let mut bytes = disk(64 << 20, sector, &[(1 << 20, 8 << 20)]);
        let finding = look(bytes.len() as u64, &mut reader(&bytes)).expect("looks");
        assert_eq!(finding.sector, Some(sector));
        assert!(matches!(&finding.table, Table::Gpt(gpt, true) if gpt.partitions().len() == 1));
        // with the first copy damaged, the second one is used
        bytes[usize::try_from(sector).expect("small") + 60] ^= 1;
        let finding = look(bytes.len() as u64, &mut reader(&bytes)).expect("looks");
        assert!(matches!(finding.table, Table::Gpt(_, false)) && finding.sector == Some(sector));
    }
}

#[test]
fn nothing_tells_nothing() {
    let finding = look(1 << 20, &mut reader(&vec![0; 1 << 20])).expect("looks");
    assert_eq!((finding.sector, finding.table), (None, Table::Nothing));
    let tiny = look(512, &mut reader(&[7; 512])).expect("looks");
    assert_eq!(tiny.sector, None);
}

#[test]
fn the_articles_case_is_reported() {
    let finding = Finding { size: 1 << 30, sector: Some(4096), table: Table::Nothing };
    let text = describe(&finding, 4096);
    for word in ["1G", "128M", "--sector 4kn", "convert-sectors"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(describe(&Finding { sector: Some(512), ..finding }, 512).contains("8G"));
}
