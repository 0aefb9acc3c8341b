//! The Debian package.

use super::licences::Licences;
use super::programs::Programs;
use super::{Options, Staging, epoch, output};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory with the documents of the package.
const DOC: &str = "usr/share/doc/millpond";
/// The maintainer: `authors` of the workspace.
const MAINTAINER: &str = env!("CARGO_PKG_AUTHORS");

/// Files of the repository, the paths at which they are installed, and modes.
const FILES: [(&str, &str, u32); 15] = [
    ("packaging/systemd/millpond.service", "lib/systemd/system/millpond.service", 0o644),
    ("packaging/systemd/millpond.socket", "lib/systemd/system/millpond.socket", 0o644),
    ("packaging/systemd/sysusers.conf", "usr/lib/sysusers.d/millpond.conf", 0o644),
    ("packaging/systemd/tmpfiles.conf", "usr/lib/tmpfiles.d/millpond.conf", 0o644),
    ("packaging/millpond.toml", "etc/millpond/millpond.toml", 0o644),
    ("packaging/apparmor/libvirt-qemu", "etc/apparmor.d/abstractions/libvirt-qemu.d/millpond", 0o644),
    ("packaging/examples/fuse.conf", "usr/share/doc/millpond/examples/fuse.conf", 0o644),
    ("integrations/grafana/millpond.json", "usr/share/millpond/grafana/millpond.json", 0o644),
    ("integrations/prometheus/millpond.rules.yml", "usr/share/millpond/prometheus/millpond.rules.yml", 0o644),
    ("integrations/proxmox/MillpondPlugin.pm", "usr/share/millpond/proxmox/MillpondPlugin.pm", 0o644),
    ("README.md", "usr/share/doc/millpond/README.md", 0o644),
    ("packaging/debian/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/debian/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/debian/postrm", "DEBIAN/postrm", 0o755),
    ("packaging/debian/conffiles", "DEBIAN/conffiles", 0o644),
];

/// Builds the package; returns its path.
///
/// # Errors
/// A build fails, or a program of `dpkg-dev` or `binutils` is missing.
pub fn deb(root: &Path, options: &Options) -> Result<PathBuf> {
    // Debian's part of the version begins with a revision of the package
    let version = if options.version.contains('-') { options.version.clone() } else { format!("{}-1", options.version) };
    let programs = Programs::for_host(root, options)?;
    fs::create_dir_all(&options.out).with_context(|| format!("making {}", options.out.display()))?;
    let staging = Staging::new(&options.out, "deb")?;
    for name in ["millpond", "millpond-lab"] {
        programs.install(name, &staging, &format!("usr/bin/{name}"))?;
    }
    programs.write_help(&staging, "usr/share", true)?;
    for (from, to, mode) in FILES {
        staging.copy(&root.join(from), to, mode)?;
    }
    add_documents(root, &staging, &version)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let depends = libraries(&staging)?;
    staging.write("DEBIAN/md5sums", 0o644, sums(&staging)?.as_bytes())?;
    let control = format!(
        "Package: millpond\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\n\
         Depends: {depends}, init-system-helpers (>= 1.54~), systemd (>= 252)\n{}",
        kibibytes(&staging)?,
        fs::read_to_string(root.join("packaging/debian/control")).context("packaging/debian/control")?
    );
    staging.write("DEBIAN/control", 0o644, control.as_bytes())?;
    let package = options.out.join(format!("millpond_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(staging.path()).arg(&package);
    output(build.env("SOURCE_DATE_EPOCH", epoch(root)?))?;
    Ok(package)
}

/// Adds changelogs, licences, and the pages of `docs` with their pictures.
fn add_documents(root: &Path, staging: &Staging, version: &str) -> Result<()> {
    for folder in ["", "/reference", "/pictures"] {
        let pages = fs::read_dir(root.join(format!("docs{folder}"))).context("reading docs")?;
        let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md" || end == "svg");
        for page in pages.flatten().map(|entry| entry.path()).filter(is_page) {
            let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
            staging.copy(&page, &format!("{DOC}{folder}/{name}"), 0o644)?;
        }
    }
    let changes = fs::read(root.join("CHANGELOG.md")).context("CHANGELOG.md")?;
    staging.write_compressed(&format!("{DOC}/changelog.gz"), &changes)?;
    let date = output(Command::new("date").args(["--utc", "--rfc-email", "-d"]).arg(format!("@{}", epoch(root)?)))?;
    let entry = format!("millpond ({version}) stable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}");
    staging.write_compressed(&format!("{DOC}/changelog.Debian.gz"), entry.as_bytes())?;
    let licences = Licences::of_programs(root)?;
    let header = fs::read_to_string(root.join("packaging/debian/copyright")).context("packaging/debian/copyright")?;
    staging.write(&format!("{DOC}/copyright"), 0o644, format!("{header}{}", licences.table()).as_bytes())?;
    staging.write_compressed(&format!("{DOC}/licences-of-crates.txt.gz"), licences.texts().as_bytes())
}

/// Returns the packages of the libraries that the programs need, as `dpkg-shlibdeps` finds them.
fn libraries(staging: &Staging) -> Result<String> {
    let work = Staging::new(staging.path().parent().context("a directory above")?, "shlibdeps")?;
    work.write("debian/control", 0o644, b"Source: millpond\n\nPackage: millpond\nArchitecture: any\n")?;
    let mut find = Command::new("dpkg-shlibdeps");
    find.arg("-O").args(["millpond", "millpond-lab"].map(|name| staging.path().join("usr/bin").join(name))).current_dir(work.path());
    let found = output(&mut find)?;
    let depends = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends=")).unwrap_or_default().to_owned();
    ensure!(depends.contains("libc6"), "dpkg-shlibdeps finds no C library: {found}");
    Ok(depends)
}

fn installed(staging: &Staging) -> Result<Vec<PathBuf>> {
    Ok(staging.files()?.into_iter().filter(|path| !path.starts_with("DEBIAN")).collect())
}

/// Returns the sums of all files that are no configuration.
fn sums(staging: &Staging) -> Result<String> {
    let files = installed(staging)?.into_iter().filter(|path| !path.starts_with("etc"));
    output(Command::new("md5sum").args(files).current_dir(staging.path()))
}

fn kibibytes(staging: &Staging) -> Result<u64> {
    let sizes = installed(staging)?.into_iter().map(|path| Ok(fs::metadata(staging.path().join(path))?.len().div_ceil(1024)));
    sizes.sum()
}
