//! Ready-made command lines and XML with which clients use an export.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use millpond_api::{Export, ExportKind, ExportTls, TlsCredentials, VolumeSector};
use utoipa::ToSchema;

use crate::exports::reachable;

#[cfg(test)]
mod tests;

/// Configuration of client programs for an export. `None` where a program does not support what the
/// export requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ClientLines)]
pub struct Lines {
    /// Options of `qemu-system-*`.
    pub qemu: Option<String>,
    /// Elements of a libvirt domain.
    pub libvirt: Option<String>,
    /// Command for a Proxmox VE host.
    pub proxmox: Option<String>,
    /// `nbd-client` command that makes a block device of the export.
    pub nbd_client: Option<String>,
    /// Command that mounts a file system of this block device read-only.
    pub mount: Option<String>,
}

impl Lines {
    /// Formats the lines, each below the name of its program.
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
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{name}\n  {line}");
            }
        }
        text
    }
}

/// Address of an NBD server, in the parts that clients take.
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
fn sectors(profile: &VolumeSector) -> (u32, u32) {
    match profile {
        VolumeSector::S512n => (512, 512),
        VolumeSector::S4kn => (4096, 4096),
        VolumeSector::S512e | VolumeSector::Other(_) => (512, 4096),
    }
}

/// Most disks have partitions. The mount is read-only because a second writer destroys a file
/// system that a guest has mounted.
const MOUNT: &str = "mount -o ro /dev/nbd0p1 /mnt    # without partitions /dev/nbd0; never with a guest on it";

/// Builds the lines for an export of a volume with a sector profile. `None` if the export is of
/// another kind or has no address.
pub fn lines(export: &Export, profile: &VolumeSector) -> Option<Lines> {
    match export.kind {
        ExportKind::Nbd => {}
        ExportKind::VhostUser => return vhost_user(export.unix.as_deref()?),
        ExportKind::Fuse | ExportKind::Other(_) => return None,
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

/// Lines for a vhost-user export. The guest's memory must be shared, which QEMU and libvirt
/// configure outside the disk. Sector size and read-only state are reported by the device itself.
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

/// Quotes a word for a shell if it contains characters that a shell interprets.
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "./_-=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { in_quotes(word) }
}

/// Quotes a word for a shell.
fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Escapes text for an XML attribute in single quotes.
fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

fn has_keys(tls: &ExportTls) -> bool {
    tls.credentials == TlsCredentials::Psk
}

/// Directory of the client's credentials. For PSK it is the directory of the key file, if the file
/// has the name `keys.psk`, which QEMU requires.
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
            // Over a unix socket QEMU knows no host name to check the certificate against.
            if matches!(server, Server::Unix(_)) {
                creds += ",tls-hostname=NAME_IN_CERTIFICATE";
            }
        }
        creds.insert(0, ',');
        object = format!("-object {} ", shell(&object));
    }
    // `discard=unmap` passes the guest's discards on; `reconnect-delay` waits for a daemon that
    // restarts.
    let blockdev = shell(&format!("driver=nbd,node-name={node},{at}{creds},discard=unmap,reconnect-delay=30{read_only}"));
    format!(
        "{object}-blockdev {blockdev} \
         -device virtio-blk-pci,drive={node},logical_block_size={logical},physical_block_size={physical}"
    )
}

/// libvirt supports TLS with certificates only.
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

/// nbd-client supports TLS with certificates only, and needs the paths of their files.
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
