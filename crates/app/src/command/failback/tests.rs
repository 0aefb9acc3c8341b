//! Snapshots that each side has and the other lacks.

use millpond_api::instant::from_millis;

use super::*;

/// A snapshot that pool `by` took.
fn snapshot(by: char, id: u64, name: &str) -> Snapshot {
    let identity = SnapshotIdentity::new(&by.to_string().repeat(32), id, id, 1000 * id);
    let text = serde_json::json!({
        "name": name, "id": id, "created": from_millis(1000 * id).to_string(), "epoch": id, "size": 4096, "referenced_bytes": 0,
        "unique_bytes": 0, "holds": 0, "clones": 0, "description": "", "expires": null, "identity": identity,
    });
    serde_json::from_value(text).expect("a snapshot")
}

fn names(snapshots: &[&Snapshot]) -> Vec<String> {
    snapshots.iter().map(|snapshot| snapshot.name.clone()).collect()
}

#[test]
fn sides_are_compared_by_identity_and_names_in_the_way_are_found() {
    let here = vec![snapshot('a', 1, "t/v@1"), snapshot('a', 2, "t/v@2"), snapshot('a', 3, "t/v@same"), snapshot('a', 4, "t/v@4")];
    let there =
        vec![snapshot('a', 1, "o/v@1"), snapshot('a', 2, "o/v@renamed"), snapshot('b', 7, "o/v@failover-x"), snapshot('b', 8, "o/v@same")];
    let sides = Sides::of(here.clone(), there).expect("a common snapshot");
    assert_eq!((sides.common.0.name.as_str(), sides.common.1.name.as_str()), ("2", "renamed"));
    assert_eq!(names(&sides.only_here()), ["t/v@same", "t/v@4"]);
    assert_eq!(names(&sides.only_there()), ["o/v@failover-x", "o/v@same"]);
    assert_eq!(names(&sides.in_the_way()), ["t/v@same"]);
    assert!(Sides::of(here, vec![snapshot('b', 1, "o/v@1")]).is_err());
}
