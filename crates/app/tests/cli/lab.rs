//! `millpond lab`: it executes the program beside it, and reports a remedy if there is none.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{command, run};

/// Copies a program by another process. If this process wrote the file, a child that another test
/// starts meanwhile could hold it open, and it could not be executed.
fn install(from: &Path, to: &Path) {
    let done = Command::new("install").args(["-m", "755"]).args([from, to]).status().expect("install runs");
    assert!(done.success());
}

/// Returns a command for a copy of the program in its own directory, with an empty PATH.
fn alone(dir: &Path, words: &[&str]) -> Command {
    let program = dir.join("millpond");
    if !program.exists() {
        install(Path::new(command(&[]).get_program()), &program);
    }
    let mut command = Command::new(program);
    command.args(words).env("PATH", "").env_remove("MILLPOND_BIN");
    command
}

#[test]
fn without_the_program_it_says_how_to_build_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    for words in [&["lab", "list"][..], &["lab", "--help"], &["lab"]] {
        run(alone(dir.path(), words)).refused(1, "cargo build --release -p millpond-lab");
    }
    assert!(run(command(&["help", "lab"])).out.contains("Example:"));
}

#[test]
fn words_and_the_exit_code_are_handed_through() {
    let dir = tempfile::tempdir().expect("tempdir");
    let script = dir.path().join("script");
    fs::write(&script, "#!/bin/sh\nfor word in \"$@\"; do echo \"<$word>\"; done\necho \"$MILLPOND_BIN\"\nexit 7\n").expect("a script");
    install(&script, &dir.path().join("millpond-lab"));
    let ended = run(alone(dir.path(), &["lab", "run", "all", "--scale", "0.01", "--socket", "x y"]));
    assert_eq!(ended.code, 7, "{ended:?}");
    let own = dir.path().join("millpond");
    assert_eq!(ended.out, format!("<run>\n<all>\n<--scale>\n<0.01>\n<--socket>\n<x y>\n{}\n", own.display()));
}
