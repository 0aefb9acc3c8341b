//! Which exports count as existing, and what is read from a list.

use super::*;

fn listed(json: &str) -> Listed {
    serde_json::from_str(json).expect("an export")
}

#[test]
fn addresses_are_the_same_however_they_are_asked_for() {
    for (asked, has) in [
        ("127.0.0.1:99", "127.0.0.1:99"),
        ("99", "127.0.0.1:99"),
        (":99", "127.0.0.1:99"),
        ("0.0.0.0", "0.0.0.0:10809"),
        ("[::1]", "[::1]:10809"),
    ] {
        assert!(is_address(asked, has), "{asked} {has}");
    }
    assert!(!is_address("0.0.0.0", "127.0.0.1:10809") && !is_address("98", "127.0.0.1:99"));
}

#[test]
fn a_list_says_all_that_matters() {
    let nbd = listed(
        r#"{"id":4,"kind":"nbd","name":"p/v","address":"/s","unix":"/s","tcp":null,"readonly":true,"state":"online","clients":0,
            "tls":{"mode":"require","credentials":"certificate","verify_peer":true,"files":["/c","/k","/a"],"identity":null,"clients":["x"]},
            "max_clients":3,"uid":7,"mode":432,"uris":[],"io":{}}"#,
    );
    let CreateExport::Nbd(nbd) = nbd.request(true).expect("a request") else { panic!("NBD") };
    assert_eq!((nbd.name.as_str(), nbd.unix.as_deref(), nbd.readonly, nbd.insecure), ("p/v", Some("/s"), true, true));
    assert_eq!((nbd.limits.max_clients, nbd.access.uid, nbd.access.mode), (Some(3), Some(7), Some(0o660)));
    let tls = nbd.tls.expect("TLS");
    assert_eq!(
        (tls.mode, tls.cert.as_deref(), tls.key.as_deref(), tls.ca.as_deref()),
        (TlsMode::Require, Some("/c"), Some("/k"), Some("/a"))
    );
    assert!(tls.verify_peer && tls.clients == ["x"] && tls.psk.is_none());

    let vhost = listed(r#"{"kind":"vhost-user","name":"p/v","unix":"/s","queues":9}"#).request(false).expect("a request");
    assert!(matches!(vhost, CreateExport::VhostUser(CreateVhostUser { queues: Some(9), .. })));
    let fuse = listed(r#"{"kind":"fuse","name":"p","address":"/m","allow_other":true}"#).request(false).expect("a request");
    assert!(matches!(fuse, CreateExport::Fuse(CreateFuse { pool, dir, access }) if pool == "p" && dir == "/m" && access.allow_other));
    assert!(listed(r#"{"kind":"carrier-pigeon","name":"p"}"#).request(false).is_err());
    let later =
        r#"{"kind":"nbd","name":"p/v","tls":{"mode":"verify","credentials":"psk","verify_peer":false,"files":["/k"],"identity":null}}"#;
    assert!(listed(later).request(false).is_err_and(|why| why.to_string().contains("TLS mode 'verify'")));
}
