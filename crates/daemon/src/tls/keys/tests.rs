//! Key files, right and wrong.

use super::*;

const HEX: &str = "000102030405060708090a0b0c0d0e0F";

#[test]
fn lines_of_psktool_are_read_and_comments_are_not() {
    let Ok(keys) = parse(&format!("# for the lab\n\nalice:{HEX}\nbob:{HEX}{HEX}\n")) else { panic!("refused") };
    assert_eq!(keys.iter().map(|key| (key.identity.as_str(), key.key.len())).collect::<Vec<_>>(), [("alice", 16), ("bob", 32)]);
    assert_eq!(keys[0].key, (0..16).collect::<Vec<u8>>());
}

#[test]
fn the_first_wrong_line_is_named() {
    for (text, line) in [
        (String::new(), 0),
        ("# nothing\n".to_owned(), 0),
        ("alice".to_owned(), 1),
        (format!("alice:{HEX}\n:{HEX}"), 2),
        (format!("\nalice:{}", &HEX[2..]), 2),
        (format!("alice:{}x", &HEX[1..]), 1),
        (format!("alice:{HEX}0"), 1),
        (format!("alice:{HEX}\nalice:{HEX}"), 2),
        (format!("{}:{HEX}", "a".repeat(129)), 1),
        (format!("alice:{}", "00".repeat(65)), 1),
    ] {
        assert_eq!(parse(&text).err().map(|error| error.line), Some(line), "{text:?}");
    }
    let many: String = (0..101).map(|n| format!("id{n}:{HEX}\n")).collect();
    assert_eq!(parse(&many).err().map(|error| error.line), Some(101));
}
