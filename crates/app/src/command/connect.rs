//! Ready-made lines to use an export.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::api::{Export, ExportTls};
use crate::daemon::reachable;

#[cfg(test)]
mod tests;

/// How other programs are told about an export; `None` where a program cannot do what the export asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// Options of `qemu-system-*`.
    pub qemu: Option<String>,
    /// Elements of a libvirt domain.
    pub libvirt: Option<String>,
    /// A command for a Proxmox VE host.
    pub proxmox: Option<String>,
    /// A command that makes a block device of it, with the kernel's client.
    pub nbd_client: Option<String>,
    /// A command that mounts a file system on that device, to be read.
    pub mount: Option<String>,
}

impl Lines {
    /// Each with the program's name.
    pub fn text(&self) -> String {
        let named = [
            ("QEMU", &self.qemu),
            ("libvirt", &self.libvirt),
            ("Proxmox VE", &self.proxmox),
            ("nbd-client", &self.nbd_client),
            ("mount", &self.mount),
        ];
        let mut text = String::new();
        for (name, line) in named {
            if let Some(line) = line {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{name}\n  {line}");
            }
        }
        text
    }
}

/// The address parts that clients want.
enum Server<'a> {
    Unix(&'a str),
    Tcp(String, String),
}

fn server(export: &Export) -> Option<Server<'_>> {
    if let Some(path) = &export.unix {
        return Some(Server::Unix(path));
    }
    let address = reachable(export.tcp.as_deref()?);
    let (host, port) = address.rsplit_once(':')?;
    Some(Server::Tcp(host.trim_matches(['[', ']']).to_owned(), port.to_owned()))
}

/// Logical and physical sector size of a profile, in bytes.
fn sectors(profile: &str) -> (u32, u32) {
    match profile {
        "512n" => (512, 512),
        "4kn" => (4096, 4096),
        _ => (512, 4096),
    }
}

/// Most disks have partitions; and a file system that a guest has mounted is destroyed by a second one who writes.
const MOUNT: &str = "mount -o ro /dev/nbd0p1 /mnt    # without partitions /dev/nbd0; never with a guest on it";

/// The lines for an export of a volume with a sector profile; `None` when it is of another kind or has no address.
pub fn lines(export: &Export, profile: &str) -> Option<Lines> {
    match export.kind.as_str() {
        "nbd" => {}
        "vhost-user" => return vhost_user(export.unix.as_deref()?),
        _ => return None,
    }
    let server = server(export)?;
    let sectors = sectors(profile);
    let qemu = qemu(export, &server, sectors);
    let nbd_client = nbd_client(export, &server, sectors.0);
    Some(Lines {
        libvirt: libvirt(export, &server, sectors),
        proxmox: Some(format!("qm set VMID --args {}", in_quotes(&qemu))),
        qemu: Some(qemu),
        mount: nbd_client.as_ref().map(|_| MOUNT.to_owned()),
        nbd_client,
    })
}

/// The guest's memory must be shared, which is said outside of the disk. Sectors and the right to write are told by the device itself.
fn vhost_user(socket: &str) -> Option<Lines> {
    let qemu = format!(
        "-object memory-backend-memfd,id=memory,size=MEMORY,share=on -machine memory-backend=memory \
         -chardev {} -device vhost-user-blk-pci,chardev=millpond0",
        shell(&format!("socket,id=millpond0,path={},reconnect=1", socket.replace(',', ",,")))
    );
    let libvirt = format!(
        "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking> <disk type='vhostuser' device='disk'>\
         <driver name='qemu' type='raw'/><source type='unix' path='{}'><reconnect enabled='yes' timeout='1'/></source>\
         <target dev='vda' bus='virtio'/></disk>",
        attribute(socket)
    );
    Some(Lines { qemu: Some(qemu), libvirt: Some(libvirt), ..Lines::default() })
}

/// A word as a shell takes it: in quotes where it has anything that a shell would read otherwise.
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "./_-=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { in_quotes(word) }
}

/// The same, in quotes in any case.
fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Text between single quotes in XML.
fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

fn has_keys(tls: &ExportTls) -> bool {
    tls.credentials == "psk"
}

/// The directory of client credentials: for keys the file's own, where it has the name that QEMU looks for.
fn credentials_dir(tls: &ExportTls) -> String {
    let keys = tls.files.first().map(Path::new).filter(|path| has_keys(tls) && path.file_name() == Some("keys.psk".as_ref()));
    let dir = keys.and_then(Path::parent).map(|dir| dir.display().to_string());
    dir.unwrap_or_else(|| if has_keys(tls) { "DIR_WITH_keys.psk".to_owned() } else { "/etc/pki/qemu".to_owned() })
}

fn qemu(export: &Export, server: &Server<'_>, (logical, physical): (u32, u32)) -> String {
    let node = "millpond0";
    let at = match server {
        Server::Unix(path) => format!("server.type=unix,server.path={}", path.replace(',', ",,")),
        Server::Tcp(host, port) => format!("server.type=inet,server.host={host},server.port={port}"),
    };
    let read_only = if export.readonly { ",read-only=on" } else { "" };
    let (mut object, mut creds) = (String::new(), String::new());
    if let Some(tls) = &export.tls {
        let dir = credentials_dir(tls).replace(',', ",,");
        "tls-creds=millpond0-tls".clone_into(&mut creds);
        if has_keys(tls) {
            let user = tls.identity.as_deref().unwrap_or("IDENTITY").replace(',', ",,");
            object = format!("tls-creds-psk,id=millpond0-tls,endpoint=client,dir={dir},username={user}");
        } else {
            object = format!("tls-creds-x509,id=millpond0-tls,endpoint=client,dir={dir}");
            // Over a unix socket there is no host name to find in the certificate.
            if matches!(server, Server::Unix(_)) {
                creds += ",tls-hostname=NAME_IN_CERTIFICATE";
            }
        }
        creds.insert(0, ',');
        object = format!("-object {} ", shell(&object));
    }
    // The server tells the guest's flushes and discards apart; a daemon that restarts is waited for.
    let blockdev = shell(&format!("driver=nbd,node-name={node},{at}{creds},discard=unmap,reconnect-delay=30{read_only}"));
    format!(
        "{object}-blockdev {blockdev} \
         -device virtio-blk-pci,drive={node},logical_block_size={logical},physical_block_size={physical}"
    )
}

/// libvirt knows TLS with certificates alone.
fn libvirt(export: &Export, server: &Server<'_>, (logical, physical): (u32, u32)) -> Option<String> {
    if export.tls.as_ref().is_some_and(has_keys) {
        return None;
    }
    let tls = match (&export.tls, server) {
        (None, _) => "",
        (Some(_), Server::Tcp(..)) => " tls='yes'",
        (Some(_), Server::Unix(_)) => " tls='yes' tlsHostname='NAME_IN_CERTIFICATE'",
    };
    let host = match server {
        Server::Unix(path) => format!("<host transport='unix' socket='{}'/>", attribute(path)),
        Server::Tcp(host, port) => format!("<host name='{host}' port='{port}'/>"),
    };
    let read_only = if export.readonly { "<readonly/>" } else { "" };
    Some(format!(
        "<disk type='network' device='disk'><driver name='qemu' type='raw' cache='none' discard='unmap'/>\
         <source protocol='nbd'{tls}>{host}<reconnect delay='30'/></source><target dev='vda' bus='virtio'/>\
         <blockio logical_block_size='{logical}' physical_block_size='{physical}'/>{read_only}</disk>"
    ))
}

/// nbd-client knows TLS with certificates alone, and needs their files.
fn nbd_client(export: &Export, server: &Server<'_>, block: u32) -> Option<String> {
    let tls = match &export.tls {
        None => String::new(),
        Some(tls) if has_keys(tls) => return None,
        Some(_) => {
            let dir = "/etc/pki/nbd";
            format!(
                " -enable-tls -cacertfile {dir}/ca-cert.pem -certfile {dir}/client-cert.pem -keyfile {dir}/client-key.pem -tlshostname NAME_IN_CERTIFICATE"
            )
        }
    };
    let at = match server {
        Server::Unix(path) => format!("-unix {}", in_quotes(path)),
        Server::Tcp(host, port) => format!("{host} {port}"),
    };
    let read_only = if export.readonly { " -readonly" } else { "" };
    Some(format!("nbd-client -N '{}' {at} /dev/nbd0 -b {block} -persist -timeout 60{read_only}{tls}", export.name))
}
