//! Addresses of exports.

use millpond_api::{CreateTls, NbdLimits};

use super::*;
use crate::state::TlsRecord;
use crate::tls::TlsFiles;

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
        let refused = nbd::tcp_address(text, false).expect_err(text);
        assert!(matches!(refused, nbd::AddressError::Open(_)), "{text}");
        assert!(ApiError::from(refused).message.contains("--insecure-listen"));
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
    assert_eq!(nbd::encoded_path("/vm+1,a=b;'x'"), "/vm%2B1%2Ca%3Db%3B%27x%27");
}

#[test]
fn encrypted_exports_have_uris_that_libnbd_takes() {
    let psk = TlsRecord {
        mode: TlsMode::Require,
        files: TlsFiles::Psk { keys: "/etc/my keys.psk".into() },
        identity: Some("al:ce@x".to_owned()),
        clients: Vec::new(),
    };
    let uris = nbd::uris(Some("/s"), Some("127.0.0.1:1"), Some(&psk));
    assert_eq!(
        uris,
        [
            "nbds+unix://al%3Ace%40x@/?socket=/s&tls-psk-file=/etc/my%20keys.psk",
            "nbds://al%3Ace%40x@127.0.0.1:1/?tls-psk-file=/etc/my%20keys.psk"
        ]
    );
    let files = TlsFiles::Certificate { cert: "/c".into(), key: "/k".into(), client_ca: None };
    let certificate = TlsRecord { mode: TlsMode::Require, files, identity: None, clients: Vec::new() };
    assert_eq!(nbd::uris(Some("/s"), Some("[::1]:1"), Some(&certificate)), ["nbds+unix:///?socket=/s", "nbds://[::1]:1"]);
    // Where TLS is not required, the plain URI works for every client.
    let allowed = TlsRecord { mode: TlsMode::Allow, ..psk };
    assert_eq!(nbd::uris(Some("/s"), None, Some(&allowed)), nbd::uris(Some("/s"), None, None));
}

#[test]
fn credentials_that_contradict_or_are_not_there_are_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write");
        Some(path.display().to_string())
    };
    let nothing = CreateTls {
        mode: TlsMode::Require,
        dir: None,
        cert: None,
        key: None,
        ca: None,
        verify_peer: false,
        psk: None,
        clients: Vec::new(),
    };
    let keys = file("keys.psk", &format!("alice:{}\n", "5a".repeat(16)));
    let here = Some(dir.path().display().to_string());
    let record = nbd::tls_record(&CreateTls { psk: keys.clone(), ..nothing.clone() }).expect("keys");
    assert_eq!(record.identity.as_deref(), Some("alice"));
    assert!(nbd::tls_offer(&record).expect("offer").required);
    assert_eq!(nbd::tls_record(&CreateTls { dir: here.clone(), ..nothing.clone() }), Ok(record));
    let junk = file("junk.pem", "no certificate");
    for (wrong, words) in [
        (nothing.clone(), "TLS needs one of"),
        (CreateTls { cert: junk.clone(), ..nothing.clone() }, "TLS needs one of"),
        (CreateTls { cert: junk.clone(), key: junk.clone(), ..nothing.clone() }, "junk.pem"),
        (CreateTls { cert: junk.clone(), key: junk.clone(), ca: junk.clone(), ..nothing.clone() }, "--tls-verify-peer"),
        (CreateTls { cert: junk.clone(), key: junk.clone(), verify_peer: true, ..nothing.clone() }, "--tls-verify-peer"),
        (CreateTls { psk: keys.clone(), verify_peer: true, ..nothing.clone() }, "--tls-verify-peer"),
        (CreateTls { psk: keys.clone(), clients: vec!["a".to_owned()], ..nothing.clone() }, "add --tls-verify-peer"),
        (CreateTls { psk: keys.clone(), dir: here.clone(), ..nothing.clone() }, "TLS needs one of"),
        (CreateTls { psk: Some("keys.psk".to_owned()), ..nothing.clone() }, "absolute"),
        (CreateTls { psk: Some("/none/keys.psk".to_owned()), ..nothing.clone() }, "cannot read"),
        (CreateTls { psk: junk, ..nothing.clone() }, "line 1"),
    ] {
        let message = nbd::tls_record(&wrong).expect_err(words).message;
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
    }
    // Both kinds in one directory: refused as ambiguous.
    file("server-cert.pem", "");
    assert!(nbd::tls_record(&CreateTls { dir: here, ..nothing }).expect_err("both").message.contains("name the files"));
}

#[test]
fn limits_of_an_export_win_over_those_of_the_daemon() {
    let general = NbdLimits { max_clients: Some(5), max_requests: None, handshake_seconds: Some(3) };
    let own = NbdLimits { max_clients: Some(2), ..NbdLimits::default() };
    let force = nbd::limits_in_force(&own, &general);
    assert_eq!((force.clients, force.requests, force.handshake.as_secs()), (2, 256, 3));
    let force = nbd::limits_in_force(&NbdLimits::default(), &NbdLimits::default());
    assert_eq!((force.clients, force.requests, force.handshake.as_secs()), (128, 256, 10));
    assert!(nbd::check_limits(&general).is_ok());
    for wrong in [
        NbdLimits { max_clients: Some(0), ..general },
        NbdLimits { max_clients: Some(513), ..general },
        NbdLimits { max_requests: Some(0), ..general },
        NbdLimits { max_requests: Some(5000), ..general },
        NbdLimits { handshake_seconds: Some(0), ..general },
        NbdLimits { handshake_seconds: Some(601), ..general },
    ] {
        assert!(nbd::check_limits(&wrong).is_err(), "{wrong:?}");
    }
}
