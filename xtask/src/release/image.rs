//! The OCI image: an archive of an image layout (OCI Image Format Specification 1.0) with one layer.

use super::licences::Licences;
use super::programs::Programs;
use super::{Options, Staging, epoch, output, pack};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Directories that outlive a container: the state with files of pools, and sockets.
const VOLUMES: [&str; 2] = ["/var/lib/millpond", "/run/millpond"];

/// Builds the image; returns the path of its archive.
///
/// # Errors
/// A build fails, or the program is linked dynamically.
pub fn image(root: &Path, options: &Options) -> Result<PathBuf> {
    let programs = Programs::linked_statically(root, options)?;
    fs::create_dir_all(&options.out).with_context(|| format!("making {}", options.out.display()))?;
    let epoch = epoch(root)?;
    let (files, layout) = (Staging::new(&options.out, "layer")?, Staging::new(&options.out, "layout")?);
    programs.install("millpond", &files, "usr/bin/millpond")?;
    files.copy(&root.join("LICENSE"), "usr/share/doc/millpond/LICENSE", 0o644)?;
    files.write("usr/share/doc/millpond/licences-of-crates.txt", 0o644, Licences::of_programs(root)?.texts().as_bytes())?;
    files.write("etc/passwd", 0o644, b"root:x:0:0:root:/:/usr/bin/millpond\n")?;
    files.write("etc/group", 0o644, b"root:x:0:\n")?;

    let layer = layout.path().join("layer.tar");
    pack(files.path(), &layer, &epoch)?;
    let uncompressed = sha256(&layer)?;
    output(Command::new("gzip").args(["-9", "-n"]).arg(&layer))?;
    let layer = blob(&layout, &fs::read(layer.with_extension("tar.gz")).context("the layer")?, LAYER)?;
    fs::remove_file(layout.path().join("layer.tar.gz")).context("the layer")?;
    let config = configuration(&uncompressed, &time(&epoch)?, &options.version);
    let config = blob(&layout, config.to_string().as_bytes(), CONFIG)?;
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
    let mut manifest = blob(&layout, manifest.to_string().as_bytes(), MANIFEST)?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": options.version });
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    layout.write("index.json", 0o644, json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string().as_bytes())?;
    layout.write("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
    let archive = options.out.join(format!("millpond-{}.oci.tar", options.version));
    pack(layout.path(), &archive, &epoch)?;
    Ok(archive)
}

fn configuration(layer: &str, created: &str, version: &str) -> Value {
    let volumes: serde_json::Map<String, Value> = VOLUMES.iter().map(|dir| ((*dir).to_owned(), json!({}))).collect();
    json!({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/millpond"],
            "Cmd": ["serve", "--socket", "/run/millpond/control.sock", "--state", "/var/lib/millpond"],
            "Env": ["PATH=/usr/bin"],
            "Volumes": volumes,
            "ExposedPorts": { "10809/tcp": {} },
            "StopSignal": "SIGTERM",
            "Labels": { "org.opencontainers.image.title": "millpond", "org.opencontainers.image.version": version,
                        "org.opencontainers.image.licenses": "Apache-2.0" },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created": created, "created_by": "cargo xtask image" }],
    })
}

/// Stores bytes below their digest; returns their descriptor.
fn blob(layout: &Staging, bytes: &[u8], media_type: &str) -> Result<Value> {
    layout.write("blob", 0o644, bytes)?;
    let from = layout.path().join("blob");
    let digest = sha256(&from)?;
    layout.copy(&from, &format!("blobs/sha256/{digest}"), 0o644)?;
    fs::remove_file(&from).context("a blob")?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}

fn sha256(path: &Path) -> Result<String> {
    let line = output(Command::new("sha256sum").arg(path))?;
    line.split_whitespace().next().map(str::to_owned).context("the output of sha256sum")
}

fn time(epoch: &str) -> Result<String> {
    let date =
        Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{epoch}")).output().context("starting date")?;
    Ok(String::from_utf8(date.stdout).context("the output of date")?.trim().to_owned())
}
