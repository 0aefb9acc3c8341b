//! `export --if-missing` and `export --from`: finds exports that exist already, and makes the
//! exports of a list again, after the loss of the state directory or on another host.

use std::io::Read;
use std::path::Path;

use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::Name;
use millpond_api::{
    Access, CreateExport, CreateFuse, CreateNbd, CreateTls, CreateVhostUser, Export, ExportKind, ExportTls, ExportTlsMode, NbdLimits, Pool,
    Snapshot, TlsCredentials, TlsMode, Volume,
};
use serde::Deserialize;

use crate::output::write_out;

#[cfg(test)]
mod tests;

/// An export of the list: the fields of `exports --format json` that are needed to make it again.
#[derive(Clone, Debug, Deserialize)]
struct Listed {
    kind: ExportKind,
    name: String,
    #[serde(default)]
    address: String,
    unix: Option<String>,
    tcp: Option<String>,
    #[serde(default)]
    readonly: bool,
    tls: Option<ExportTls>,
    #[serde(flatten)]
    limits: NbdLimits,
    #[serde(flatten)]
    access: Access,
    queues: Option<u16>,
}

impl Listed {
    /// Returns the request that makes the export.
    fn request(self, insecure: bool) -> Outcome<CreateExport> {
        let Listed { kind, name, address, unix, tcp, readonly, tls, limits, access, queues } = self;
        Ok(match kind {
            ExportKind::Nbd => {
                let tls = tls.map(tls_request).transpose()?;
                let (force, transient) = (false, false);
                CreateExport::Nbd(CreateNbd { name, unix, tcp, readonly, force, transient, receive: false, insecure, tls, access, limits })
            }
            ExportKind::VhostUser => CreateExport::VhostUser(CreateVhostUser { name, unix, queues, readonly, force: false, access }),
            ExportKind::Fuse => CreateExport::Fuse(CreateFuse { pool: name, dir: address, access }),
            ExportKind::Other(other) => {
                return Err(Failure::failed(format!("the list has an export of kind '{other}', which this program cannot create")));
            }
        })
    }
}

/// Returns a request for the same encryption. For certificates, the files are certificate, key, and
/// the CA of client certificates, in this order.
fn tls_request(tls: ExportTls) -> Outcome<CreateTls> {
    let mode = match tls.mode {
        ExportTlsMode::Allow => TlsMode::Allow,
        ExportTlsMode::Require => TlsMode::Require,
        ExportTlsMode::Other(other) => {
            return Err(Failure::failed(format!("the list has TLS mode '{other}', which this program does not know")));
        }
    };
    let mut files = tls.files.into_iter();
    let mut request =
        CreateTls { mode, dir: None, cert: None, key: None, ca: None, verify_peer: tls.verify_peer, psk: None, clients: tls.clients };
    match tls.credentials {
        TlsCredentials::Psk => request.psk = files.next(),
        TlsCredentials::Certificate => (request.cert, request.key, request.ca) = (files.next(), files.next(), files.next()),
        TlsCredentials::Other(other) => {
            return Err(Failure::failed(format!("the list has TLS with '{other}', which this program does not know")));
        }
    }
    Ok(request)
}

/// Makes the exports of a list that do not exist yet. Before the first one is made, all pools,
/// volumes and snapshots are checked; afterwards a failed export does not stop the others.
///
/// # Errors
/// When the list cannot be read, or one of its objects does not exist: then no export was made. Or
/// when some exports could not be made: the first reason.
pub async fn run(client: &Client, file: &Path, insecure: bool) -> Outcome {
    let text = read(file)?;
    let listed: Vec<Listed> = serde_json::from_str(&text).map_err(|e| {
        Failure::failed(format!("{} is not a list of exports: {e}; give the output of 'millpond exports --format json'", file.display()))
    })?;
    let requests: Vec<CreateExport> = listed.into_iter().map(|listed| listed.request(insecure)).collect::<Outcome<_>>()?;
    for request in &requests {
        exists(client, request).await?;
    }
    let (mut failed, mut first) = (0, None);
    for request in &requests {
        let known: Vec<Export> = client.get("/v1/exports").await?;
        if let Some(export) = known.iter().find(|export| is_same(export, request)) {
            write_out(&format!("export {}  {}  is there already\n", export.id, export.name))?;
            continue;
        }
        match client.post::<_, Export>("/v1/exports", request).await {
            Ok(export) => write_out(&format!("export {}  {}  {}\n", export.id, export.name, export.address))?,
            Err(failure) => {
                failed += 1;
                first.get_or_insert(failure);
            }
        }
    }
    match first {
        None => Ok(()),
        Some(failure) => Err(Failure::failed(format!("{failed} of {} exports were not created; the first: {failure}", requests.len()))),
    }
}

/// Makes an export. With `if_missing`, an existing one that serves the same at the same address is
/// returned.
///
/// # Errors
/// The daemon's error.
pub async fn make(client: &Client, request: &CreateExport, if_missing: bool) -> Outcome<Export> {
    if if_missing {
        let known: Vec<Export> = client.get("/v1/exports").await?;
        if let Some(export) = known.into_iter().find(|export| is_same(export, request)) {
            return Ok(export);
        }
    }
    client.post("/v1/exports", request).await
}

fn read(file: &Path) -> Outcome<String> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|e| Failure::failed(format!("cannot read {}: {e}", file.display())))
}

/// Fails if the pool, volume or snapshot to serve does not exist.
async fn exists(client: &Client, request: &CreateExport) -> Outcome {
    let name = match request {
        CreateExport::Fuse(request) => return client.get::<Pool>(&format!("/v1/pools/{}", request.pool)).await.map(drop),
        CreateExport::Nbd(CreateNbd { name, .. }) | CreateExport::VhostUser(CreateVhostUser { name, .. }) => name,
    };
    match name.parse()? {
        Name::Volume(name) => client.get::<Volume>(&format!("/v1/volumes/{name}")).await.map(drop),
        Name::Snapshot(name) => client.get::<Snapshot>(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await.map(drop),
    }
}

/// Whether `export` serves the requested object at the requested address. A request without an
/// address matches any.
fn is_same(export: &Export, request: &CreateExport) -> bool {
    let serves = |kind: ExportKind, name: &str, readonly: bool| {
        export.kind == kind && export.name == name && (export.readonly == readonly || name.contains('@'))
    };
    let unix = |path: &Option<String>| path.as_ref().is_none_or(|path| export.unix.as_ref() == Some(path));
    match request {
        CreateExport::Nbd(nbd) => {
            let tcp = nbd.tcp.as_ref().is_none_or(|asked| export.tcp.as_ref().is_some_and(|has| is_address(asked, has)));
            serves(ExportKind::Nbd, &nbd.name, nbd.readonly) && unix(&nbd.unix) && tcp
        }
        CreateExport::VhostUser(vhost) => serves(ExportKind::VhostUser, &vhost.name, vhost.readonly) && unix(&vhost.unix),
        CreateExport::Fuse(fuse) => export.kind == ExportKind::Fuse && export.name == fuse.pool && export.address == fuse.dir,
    }
}

/// Whether a requested TCP address (`HOST:PORT`, `HOST`, `:PORT`, `PORT`) resolves to `has`.
fn is_address(asked: &str, has: &str) -> bool {
    let port = asked.strip_prefix(':').unwrap_or(asked);
    let with_port = if port.parse::<u16>().is_ok() { format!("127.0.0.1:{port}") } else { format!("{asked}:10809") };
    has == asked || has == with_port
}
