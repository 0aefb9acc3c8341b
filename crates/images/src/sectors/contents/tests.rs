//! Detection by magic bytes.
use super::*;

fn head(marks: &[(usize, &[u8])]) -> Content {
    let mut head = vec![0; 68 << 10];
    for (at, mark) in marks {
        head[*at..at + mark.len()].copy_from_slice(mark);
    }
    of(&head)
}

#[test]
fn marks_are_known() {
    let fat: [(usize, &[u8]); 4] = [(0, &[0xeb, 0x58, 0x90]), (11, &[0, 2, 8]), (16, &[2]), (510, &[0x55, 0xaa])];
    assert_eq!(head(&fat), Content::Fat { sector: 512 });
    assert_eq!(head(&[(0, b"XFSB"), (102, &[2, 0])]), Content::Xfs { sector: 512 });
    assert_eq!(head(&[(1080, &[0x53, 0xef]), (1048, &[2])]), Content::Ext { block: 4096 });
    assert_eq!(head(&[(512, b"LABELONE"), (536, b"LVM2 001")]), Content::Lvm);
    assert_eq!(head(&[(4086, b"SWAPSPACE2")]), Content::Swap);
    assert_eq!(head(&[(0x10040, b"_BHRfS_M"), (0x10090, &[0, 16])]), Content::Btrfs { sector: 4096 });
    assert_eq!(head(&[(3, b"NTFS    "), (11, &[0, 2])]), Content::Ntfs { sector: 512 });
    assert_eq!(head(&[(0, b"LUKS\xba\xbe")]), Content::Luks);
    assert_eq!(head(&[(9000, b"x")]), Content::Unknown);
    assert_eq!(head(&[]), Content::Empty);
    assert_eq!(of(&[1, 2, 3]), Content::Unknown);
}

#[test]
fn larger_units_are_fine_and_smaller_ones_are_not() {
    assert_eq!(Content::Ext { block: 4096 }.verdict(4096), Verdict::Fine);
    assert!(matches!(Content::Ext { block: 1024 }.verdict(4096), Verdict::Refuse(_)));
    assert!(matches!(Content::Xfs { sector: 512 }.verdict(4096), Verdict::Refuse(_)));
    assert_eq!(Content::Xfs { sector: 4096 }.verdict(512), Verdict::Fine);
    assert_eq!(Content::Fat { sector: 512 }.verdict(4096), Verdict::Rebuild);
    assert_eq!(Content::Fat { sector: 4096 }.verdict(512), Verdict::Rebuild);
    for (sector, to, profile) in [(512, 4096, "--sector 4kn"), (4096, 512, "--sector 512e")] {
        let Verdict::Refuse(way) = (Content::Ntfs { sector }).verdict(to) else { panic!("NTFS cannot be converted") };
        assert!(way.contains("robocopy") && way.contains(profile), "{way}");
        assert!(matches!((Content::ExFat { sector }).verdict(to), Verdict::Refuse(_)));
        assert_eq!((Content::Ntfs { sector }).verdict(sector), Verdict::Fine);
    }
    assert!(matches!(Content::Lvm.verdict(4096), Verdict::Unclear(_)));
    assert_eq!(Content::Lvm.verdict(512), Verdict::Fine);
}
