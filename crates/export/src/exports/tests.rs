//! Lookup of exports by name.

use millpond_block::SectorProfile;

use super::*;

fn export(id: u64, name: &str, default: bool) -> ExportInfo {
    ExportInfo {
        id: ExportId(id),
        name: name.to_owned(),
        description: String::new(),
        geometry: Geometry { size: 4096, sector: SectorProfile::S512e },
        features: Features { read_only: false, write_cache: true },
        multi_conn: false,
        default,
    }
}

fn found(exports: &[ExportInfo], name: &str) -> Option<u64> {
    exports.find(name).map(|info| info.id.0)
}

#[test]
fn names_are_exact() {
    let exports = [export(1, "a", false), export(2, "b", false)];
    assert_eq!(found(&exports, "b"), Some(2));
    assert_eq!(found(&exports, "B"), None);
    assert_eq!(found(&exports, "c"), None);
}

#[test]
fn the_empty_name_means_the_only_export() {
    assert_eq!(found(&[export(1, "a", false)], ""), Some(1));
    assert_eq!(found(&[export(1, "a", false), export(2, "b", false)], ""), None);
    assert_eq!(found(&[], ""), None);
}

#[test]
fn the_empty_name_means_the_marked_export_or_one_that_has_no_name() {
    assert_eq!(found(&[export(1, "a", false), export(2, "b", true)], ""), Some(2));
    assert_eq!(found(&[export(1, "a", true), export(2, "", false)], ""), Some(2));
}

#[test]
fn a_mark_does_not_answer_to_wrong_names() {
    assert_eq!(found(&[export(1, "a", true)], "x"), None);
}
