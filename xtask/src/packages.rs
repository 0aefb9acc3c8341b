//! The Debian packages that the end-to-end tests need.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs and their packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "build-essential"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("certtool", "gnutls-bin"),
    ("psktool", "gnutls-bin"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.fat", "dosfstools"),
    ("mcopy", "mtools"),
    ("sgdisk", "gdisk"),
    ("syslinux", "syslinux"),
    ("sfdisk", "fdisk"),
    ("mkfs.xfs", "xfsprogs"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("stress-ng", "stress-ng"),
    ("pgrep", "procps"),
    ("busybox", "busybox-static"),
    ("qemu-ga", "qemu-guest-agent"),
    ("virt-qemu-run", LIBVIRT.0),
    ("libvirtd", "libvirt-daemon"),
    ("virsh", "libvirt-clients"),
    ("promtool", "prometheus"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("mmdebstrap", "mmdebstrap"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("lintian", "lintian"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("skopeo", "skopeo"),
    ("umoci", "umoci"),
];
/// Package of the guest's kernel, which has no program to look for.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// Path and package of the guest's firmware, which has no program either.
const FIRMWARE: (&str, &str) = ("/usr/share/ovmf/OVMF.fd", "ovmf");
/// Package of libvirt's QEMU driver, and the user that it needs. That user is created by the
/// package of libvirt's daemon, which the tests do not need.
const LIBVIRT: (&str, &str) = ("libvirt-daemon-driver-qemu", "libvirt-qemu");

/// Returns the packages that are not installed.
pub fn missing() -> Vec<&'static str> {
    let mut missing: Vec<&str> = PROGRAMS.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package).collect();
    if !has_user() {
        missing.push(LIBVIRT.0);
    }
    if !has_kernel() {
        missing.push(KERNEL_PACKAGE);
    }
    if !Path::new(FIRMWARE.0).is_file() {
        missing.push(FIRMWARE.1);
    }
    missing.dedup();
    missing
}

/// Returns the path of a program.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Answers requests of packages to start their services: the tests need programs alone.
const NO_SERVICES: &str = "/usr/sbin/policy-rc.d";

/// Installs packages, and adds the user that libvirt needs. Starts no service. Needs root and apt.
///
/// # Errors
/// When not run as root, when there is no apt, or when apt fails.
pub fn install(packages: &[&str]) -> Result<()> {
    let id = Command::new("id").arg("-u").output().context("asking who runs this")?;
    ensure!(id.stdout.trim_ascii() == b"0", "--install needs root; run: sudo apt-get install -y {}", packages.join(" "));
    let apt = find("apt-get").context("no apt-get here; install by hand what the summary names as missing")?;
    let _no_services = NoServices::new()?;
    for arguments in [vec!["update", "-q"], [vec!["install", "-q", "-y", "--no-install-recommends"], packages.to_vec()].concat()] {
        let status = Command::new(&apt).args(&arguments).env("DEBIAN_FRONTEND", "noninteractive").status().context("starting apt-get")?;
        ensure!(status.success(), "apt-get {}: {status}", arguments.join(" "));
    }
    add_user()
}

/// While it exists, packages that are installed start no service, unless the machine has a policy of
/// its own.
struct NoServices {
    own: bool,
}

impl NoServices {
    fn new() -> Result<NoServices> {
        let own = !Path::new(NO_SERVICES).exists();
        if own {
            fs::write(NO_SERVICES, "#!/bin/sh\nexit 101\n").with_context(|| format!("writing {NO_SERVICES}"))?;
            fs::set_permissions(NO_SERVICES, fs::Permissions::from_mode(0o755)).with_context(|| format!("writing {NO_SERVICES}"))?;
        }
        Ok(NoServices { own })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.own {
            let _ = fs::remove_file(NO_SERVICES);
        }
    }
}

fn add_user() -> Result<()> {
    if has_user() {
        return Ok(());
    }
    let status = Command::new("useradd").args(["--system", "--user-group", LIBVIRT.1]).status().context("starting useradd")?;
    ensure!(status.success(), "useradd {}: {status}", LIBVIRT.1);
    Ok(())
}

fn has_user() -> bool {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    known.lines().any(|line| line.split(':').next() == Some(LIBVIRT.1))
}

fn has_kernel() -> bool {
    let images = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let versions = images.filter_map(|e| e.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned));
    versions.into_iter().any(|version| Path::new("/lib/modules").join(version).join("modules.dep").is_file())
}
