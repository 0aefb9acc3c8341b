//! Matching of patterns.

use super::*;

#[test]
fn stars_and_question_marks_stay_within_a_part() {
    for (pattern, text, fits) in [
        ("vm*", "vm1", true),
        ("vm*", "vm", true),
        ("vm?", "vm", false),
        ("vm?", "vm12", false),
        ("*", "", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-b-b-d", false),
        ("*-db", "x-db-db", true),
        ("**", "x", true),
        ("?*?", "x", false),
        ("vm.1", "vmx1", false),
    ] {
        assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
    }
    let has = |pattern: &str, name: &str| {
        let pattern = Pattern::parse(pattern).expect(pattern);
        if name.contains('@') { pattern.has_snapshot(name) } else { pattern.has_volume(name) }
    };
    assert!(has("tank/vm*", "tank/vm12") && !has("tank/vm*", "tank2/vm1") && !has("tank/*", "pond/a"));
    assert!(has("ta*/vm?", "tank/vm1") && !has("ta*", "pond/vm") && has("ta*", "tank/vm"));
    assert!(has("tank/vm1@auto-*", "tank/vm1@auto-3") && !has("tank/vm1@auto-*", "tank/vm1@hand"));
    assert!(has("tank/*@a", "tank/x@a") && !has("tank/*@a", "tank/x@b"));
    // `*` does not match across '@': this pattern stands for volumes, and for all of their
    // snapshots
    assert!(!has("tank/v*", "tank/w@v1") && has("tank/v*", "tank/v@1"));
}

#[test]
fn what_could_be_no_name_is_wrong_usage() {
    for (text, word) in [("tank/vm*\u{2013}x", "EN DASH"), ("tank/v m*", "not allowed"), ("*/", "empty"), ("tank/v@*@b", "not allowed")] {
        let failure = Pattern::parse(text).expect_err(text);
        assert!(failure.code == millpond_api::failure::Code::Usage && failure.to_string().contains(word), "{text}: {failure}");
    }
    assert!(Pattern::parse("tank/v/*").is_err() && Pattern::parse("tank/-*").is_err() && Pattern::parse("*/*@*").is_ok());
}
