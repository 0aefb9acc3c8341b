//! Names of the snapshots that layers and internal snapshots become.

use std::path::Path;

use millpond_api::names::MAX_NAME;

/// Makes a valid snapshot name: invalid characters become `-`, and a name that is taken gets a
/// number.
pub fn fitting(wanted: &str, taken: &[String]) -> String {
    let mut name: String =
        wanted.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-') { c } else { '-' }).collect();
    name.truncate(MAX_NAME - 8);
    let name = name.trim_start_matches(['-', '.', ':']);
    let name = if name.is_empty() { "layer" } else { name };
    if !taken.iter().any(|other| other == name) {
        return name.to_owned();
    }
    (2..).map(|n| format!("{name}-{n}")).find(|name| !taken.contains(name)).unwrap_or_default()
}

/// Returns the snapshot name of a layer. For a file of a Proxmox VE volume chain
/// (`snap_NAME_vm-100-disk-0.qcow2`, `snap_vm-100-disk-0_NAME.qcow2`) it is `NAME`, else the file
/// name without its extension.
pub fn of_layer(layer: &Path, top: &Path) -> String {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let (own, top) = (stem(layer), stem(top));
    let top = of_disk(&top);
    let Some(rest) = own.strip_prefix("snap").and_then(|rest| rest.strip_prefix(['_', '-'])) else { return own };
    let before = rest.strip_suffix(top).and_then(|name| name.strip_suffix(['_', '-']));
    let after = rest.strip_prefix(top).and_then(|name| name.strip_prefix(['_', '-']));
    before.or(after).filter(|name| !name.is_empty()).unwrap_or(&own).to_owned()
}

/// Returns the disk's name within a file name. A chain may be imported from one of its snapshots,
/// so `stem` may be that of a snapshot.
fn of_disk(stem: &str) -> &str {
    let at = ["vm-", "base-"].iter().filter_map(|mark| stem.find(mark)).min();
    match at {
        Some(at) if stem.starts_with("snap") => stem.get(at..).unwrap_or(stem),
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(file: &str) -> String {
        of_layer(Path::new(file), Path::new("/images/100/vm-100-disk-0.qcow2"))
    }

    #[test]
    fn proxmox_names_are_read() {
        assert_eq!(layer("/x/snap_monday_vm-100-disk-0.qcow2"), "monday");
        assert_eq!(layer("/x/snap-before_update-vm-100-disk-0.qcow2"), "before_update");
        assert_eq!(layer("/dev/vg/snap_vm-100-disk-0_tuesday.qcow2"), "tuesday");
        assert_eq!(layer("snap_vm-100-disk-0.qcow2"), "snap_vm-100-disk-0");
        assert_eq!(layer("debian.qcow2"), "debian");
        let from_snapshot = of_layer(Path::new("snap_a_vm-1-disk-0.qcow2"), Path::new("snap_b_vm-1-disk-0.qcow2"));
        assert_eq!(from_snapshot, "a");
    }

    #[test]
    fn names_fit_and_differ() {
        assert_eq!(fitting("vor Update / 1", &[]), "vor-Update---1");
        assert_eq!(fitting("..", &[]), "layer");
        assert_eq!(fitting("é", &["layer".into()]), "layer-2");
        assert_eq!(fitting("a", &["a".into(), "a-2".into()]), "a-3");
        assert!(fitting(&"x".repeat(999), &[]).len() <= MAX_NAME);
    }
}
