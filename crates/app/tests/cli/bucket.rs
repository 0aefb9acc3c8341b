//! `bucket probe`: words, credentials, and stores that do not answer. Real stores are in the
//! end-to-end tests.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::harness::{command, run};

fn probe(words: &[&str]) -> Command {
    let mut command = command(&[&["bucket", "probe"], words].concat());
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"] {
        command.env_remove(name);
    }
    command
}

fn with_keys(words: &[&str]) -> Command {
    let mut command = probe(words);
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "a-secret");
    command
}

#[test]
fn wrong_addresses_and_options_end_with_2() {
    for (words, message) in [
        (&["pond/tank"][..], "s3://BUCKET/PREFIX"),
        (&["s3://pond/a//b"], "not usable"),
        (&["s3://pond", "-o", "endpiont=http://127.0.0.1"], "no option 'endpiont'"),
        (&["s3://pond", "-o", "endpoint=http://10.0.0.1:9000"], "insecure_http=on"),
        (&["s3://pond", "-o", "endpoint"], "NAME=VALUE"),
    ] {
        run(with_keys(words)).refused(2, message);
    }
}

#[test]
fn missing_credentials_are_named() {
    let dir = tempfile::tempdir().expect("tempdir");
    let file = dir.path().join("keys");
    let path = file.to_str().expect("UTF-8");
    let words = ["s3://pond", "-o", "endpoint=http://127.0.0.1:1", "--credentials", path];
    run(probe(&words[..3])).refused(1, "AWS_ACCESS_KEY_ID in the environment");
    run(probe(&words)).refused(1, "cannot be read");
    std::fs::write(&file, "AWS_ACCESS_KEY_ID=test\n").expect("writing");
    let warned = run(probe(&words));
    assert!(warned.code == 1 && warned.err.contains("chmod 600"), "{warned:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("mode");
    run(probe(&words)).refused(1, "no AWS_SECRET_ACCESS_KEY");
    std::fs::write(&file, "the secret\n").expect("writing");
    let ended = run(probe(&words));
    assert!(!ended.err.contains("the secret"), "{ended:?}");
    ended.refused(1, "line 1");
}

#[test]
fn a_store_that_does_not_answer_ends_with_1_and_a_next_step() {
    // a port on which nothing listens any more
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let endpoint = format!("endpoint=http://127.0.0.1:{port}");
    let ended = run(with_keys(&["s3://pond/a", "-o", &endpoint, "--format", "json"]));
    assert!(ended.out.is_empty() && !ended.err.contains("a-secret"), "{ended:?}");
    ended.refused(1, "check the endpoint and the network");
}

/// Loopback is this host: without TLS nothing goes to a proxy of the environment.
#[test]
fn no_proxy_sees_what_is_for_loopback() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a proxy");
    let url = format!("http://{}", proxy.local_addr().expect("an address"));
    let mut command = with_keys(&["s3://pond", "-o", &format!("endpoint=http://127.0.0.1:{port}")]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(name, &url);
    }
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    run(command).refused(1, "check the endpoint and the network");
    proxy.set_nonblocking(true).expect("does not wait");
    assert_eq!(proxy.accept().expect_err("nothing came").kind(), ErrorKind::WouldBlock);
}
