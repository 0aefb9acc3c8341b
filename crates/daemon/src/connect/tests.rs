//! The lines carry address, sectors, encryption and the read-only state.

use millpond_api::{Access, ExportState, ExportTlsMode, GuestIo, NbdLimits};

use super::*;

fn export(unix: Option<&str>, tcp: Option<&str>, readonly: bool) -> Export {
    Export {
        id: 1,
        kind: ExportKind::Nbd,
        name: "p/v".to_owned(),
        address: String::new(),
        uris: Vec::new(),
        unix: unix.map(str::to_owned),
        tcp: tcp.map(str::to_owned),
        readonly,
        receive: false,
        tls: None,
        limits: NbdLimits::default(),
        access: Access::default(),
        queues: None,
        state: ExportState::Online,
        reason: None,
        clients: 0,
        connections: Vec::new(),
        io: GuestIo::default(),
        volumes: Vec::new(),
    }
}

fn with_tls(export: Export, credentials: TlsCredentials, file: &str) -> Export {
    let tls = ExportTls {
        mode: ExportTlsMode::Require,
        identity: (credentials == TlsCredentials::Psk).then(|| "alice".to_owned()),
        credentials,
        verify_peer: false,
        files: vec![file.to_owned()],
        clients: Vec::new(),
    };
    Export { tls: Some(tls), ..export }
}

#[test]
fn unix_is_preferred_and_commas_are_doubled() {
    let lines = lines(&export(Some("/a,b.sock"), Some("127.0.0.1:1"), false), &VolumeSector::S4kn).expect("lines");
    let [qemu, libvirt, proxmox, client] = [lines.qemu, lines.libvirt, lines.proxmox, lines.nbd_client].map(|line| line.expect("a line"));
    assert!(qemu.contains("server.path=/a,,b.sock") && qemu.contains("logical_block_size=4096") && !qemu.contains("tls"));
    assert!(libvirt.contains("socket='/a,b.sock'") && !libvirt.contains("<readonly/>"));
    assert!(proxmox.contains(&qemu));
    assert!(client.starts_with("nbd-client -N 'p/v' -unix '/a,b.sock' /dev/nbd0 -b 4096 "), "{client}");
    assert_eq!(lines.mount.as_deref(), Some(MOUNT));
}

#[test]
fn paths_with_blanks_and_quotes_are_one_word_of_a_shell() {
    let lines = lines(&export(Some("/vm's disk.sock"), None, false), &VolumeSector::S512e).expect("lines");
    let [qemu, proxmox, client] = [lines.qemu, lines.proxmox, lines.nbd_client].map(|line| line.expect("a line"));
    let word = "'driver=nbd,node-name=millpond0,server.type=unix,server.path=/vm'\\''s disk.sock,discard=unmap,reconnect-delay=30'";
    assert!(qemu.contains(&format!("-blockdev {word} -device")), "{qemu}");
    // the line is unquoted by one shell and split into words by another
    assert!(proxmox.contains("--args '-blockdev '\\''driver=nbd"), "{proxmox}");
    assert!(client.contains("-unix '/vm'\\''s disk.sock' /dev/nbd0"), "{client}");
    let guest = vhost_user("/run/vm 1.sock").and_then(|lines| lines.qemu).expect("a line");
    assert!(guest.contains("-chardev 'socket,id=millpond0,path=/run/vm 1.sock,reconnect=1' "), "{guest}");
    assert_eq!((shell("/run/a.sock"), shell("")), ("/run/a.sock".to_owned(), "''".to_owned()));
}

#[test]
fn tcp_loses_its_brackets_and_snapshots_are_read_only() {
    let lines = lines(&export(None, Some("[::1]:10809"), true), &VolumeSector::S512e).expect("lines");
    let (qemu, libvirt) = (lines.qemu.expect("a line"), lines.libvirt.expect("a line"));
    assert!(qemu.contains("server.host=::1,server.port=10809") && qemu.contains("read-only=on"));
    assert!(libvirt.contains("<readonly/>") && libvirt.contains("physical_block_size='4096'"));
    assert!(lines.nbd_client.expect("a line").contains(" -readonly"));
    assert_eq!(lines.mount.as_deref(), Some(MOUNT));
    assert_eq!(super::lines(&export(None, None, false), &VolumeSector::S512e), None);
    assert_eq!(super::lines(&Export { kind: ExportKind::Fuse, ..export(Some("/a"), None, false) }, &VolumeSector::S512e), None);
}

#[test]
fn encryption_is_told_to_those_who_can() {
    let keys = with_tls(export(Some("/s"), None, false), TlsCredentials::Psk, "/etc/m/keys.psk");
    let lines = super::lines(&keys, &VolumeSector::S512e).expect("lines");
    let qemu = lines.qemu.as_ref().expect("a line");
    assert!(
        qemu.contains("tls-creds-psk,id=millpond0-tls,endpoint=client,dir=/etc/m,username=alice -blockdev") && qemu.contains(",tls-creds=")
    );
    assert_eq!((&lines.libvirt, &lines.nbd_client, &lines.mount), (&None, &None, &None));
    assert!(!lines.text().contains("libvirt"));
    let other = with_tls(export(Some("/s"), None, false), TlsCredentials::Psk, "/etc/m/other");
    assert!(super::lines(&other, &VolumeSector::S512e).expect("lines").qemu.expect("a line").contains("dir=DIR_WITH_keys.psk"));

    let certificate = with_tls(export(None, Some("10.0.0.1:10809"), false), TlsCredentials::Certificate, "/etc/m/server-cert.pem");
    let lines = super::lines(&certificate, &VolumeSector::S512e).expect("lines");
    let qemu = lines.qemu.expect("a line");
    assert!(qemu.contains("tls-creds-x509") && !qemu.contains("tls-hostname"));
    assert!(lines.libvirt.expect("a line").contains("tls='yes'>"));
    assert!(lines.nbd_client.expect("a line").contains("-tlshostname"));
    let unix = with_tls(export(Some("/s"), None, false), TlsCredentials::Certificate, "/etc/m/server-cert.pem");
    assert!(super::lines(&unix, &VolumeSector::S512e).expect("lines").qemu.expect("a line").contains(",tls-hostname="));
}

#[test]
fn vhost_user_wants_shared_memory_and_xml_its_escapes() {
    let vhost = Export { kind: ExportKind::VhostUser, ..export(Some("/a,b'c.sock"), None, false) };
    let lines = super::lines(&vhost, &VolumeSector::S512e).expect("lines");
    let (qemu, libvirt) = (lines.qemu.expect("a line"), lines.libvirt.expect("a line"));
    assert!(qemu.contains("path=/a,,b'\\''c.sock,reconnect=1' -device vhost-user-blk-pci") && qemu.contains("share=on"), "{qemu}");
    assert!(libvirt.starts_with("<memoryBacking>") && libvirt.contains("path='/a,b&apos;c.sock'"), "{libvirt}");
    assert_eq!((lines.proxmox, lines.nbd_client, lines.mount), (None, None, None));
    let nbd = super::lines(&export(Some("/a&b"), None, false), &VolumeSector::S512e).expect("lines");
    assert!(nbd.libvirt.expect("a line").contains("socket='/a&amp;b'"));
}
