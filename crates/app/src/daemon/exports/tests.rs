//! Addresses of exports.

use super::*;

#[test]
fn addresses_have_defaults_and_stay_local() {
    for (text, address) in [
        ("127.0.0.1:5", "127.0.0.1:5"),
        ("127.0.0.1", "127.0.0.1:10809"),
        ("::1", "[::1]:10809"),
        ("[::1]:7", "[::1]:7"),
        (":7", "127.0.0.1:7"),
        ("7", "127.0.0.1:7"),
    ] {
        assert_eq!(nbd::tcp_address(text, false).map(|a| a.to_string()), Ok(address.to_owned()), "{text}");
    }
    for text in ["", "a:b", "127.0.0.1:99999", "1.2.3.4.5:1"] {
        assert!(nbd::tcp_address(text, true).is_err(), "{text}");
    }
}

#[test]
fn other_machines_need_consent() {
    for text in ["0.0.0.0:1", "[::]:1", "192.0.2.1:10809"] {
        assert!(nbd::tcp_address(text, false).expect_err(text).message.contains("--insecure-listen"));
        assert!(nbd::tcp_address(text, true).is_ok());
    }
}

#[test]
fn socket_paths_are_checked_before_the_kernel_is_asked() {
    let dir = tempfile::tempdir().expect("tempdir");
    assert!(check_socket(&dir.path().join("a.sock")).is_ok());
    assert!(check_socket(Path::new("a.sock")).is_err());
    assert!(check_socket(&dir.path().join("none/a.sock")).is_err());
    assert!(check_socket(&dir.path().join("x".repeat(120))).expect_err("long").message.contains("107"));
}

#[test]
fn paths_are_encoded_for_uris() {
    assert_eq!(nbd::encoded_path("/run/a-b_c.sock"), "/run/a-b_c.sock");
    assert_eq!(nbd::encoded_path("/a b&c%#?"), "/a%20b%26c%25%23%3F");
}
