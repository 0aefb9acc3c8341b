//! Completion in real shells, and manual pages.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::{Daemon, command, run};

/// Directory of the program, which the scripts find in PATH.
fn path_with_program() -> String {
    let own = env!("CARGO_BIN_EXE_millpond").rsplit_once('/').expect("a directory").0;
    format!("{own}:{}", std::env::var("PATH").unwrap_or_default())
}

/// Whether all programs are installed; otherwise prints that the test is skipped.
fn are_installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| {
        let found = Command::new("which").arg(program).stdout(Stdio::null()).stderr(Stdio::null()).status();
        !found.is_ok_and(|status| status.success())
    });
    missing.inspect(|program| println!("SKIPPED: {program} is not installed")).is_none()
}

fn daemon_with_names() -> Daemon {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/vm1", "-L", "16M"]).ok();
    daemon.run(&["create", "tank/other", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/vm1@monday", "tank/vm1@tuesday"]).ok();
    daemon
}

/// Types a line and a tab into an interactive shell on a terminal; returns the line as the shell
/// then has it.
fn completed(shell: &str, daemon: &Daemon, line: &str) -> String {
    let (program, setup) = match shell {
        "bash" => ("bash --norc --noprofile -i", "source <(millpond completions bash)"),
        "zsh" => ("zsh -f -i", "bindkey -e; autoload -Uz compinit; compinit -D -u; source <(millpond completions zsh)"),
        other => panic!("{other}"),
    };
    // Shells discard what is typed ahead, so each step waits for the output of the one before.
    // Control-A and Control-E go to the begin and the end of the line.
    let typist = r#"
        seen() { i=0; until grep -aq "$1" "$TYPED"; do i=$((i + 1)); [ $i -lt 1200 ] || exit 1; sleep 0.05; done; }
        { printf 'PS1="rea""dy>"\n%s; echo sourc""ed\n' "$SETUP"
          seen sourced
          sleep 0.3
          printf '%s\t' "$LINE"
          sleep 1.5
          printf '\001echo "[\005]" en""ded\n'
          seen ' ended'
          printf 'exit\n'
        } | script -qfec "$PROGRAM" "$TYPED" > /dev/null"#;
    let typed = daemon.text("typed");
    fs::write(&typed, "").expect("a file");
    let mut words = Command::new("bash");
    words.args(["-c", typist]).env("PATH", path_with_program()).env("MILLPOND_SOCKET", daemon.socket());
    words.env("TERM", "dumb").env("HOME", daemon.path("")).env("SETUP", setup).env("LINE", line).env("PROGRAM", program);
    words.env("TYPED", &typed).env_remove("COLUMNS");
    let status = words.stdin(Stdio::null()).status().expect("bash runs");
    let text = String::from_utf8_lossy(&fs::read(&typed).expect("a transcript")).into_owned();
    assert!(status.success(), "{text}");
    let shown = text.lines().find_map(|line| line.trim_end().strip_prefix('[')?.strip_suffix("] ended").map(str::to_owned));
    shown.unwrap_or_else(|| panic!("{shell} printed nothing: {text}"))
}

fn completes_on_a_terminal(shell: &str) {
    if !are_installed(&["bash", shell, "script"]) {
        return;
    }
    let daemon = daemon_with_names();
    let socket = daemon.socket();
    for (line, wanted) in [
        ("millpond pool stat", "millpond pool status"),
        ("millpond show tank/v", "millpond show tank/vm1"),
        ("millpond rollback tank/v", "millpond rollback tank/vm1@"),
        ("millpond rollback tank/vm1@m", "millpond rollback tank/vm1@monday"),
        ("millpond set compr", "millpond set compression="),
        ("millpond snapshot --description 'a b' tank/o", "millpond snapshot --description 'a b' tank/other@"),
        (&format!("millpond --socket={socket} resize tank/o"), &format!("millpond --socket={socket} resize tank/other")),
        ("millpond nonsense tank/v", "millpond nonsense tank/v"),
    ] {
        assert_eq!(completed(shell, &daemon, line).trim_end(), wanted, "{shell}");
    }
}

#[test]
fn bash_completes() {
    completes_on_a_terminal("bash");
}

#[test]
fn zsh_completes() {
    completes_on_a_terminal("zsh");
}

#[test]
fn fish_completes() {
    if !are_installed(&["fish"]) {
        return;
    }
    let daemon = daemon_with_names();
    let candidates = |line: &str| {
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", "source (millpond completions fish | psub); complete -C $argv[1]", line]);
        let output = fish.env("PATH", path_with_program()).env("MILLPOND_SOCKET", daemon.socket()).env("HOME", daemon.path("")).output();
        let output = output.expect("fish runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(candidates("millpond pool stat"), ["status"]);
    assert_eq!(candidates("millpond rollback tank/v"), ["tank/vm1@"]);
    assert_eq!(candidates("millpond rollback tank/vm1@"), ["tank/vm1@monday", "tank/vm1@tuesday"]);
    assert_eq!(candidates("millpond set cache=none tank/o"), ["tank/other"]);
}

/// Runs the program as the scripts do; `words` ends with the word to complete.
fn candidates(socket: &str, words: &[&str]) -> Vec<String> {
    let mut shell = command(&["--", "millpond"]);
    shell.args(words).env("MILLPOND_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    let ended = run({
        shell.env("MILLPOND_SOCKET", socket).env("_CLAP_IFS", "\n");
        shell
    });
    ended.ok().out.lines().map(str::to_owned).collect()
}

#[test]
fn candidates_fit_the_argument() {
    let daemon = daemon_with_names();
    let device = daemon.text("tank.img");
    daemon.export("tank/vm1", "vm1.sock");
    let socket = daemon.socket();
    for (words, wanted) in [
        (&["create", ""][..], &["tank/"][..]),
        (&["create", "x/y", "--cache", "write"], &["writethrough", "writeback"]),
        (&["create", "x/y", "-o", "iops_r"], &["iops_rd=", "iops_rd_max=", "iops_rd_max_length="]),
        (&["destroy", "tank/vm1@t"], &["tank/vm1@tuesday"]),
        (&["get", "compr"], &["compression"]),
        (&["list", "t"], &["tank", "tank/other", "tank/vm1"]),
        (&["pool", "remove", "tank", "/"], &[&device]),
        (&["pool", "create", "lake", "parity"], &["parity1", "parity2"]),
        (&["pool", "set", "job"], &["job_rate="]),
        (&["unexport", "1"], &["1"]),
        (&["set", "cache=none", "tank/o"], &["tank/other"]),
        (&["set", "cache=none", "tank/other", "iops_w"], &["iops_wr=", "iops_wr_max=", "iops_wr_max_length="]),
        (&["completions", ""], &["bash", "zsh", "fish"]),
    ] {
        let mut found = candidates(&socket, words);
        found.retain(|word| !word.starts_with('-'));
        found.sort();
        let mut wanted: Vec<String> = wanted.iter().map(|word| (*word).to_owned()).collect();
        wanted.sort();
        assert_eq!(found, wanted, "{words:?}");
    }
    // the option of the command line names another daemon than the environment
    assert_eq!(candidates(&socket, &["--socket", "/none", "show", "tank/"]), Vec::<String>::new());
    assert_eq!(candidates("/none", &["--socket", &socket, "show", "tank/v"]), ["tank/vm1"]);
}

#[test]
fn without_an_answer_there_are_no_names_and_no_messages() {
    let daemon = daemon_with_names();
    assert_eq!(candidates("/none/control.sock", &["show", "tank/"]), Vec::<String>::new());
    daemon.signal("STOP");
    let begin = Instant::now();
    let names = candidates(&daemon.socket(), &["show", "tank/"]);
    let took = begin.elapsed();
    daemon.signal("CONT");
    assert_eq!(names, Vec::<String>::new());
    assert!(took.as_secs() < 20, "{took:?}");
}

#[test]
fn an_unknown_shell_is_named() {
    run(command(&["completions", "tcsh"])).err.lines().any(|line| line.contains("tcsh")).then_some(()).expect("it names the shell");
    let mut odd = command(&["--", "millpond", "list"]);
    odd.env("MILLPOND_COMPLETE", "tcsh");
    run(odd).refused(1, "unknown shell `tcsh`");
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("tempdir");
    let pages = dir.path().join("new/man1");
    run(command(&["man", pages.to_str().expect("UTF-8")])).ok();
    for (page, words) in [
        ("millpond.1", &["--help"][..]),
        ("millpond-pool.1", &["pool", "--help"]),
        ("millpond-pool-create.1", &["pool", "create", "--help"]),
        ("millpond-export-nbd.1", &["export", "nbd", "--help"]),
        ("millpond-completions.1", &["completions", "--help"]),
    ] {
        let text = fs::read_to_string(pages.join(page)).expect("a page");
        assert!(text.contains(".SH SYNOPSIS") && text.contains("Example:"), "{page}: {text}");
        let help = run(command(words)).ok().out;
        let of_options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let options = of_options.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
        for option in options.map(|option| option.trim_end_matches(',').replace('-', "\\-")) {
            assert!(text.contains(&option), "{page} lacks {option}");
        }
    }
    assert!(!pages.join("millpond-fuse-guard.1").exists());
    if are_installed(&["man"]) {
        for page in fs::read_dir(&pages).expect("pages").flatten() {
            let mut man = Command::new("man");
            man.args(["--warnings", "-l"]).arg(page.path()).env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
            let output = man.output().expect("man runs");
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.path().display());
        }
    }
    fs::write(dir.path().join("file"), "").expect("a file");
    run(command(&["man", dir.path().join("file").to_str().expect("UTF-8")])).refused(1, "cannot write");
}
