//! Ready-made lines to use an export.

use serde::Serialize;

use crate::api::Export;

/// How other programs are told about an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// Options of `qemu-system-*`.
    pub qemu: String,
    /// An element of a libvirt domain.
    pub libvirt: String,
    /// A command for a Proxmox VE host.
    pub proxmox: String,
}

/// The address parts that QEMU and libvirt want.
enum Server<'a> {
    Unix(&'a str),
    Tcp(&'a str, &'a str),
}

fn server(export: &Export) -> Option<Server<'_>> {
    if let Some(path) = &export.unix {
        return Some(Server::Unix(path));
    }
    let (host, port) = export.tcp.as_deref()?.rsplit_once(':')?;
    Some(Server::Tcp(host.trim_matches(['[', ']']), port))
}

/// Logical and physical sector size of a profile, in bytes.
fn sectors(profile: &str) -> (u32, u32) {
    match profile {
        "512n" => (512, 512),
        "4kn" => (4096, 4096),
        _ => (512, 4096),
    }
}

/// The lines for an export of a volume with a sector profile; `None` when the export has no address.
pub fn lines(export: &Export, profile: &str) -> Option<Lines> {
    let server = server(export)?;
    let (logical, physical) = sectors(profile);
    let node = "millpond0";
    let at = match &server {
        Server::Unix(path) => format!("server.type=unix,server.path={}", path.replace(',', ",,")),
        Server::Tcp(host, port) => format!("server.type=inet,server.host={host},server.port={port}"),
    };
    let read_only = if export.readonly { ",read-only=on" } else { "" };
    // The server tells the guest's flushes and discards apart; a daemon that restarts is waited for.
    let qemu = format!(
        "-blockdev driver=nbd,node-name={node},{at},discard=unmap,reconnect-delay=30{read_only} \
         -device virtio-blk-pci,drive={node},logical_block_size={logical},physical_block_size={physical}"
    );
    let host = match &server {
        Server::Unix(path) => format!("<host transport='unix' socket='{path}'/>"),
        Server::Tcp(host, port) => format!("<host name='{host}' port='{port}'/>"),
    };
    let read_only = if export.readonly { "<readonly/>" } else { "" };
    let libvirt = format!(
        "<disk type='network' device='disk'><driver name='qemu' type='raw' cache='none' discard='unmap'/>\
         <source protocol='nbd'>{host}<reconnect delay='30'/></source><target dev='vda' bus='virtio'/>\
         <blockio logical_block_size='{logical}' physical_block_size='{physical}'/>{read_only}</disk>"
    );
    let proxmox = format!("qm set VMID --args '{qemu}'");
    Some(Lines { qemu, libvirt, proxmox })
}

#[cfg(test)]
mod tests {
    //! The lines carry address, sectors and the right to write.
    use super::*;
    use crate::api::GuestIo;

    fn export(unix: Option<&str>, tcp: Option<&str>, readonly: bool) -> Export {
        Export {
            id: 1,
            kind: "nbd".to_owned(),
            name: "p/v".to_owned(),
            address: String::new(),
            uris: Vec::new(),
            unix: unix.map(str::to_owned),
            tcp: tcp.map(str::to_owned),
            readonly,
            state: "online".to_owned(),
            reason: None,
            clients: 0,
            connections: Vec::new(),
            io: GuestIo::default(),
        }
    }

    #[test]
    fn unix_is_preferred_and_commas_are_doubled() {
        let lines = lines(&export(Some("/a,b.sock"), Some("127.0.0.1:1"), false), "4kn").expect("lines");
        assert!(lines.qemu.contains("server.path=/a,,b.sock") && lines.qemu.contains("logical_block_size=4096"));
        assert!(lines.libvirt.contains("socket='/a,b.sock'") && !lines.libvirt.contains("<readonly/>"));
        assert!(lines.proxmox.contains(&lines.qemu));
    }

    #[test]
    fn tcp_loses_its_brackets_and_snapshots_are_read_only() {
        let lines = lines(&export(None, Some("[::1]:10809"), true), "512e").expect("lines");
        assert!(lines.qemu.contains("server.host=::1,server.port=10809") && lines.qemu.contains("read-only=on"));
        assert!(lines.libvirt.contains("<readonly/>") && lines.libvirt.contains("physical_block_size='4096'"));
        assert_eq!(super::lines(&export(None, None, false), "512e"), None);
    }
}
