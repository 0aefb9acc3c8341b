use super::*;

/// Made by GnuTLS's certtool: a subject with organization and common name, and alternative names of
/// every kind that is read.
const CLIENT: &[u8] = include_bytes!("client.der");

#[test]
fn a_certificate_has_the_names_that_were_put_in() {
    let mut names: Vec<String> = of_certificate(CLIENT).into_iter().map(|name| name.text).collect();
    names.sort();
    let expected = ["192.0.2.7", "2001:db8::7", "Host-1.example.org", "backup client", "backup@example.org", "spiffe://example.org/backup"];
    assert_eq!(names, expected);
    let has = |listed: &str| of_certificate(CLIENT).iter().any(|name| name.is(listed));
    assert!(has("backup client") && has("host-1.EXAMPLE.org") && has("192.0.2.7"));
    // Case matters except in DNS names; the organization and a part of a name match nothing.
    assert!(!has("Backup Client") && !has("Example") && !has("example.org") && !has("backup") && !has(""));
}

#[test]
fn a_chain_begins_with_the_client() {
    let length = (CLIENT.len() as u32).to_be_bytes();
    let chain = [&length[1..], CLIENT, &[0, 0]].concat();
    assert_eq!(of_chain(&chain), of_certificate(CLIENT));
    assert!(of_chain(&chain[..chain.len() - 10]).is_empty() && of_chain(&[0]).is_empty() && of_chain(&[]).is_empty());
}

#[test]
fn damage_is_read_without_panic_and_invents_nothing() {
    let whole = of_certificate(CLIENT).len();
    for end in 0..CLIENT.len() {
        assert!(of_certificate(&CLIENT[..end]).len() <= whole);
    }
    for place in 0..CLIENT.len() {
        for bit in 0..8 {
            let mut damaged = CLIENT.to_vec();
            damaged[place] ^= 1 << bit;
            assert!(of_certificate(&damaged).len() <= MOST);
        }
    }
    for kind in 0..=255 {
        let _ = of_certificate(&[kind; 64]);
        let _ = of_certificate(&[SEQUENCE, 0x83, 0xff, 0xff, 0xff, kind]);
    }
}
