//! One test per client program.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use millpond_block::SectorProfile;
use millpond_export::testing::Order;

use millpond_testing::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::server::{Server, Setup};

const MIB: usize = 1 << 20;
/// Time limit of one program; the slowest takes seconds.
const MOST_TIME: Duration = Duration::from_secs(120);

/// Returns true if the program is installed; otherwise reports it on standard error, without the
/// test harness's capture.
fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {program} is not installed");
    }
    found
}

/// Runs a program with a time limit, so that a client that waits for missing bytes fails and does
/// not hang.
fn finish(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = Pid::from_child(&child);
    let (done, waiting) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        // The child is not reaped before `done` is dropped, so its process id is still valid.
        if waiting.recv_timeout(MOST_TIME) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = read_then_wait(child, done);
    watchdog.join().expect("the watchdog did not panic");
    output
}

fn read_then_wait(mut child: Child, done: mpsc::Sender<()>) -> Output {
    let mut stderr = child.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        bytes
    });
    let mut stdout = Vec::new();
    let _ = child.stdout.take().expect("piped").read_to_end(&mut stdout);
    let stderr = errors.join().expect("the reader did not panic");
    drop(done);
    let status = child.wait().expect("a child to wait for");
    Output { status, stdout, stderr }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    finish(Command::new(program).args(arguments))
}

/// Runs a program that must succeed; returns its standard output.
fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

/// Makes a file of `size` bytes with data and zeroes, without repetitions that could hide misplaced
/// blocks.
fn sample(directory: &Path, size: usize) -> String {
    let mut bytes = Random::new(1).bytes(size);
    bytes.chunks_mut(1 << 18).skip(3).step_by(4).for_each(|hole| hole.fill(0));
    let path = directory.join("sample.raw");
    std::fs::write(&path, bytes).expect("a sample");
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn same(a: &str, b: &str) -> bool {
    std::fs::read(a).expect("first") == std::fs::read(b).expect("second")
}

#[test]
fn nbdinfo_tells_what_is_served() {
    if !installed("nbdinfo") {
        return;
    }
    let server = Server::start(Setup { sector: SectorProfile::S4kn, read_only: true, ..Setup::default() });
    let text = succeed("nbdinfo", &["--json", &server.uri()]);
    for expected in [
        "\"export-size\": 16777216",
        "\"is_read_only\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_cache\": true",
        "\"can_trim\": false",
        "\"can_multi_conn\": true",
        "\"can_df\": true",
        "\"block_size_minimum\": 4096",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"protocol\": \"newstyle-fixed\"",
    ] {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    let text = succeed("nbdinfo", &["--list", &server.uri()]);
    assert!(text.contains("export=\"disk\"") && text.contains("export=\"other\""), "{text}");
    let missing = format!("nbd+unix:///nothing?socket={}", server.socket().display());
    assert!(!run("nbdinfo", &[&missing]).status.success());
    let summary = server.stop();
    assert!(summary.connections >= 3, "{summary:?}");
}

#[test]
fn nbdcopy_copies_in_and_out() {
    if !installed("nbdcopy") {
        return;
    }
    for (order, options) in [
        (Order::InOrder, &["--connections=4", "--requests=64"][..]),
        (Order::Shuffled(7), &["--connections=4", "--request-size=4096"]),
        (Order::Reversed, &["--connections=2", "--request-size=1048576", "--flush"]),
        (Order::InOrder, &["--synchronous"]),
    ] {
        let server = Server::start(Setup { order, ..Setup::default() });
        let file = sample(server.directory(), 16 * MIB);
        let back = server.directory().join("back.raw");
        let back = back.to_str().expect("UTF-8");
        let uri = server.uri();
        succeed("nbdcopy", &[options, &[&file, &uri]].concat());
        succeed("nbdcopy", &[options, &[&uri, back]].concat());
        assert!(same(&file, back), "{options:?}");
        let summary = server.stop();
        let goodbyes = summary.reasons.get("client disconnected").copied().unwrap_or(0);
        assert_eq!(goodbyes, summary.connections, "{summary:?}");
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    if !installed("qemu-img") {
        return;
    }
    for sector in [SectorProfile::S512e, SectorProfile::S4kn] {
        let server = Server::start(Setup { sector, order: Order::Shuffled(3), ..Setup::default() });
        let file = sample(server.directory(), 16 * MIB);
        let back = server.directory().join("back.qcow2");
        let back = back.to_str().expect("UTF-8");
        let uri = server.uri();
        succeed("qemu-img", &["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", &file, &uri]);
        let text = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", &file, &uri]);
        assert!(text.contains("Images are identical"), "{text}");
        succeed("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, back]);
        let text = succeed("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &file, back]);
        assert!(text.contains("Images are identical"), "{text}");
        succeed("qemu-img", &["bench", "-f", "raw", "-w", "-c", "2000", "-d", "64", "-s", "4k", &uri]);
        let summary = server.stop();
        assert!(summary.handed_over > 0, "large writes came: {summary:?}");
    }
}

#[test]
fn qemu_io_sees_its_patterns() {
    if !installed("qemu-io") {
        return;
    }
    let server = Server::start(Setup::default());
    let commands = [
        "write -P 0xab 0 64k",
        "write -P 0xcd 1048064 512",
        "write -f -P 0x11 2M 4M",
        "aio_write -P 0x22 8M 64k",
        "aio_write -P 0x33 9M 64k",
        "aio_flush",
        "write -z 4k 4k",
        "write -z -u 3M 64k",
        "discard 5M 64k",
        "flush",
        "read -P 0xab 0 4k",
        "read -P 0 4k 4k",
        "read -P 0xab 8k 56k",
        "read -P 0xcd 1048064 512",
        "read -P 0x11 2M 1M",
        "read -P 0 3M 64k",
        "read -P 0 5M 64k",
        "read -P 0x22 8M 64k",
        "read -P 0x33 9M 64k",
    ];
    let uri = server.uri();
    let mut arguments = vec!["-f", "raw", "--cache=none"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let text = succeed("qemu-io", &arguments);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    let wrong = run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0x55 0 4k", &uri]);
    let text = String::from_utf8_lossy(&wrong.stdout);
    assert!(text.contains("Pattern verification failed"), "the check can fail: {text}");
    server.stop();
}

/// Script for nbdsh, where `h` is a handle that is not connected yet, and the environment contains
/// URI.
const SCRIPT: &str = r#"
import errno, os
h.set_strict_mode(0)
h.connect_uri(os.environ["URI"])
assert h.get_size() == 16 << 20
assert h.get_block_size(nbd.SIZE_MINIMUM) == 512

def refused(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as ex:
        assert ex.errnum == expected, (ex.errnum, expected, call, args)
    else:
        assert False, ("not refused", call, args)

data = bytearray(os.urandom(1 << 20))
h.pwrite(data, 4096)
assert h.pread(1 << 20, 4096) == data
h.pwrite(data[:512], 0, nbd.CMD_FLAG_FUA)
h.zero(8192, 8192)
h.zero(4096, 65536, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
h.trim(4096, 1 << 19, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
h.flush()
assert h.pread(8192, 8192) == bytes(8192)
assert h.pread(4096, 65536) == bytes(4096)
end = 16 << 20
refused(errno.EINVAL, h.pread, 512, end)
refused(errno.EINVAL, h.pread, 1024, end - 512)
refused(errno.ENOSPC, h.pwrite, bytes(512), end)
refused(errno.ENOSPC, h.pwrite, bytes(32 << 20), 0)
refused(errno.ENOSPC, h.zero, 512, end)
refused(errno.EINVAL, h.trim, 512, end)
refused(errno.EINVAL, h.pread, 511, 0)
refused(errno.EINVAL, h.pwrite, bytes(512), 100)
refused(errno.EINVAL, h.pread, 512, 0, 1 << 4)
refused(errno.EINVAL, h.pwrite, bytes(512), 0, 1 << 9)
refused(errno.EINVAL, h.pread, 40 << 20, 0)
assert h.pread(512, 0) == data[:512]

pending = []
bufs = {}
for i in range(500):
    buf = nbd.Buffer(4096)
    bufs[h.aio_pread(buf, (i * 8191) % 4000 * 4096)] = buf
while bufs:
    h.poll(-1)
    for cookie in list(bufs):
        if h.aio_command_completed(cookie):
            del bufs[cookie]
h.shutdown()
print("all well")
"#;

#[test]
fn nbdsh_gets_the_errors_of_the_protocol() {
    // Debian's Python has the bindings; another Python that is first in PATH may not.
    let python = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(|python| Command::new(python).args(["-c", "import nbd"]).output().is_ok_and(|o| o.status.success()));
    let Some(python) = python else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: Python's nbd module (nbdsh) is not installed");
        return;
    };
    let server = Server::start(Setup { order: Order::Shuffled(11), ..Setup::default() });
    let script = format!("import nbd\nh = nbd.NBD()\n{SCRIPT}");
    let output = finish(Command::new(python).args(["-c", &script]).env("URI", server.uri()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("all well"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    server.stop();
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !installed("fio") {
        return;
    }
    if !succeed("fio", &["--enghelp"]).contains("nbd") {
        let _ = writeln!(std::io::stderr(), "SKIPPED: fio has no nbd engine");
        return;
    }
    for (order, block) in [(Order::Shuffled(5), "--bs=4k"), (Order::Reversed, "--bsrange=512-128k")] {
        let server = Server::start(Setup { order, ..Setup::default() });
        let uri = format!("--uri={}", server.uri());
        let text = succeed(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                block,
                "--blockalign=512",
                "--iodepth=32",
                "--size=16m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_state_save=0",
                "--fsync=100",
                "--randseed=4",
            ],
        );
        assert!(text.contains("err= 0"), "{text}");
        let summary = server.stop();
        assert!(summary.requests > 500, "{summary:?}");
    }
}

/// Its oversize test (`-o`) is left out: it reads at offset 1 and waits for data even if the reply
/// is an error, as it must be on a disk with sectors.
#[test]
fn nbd_tester_client_is_satisfied() {
    if !installed("nbd-tester-client") {
        return;
    }
    let server = Server::start(Setup { size: 64 * MIB, order: Order::Shuffled(13), ..Setup::default() });
    let socket = server.socket();
    let socket = socket.to_str().expect("UTF-8");
    let run = |mode: &[&str]| succeed("nbd-tester-client", &[&["-N", "disk", "-u", socket], mode].concat());
    // reads; writes; writes with flushes and FUA; corner cases of the handshake
    run(&[]);
    run(&["-w"]);
    run(&["-w", "-f"]);
    run(&["-h"]);
    server.stop();
}

/// Replays a recorded load and checks every sector. The recording is part of the sources of nbd.
#[test]
fn nbd_tester_client_finds_its_data_again() {
    if !installed("nbd-tester-client") {
        return;
    }
    let Some(trace) = std::env::var_os("NBD_INTEGRITY_TRACE") else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: NBD_INTEGRITY_TRACE does not name nbd's tests/run/integrity-test.tr");
        return;
    };
    let server = Server::start(Setup { size: 256 * MIB, order: Order::Shuffled(17), ..Setup::default() });
    let socket = server.socket();
    let socket = socket.to_str().expect("UTF-8");
    succeed("nbd-tester-client", &["-N", "disk", "-u", socket, "-i", "-t", trace.to_str().expect("UTF-8")]);
    let summary = server.stop();
    assert!(summary.requests > 1000, "{summary:?}");
}
