//! Packages: the Debian package in a guest that boots a clean Debian tree with systemd, the static
//! tarball, and the OCI image.

use super::debian::{Machine, Tree};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::guest::Kernel;
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::{Daemon, find_tool, run_command, run_tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Versions of the two packages; the second one is an upgrade of the first one.
const VERSIONS: [&str; 2] = ["0.1.0~e2e1-1", "0.1.0~e2e2-1"];
/// Packages of the clean tree; `qemu-utils` has the client that writes during the upgrade, and
/// `qemu-system-x86` runs a guest over vhost-user meanwhile.
const INCLUDED: &str = "systemd,systemd-sysv,udev,dbus,qemu-utils,qemu-system-x86";
/// Boot sector of that guest.
const SECTOR: &str = include_str!("guest_sector.s");
/// Bytes of that guest's disk.
const SECTOR_DISK_BYTES: u64 = 1 << 20;
/// Bytes of the guest's root file system and of its second disk, on which a pool is made.
const ROOT_BYTES: u64 = 2 << 30;
const DISK_BYTES: u64 = 256 << 20;
/// Memory of the guest in MiB.
const MEMORY: u32 = 384;
const PATIENCE: Duration = Duration::from_secs(60);

/// Life of the package: installation, use, upgrade under a client, removal, purge, and import of
/// the pools by a new installation.
const SCRIPT: &str = r#"#!/bin/sh -ex
export SYSTEMD_PAGER= SYSTEMD_COLORS=0 DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -y -o Dpkg::Use-Pty=0 -o Dpkg::Progress-Fancy=0 "$@" > /tmp/apt 2>&1 || { cat /tmp/apt; false; }; }
pid() { systemctl show -P MainPID millpond.service; }
online() { i=0; until [ "$(millpond exports -H -o state | sort -u)" = online ]; do i=$((i + 1)); [ $i -lt 120 ] || return 1; sleep 1; done; }
steps() { if [ -e /tmp/steps ]; then wc -c < /tmp/steps; else echo 0; fi; }
# the guest over vhost-user writes and reads on, without an error
goes_on() {
  begin=$(steps)
  i=0
  until [ "$(steps)" -gt $((begin + 20)) ]; do
    i=$((i + 1))
    [ $i -lt 300 ] || return 1
    kill -0 $guest
    sleep 1
  done
  if grep -q E /tmp/steps; then return 1; fi
}
disk=driver=nbd,server.type=unix,server.path=/run/millpond/tank.disk.sock,export=tank/disk,reconnect-delay=120

# installation
apt install /packages/old.deb
systemd-analyze verify --man=no millpond.service millpond.socket
systemd-analyze security --threshold=30 millpond.service > /tmp/security
tail -n 1 /tmp/security
systemctl is-enabled millpond.service millpond.socket
millpond status --wait 60
test "$(stat -c %U /proc/$(pid))" = millpond
for file in bash-completion/completions/millpond zsh/vendor-completions/_millpond fish/vendor_completions.d/millpond.fish \
  man/man1/millpond-pool-create.1.gz millpond/proxmox/MillpondPlugin.pm millpond/prometheus/millpond.rules.yml \
  millpond/grafana/millpond.json doc/millpond/copyright doc/millpond/licences-of-crates.txt.gz doc/millpond/install.md; do
  test -s /usr/share/$file
done

# block device, file of a pool, sockets
millpond pool create tank /dev/vdb
millpond pool create lake /var/lib/millpond/pools/lake.img:256M
install -d -o millpond /srv/pools
millpond pool create brook /srv/pools/brook.img:256M
millpond pool destroy -y brook
millpond create tank/disk -L 64M
millpond export nbd tank/disk
millpond create lake/given -L 16M
millpond export nbd lake/given --owner nobody:nogroup
test "$(stat -c '%U:%G %a' /run/millpond/lake.given.sock)" = 'nobody:nogroup 660'
useradd keeper -G millpond
useradd stranger
runuser -u keeper -- millpond pool list -H -o name
if runuser -u stranger -- millpond pool list; then false; else test $? = 3; fi

# after a crash everything is there again
killed=$(pid)
kill -9 $killed
i=0; until [ "$(pid)" != 0 ] && [ "$(pid)" != $killed ]; do i=$((i + 1)); [ $i -lt 60 ]; sleep 1; done
millpond status --wait 60
online
test "$(stat -c '%U:%G %a' /run/millpond/lake.given.sock)" = 'nobody:nogroup 660'

# a guest over vhost-user
millpond import-image /packages/guest.img tank/guest
millpond export vhost-user tank/guest --unix /run/millpond/tank.guest.vu
qemu-system-x86_64 -machine pc,accel=tcg,memory-backend=memory -m 64 -object memory-backend-memfd,id=memory,size=64M,share=on \
  -nodefaults -no-user-config -display none -serial file:/tmp/steps \
  -chardev socket,id=disk,path=/run/millpond/tank.guest.vu,reconnect=1 -device vhost-user-blk-pci,chardev=disk,bootindex=0 &
guest=$!
goes_on

# upgrade while a client writes, and the guest does
echo '# of the administrator' >> /etc/millpond/millpond.toml
millpond set iops=60 tank/disk
qemu-img bench -w -d 8 -s 4096 -S 4096 -c 16384 --pattern=167 --flush-interval=32 --no-drain --image-opts $disk > /tmp/bench 2>&1 &
writer=$!
sleep 2
old=$(pid)
apt install /packages/new.deb
test "$(pid)" != "$old"
test "$(dpkg-query -W -f '${Version}' millpond)" = "$(dpkg-deb -f /packages/new.deb Version)"
kill -0 $writer || { cat /tmp/bench; false; }
millpond status --wait 60
goes_on
kill $guest
wait $guest || true
echo "STEPS $(steps)"
millpond set iops=none tank/disk
wait $writer || { cat /tmp/bench; false; }
qemu-io -r --image-opts $disk -c 'read -P 167 0 64M' | tee /tmp/read
if grep -q 'failed' /tmp/read; then false; fi
grep -q '# of the administrator' /etc/millpond/millpond.toml

# FUSE with the drop-in, and back
if millpond export fuse tank /mnt/tank; then false; fi
mkdir -p /etc/systemd/system/millpond.service.d
cp /usr/share/doc/millpond/examples/fuse.conf /etc/systemd/system/millpond.service.d/
systemctl daemon-reload
systemctl restart millpond.service
millpond status --wait 60
millpond export fuse tank /mnt/tank
test "$(stat -c %s /mnt/tank/disk)" = 67108864
findmnt /mnt/tank
millpond unexport /mnt/tank
rm -r /etc/systemd/system/millpond.service.d
systemctl daemon-reload
systemctl restart millpond.service
millpond status --wait 60
online

# removal keeps configuration, state and pools
apt remove millpond
test -e /etc/millpond/millpond.toml
test -e /var/lib/millpond/state.json
test ! -e /run/millpond/control.sock
test ! -e /usr/bin/millpond
if systemctl is-active millpond.service; then false; fi
sums=$(sha256sum /dev/vdb /var/lib/millpond/pools/lake.img)

# purge keeps pools
apt purge millpond
cat /tmp/apt
grep -q '^  /dev/vdb$' /tmp/apt
grep -q '^  /var/lib/millpond/pools/lake.img$' /tmp/apt
test ! -e /etc/millpond
test "$(ls -A /var/lib/millpond)" = pools
test ! -e /run/millpond
test -z "$(find /etc/systemd /var/lib/systemd -name '*millpond*')"
test "$sums" = "$(sha256sum /dev/vdb /var/lib/millpond/pools/lake.img)"

# a new installation finds them
apt install /packages/new.deb
millpond status --wait 60
test -z "$(millpond pool list -H -o name)"
millpond pool import tank -d /dev
millpond pool import lake -d /var/lib/millpond/pools
millpond export nbd tank/disk
qemu-io -r --image-opts $disk -c 'read -P 167 0 64M' | tee /tmp/read
if grep -q 'failed' /tmp/read; then false; fi
millpond status --check || { test $? = 1; millpond status --check || true; }
"#;

/// The Debian package.
pub fn debian(subject: &mut Subject) -> Result<()> {
    let dir = subject.dir().to_owned();
    let packages = VERSIONS.iter().map(|version| xtask(&["deb", "--version", version], &dir)).collect::<Result<Vec<_>>>()?;
    if find_tool("lintian").is_some() {
        run_command(Command::new("lintian").args(["--allow-root", "--fail-on", "error"]).arg(&packages[0]))?;
    } else {
        println!("SKIPPED packages: lintian is not installed, the package is not checked with it");
    }
    let tree = match Tree::bootstrap(&dir, "packages", INCLUDED) {
        Ok(tree) => tree,
        Err(error) => {
            println!("SKIPPED packages: no clean Debian tree, so nothing is installed: {error:#}");
            return Ok(());
        }
    };
    for (package, name) in packages.iter().zip(["old.deb", "new.deb"]) {
        tree.copy(package, &format!("packages/{name}"))?;
    }
    let image = dir.join("guest.img");
    fs::write(&image, guest_disk(&dir)?)?;
    tree.copy(&image, "packages/guest.img")?;
    let (kernel, disk) = (Kernel::find()?, dir.join("disk.img"));
    fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    let options = vec!["-drive".to_owned(), format!("file={},format=raw,if=virtio,cache=unsafe", disk.display())];
    let machine = Machine { kernel: &kernel, root: ROOT_BYTES, memory: MEMORY, options };
    tree.boot(&dir, &machine, SCRIPT)?.finish()
}

/// Runs `cargo xtask` with the programs that were built for the tests; returns the path that it
/// prints.
pub(super) fn xtask(words: &[&str], dir: &Path) -> Result<PathBuf> {
    let program = millpond_binary()?;
    let built = program.parent().context("the directory of the programs")?;
    xtask_on(words, built, dir)
}

fn xtask_on(words: &[&str], built: &Path, dir: &Path) -> Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).arg("xtask").args(words);
    let said = run_command(command.arg("--built").arg(built).arg("--out").arg(dir))?;
    said.lines().last().map(|line| PathBuf::from(line.trim())).context("xtask prints no path")
}

/// Returns the content of the disk of the guest over vhost-user: its boot sector, and zeroes.
fn guest_disk(dir: &Path) -> Result<Vec<u8>> {
    let [source, object, sector] = ["guest.s", "guest.o", "guest.bin"].map(|name| dir.join(name));
    fs::write(&source, SECTOR)?;
    run_command(Command::new("as").arg("--32").arg("-o").arg(&object).arg(&source))?;
    let at = ["-m", "elf_i386", "-e", "0x7c00", "-Ttext", "0x7c00", "--oformat", "binary", "-o"];
    run_command(Command::new("ld").args(at).arg(&sector).arg(&object))?;
    let mut disk = fs::read(&sector)?;
    ensure!(disk.len() == 512, "a boot sector of {} bytes", disk.len());
    disk.resize(SECTOR_DISK_BYTES as usize, 0);
    Ok(disk)
}

/// The tarball and the OCI image with a static program, whose directory `MILLPOND_STATIC` names.
pub fn without_debian(subject: &mut Subject) -> Result<()> {
    let dir = subject.dir().to_owned();
    let built = PathBuf::from(std::env::var_os("MILLPOND_STATIC").context("MILLPOND_STATIC")?);
    let tarball = xtask_on(&["tarball"], &built, &dir)?;
    let unpacked = dir.join("tarball");
    fs::create_dir_all(&unpacked)?;
    run_command(Command::new("tar").arg("-C").arg(&unpacked).arg("-xf").arg(&tarball))?;
    let top = fs::read_dir(&unpacked)?.next().context("an empty tarball")??.path();
    for file in ["LICENSE", "LICENSES-OF-CRATES", "install.md", "share/man/man1/millpond.1", "systemd/millpond.service"] {
        ensure!(fs::metadata(top.join(file)).is_ok_and(|meta| meta.len() > 0), "{file} is missing");
    }
    ensure!(run_command(Command::new(top.join("bin/millpond")).arg("--version"))?.starts_with("millpond "), "it does not run");

    let image = xtask_on(&["image"], &built, &dir)?;
    let again = dir.join("again");
    fs::create_dir_all(&again)?;
    let second = xtask_on(&["image"], &built, &again)?;
    ensure!(fs::read(&image)? == fs::read(&second)?, "two images of one commit differ");
    if find_tool("skopeo").is_some() {
        let said = run_tool("skopeo", &["inspect", "--config", &format!("oci-archive:{}", image.display())])?;
        ensure!(said.contains("/usr/bin/millpond"), "{said}");
    } else {
        println!("SKIPPED packages-static: skopeo is not installed");
    }
    if find_tool("umoci").is_none() {
        println!("SKIPPED packages-static: umoci is not installed, the image is not unpacked");
        return Ok(());
    }
    let (layout, bundle) = (dir.join("layout"), dir.join("bundle"));
    fs::create_dir_all(&layout)?;
    run_command(Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(&image))?;
    let tags = run_command(Command::new("umoci").args(["ls", "--layout"]).arg(&layout))?;
    let reference = format!("{}:{}", layout.display(), tags.trim());
    run_command(Command::new("umoci").args(["unpack", "--image", &reference]).arg(&bundle))?;
    serve_from(&bundle.join("rootfs"), &dir)
}

/// Runs the program with nothing but the files of the image below its root directory.
fn serve_from(root: &Path, dir: &Path) -> Result<()> {
    let chroot = |words: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(root).arg("/usr/bin/millpond").args(["--socket", "/run/millpond/control.sock"]).args(words);
        command
    };
    fs::create_dir_all(root.join("run/millpond"))?;
    fs::create_dir_all(root.join("var/lib/millpond"))?;
    let mut daemon = Daemon::spawn(&mut chroot(&["serve", "--state", "/var/lib/millpond"]), &dir.join("image.log"))?;
    let run = |words: &[&str]| run_command(&mut chroot(words));
    run(&["status", "--wait", "60"])?;
    run(&["pool", "create", "tank", "/var/lib/millpond/tank.img:256M"])?;
    run(&["create", "tank/disk", "-L", "16M"])?;
    let listed = run(&["list", "-H", "-o", "name"])?;
    ensure!(listed.trim() == "tank/disk", "{listed}");
    let status = daemon.terminate(PATIENCE)?;
    ensure!(status.success(), "the daemon of the image ended with {status}");
    Ok(())
}
