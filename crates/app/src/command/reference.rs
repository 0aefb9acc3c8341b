//! The reference of commands: a page of the book, made from the definition of the command line.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};
use millpond_testing::{cell, compare_page};

use super::Cli;

const PAGE: &str = "docs/reference/commands.md";
const HEAD: &str = "\
# Commands

This page is written by `cargo xtask reference` from the definition of the command line.
Every command takes `--help`, and `--socket PATH` (or `MILLPOND_SOCKET`) for the daemon's control socket.
`millpond man DIR` writes the same as manual pages.

";

#[test]
fn the_page_of_the_reference_has_the_commands() {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut all = Vec::new();
    collect(&command, "", &mut all);
    let mut page = HEAD.to_owned();
    page += "| command | purpose |\n|---|---|\n";
    for (name, command) in &all {
        let _ = writeln!(page, "| [`{name}`](#{}) | {} |", name.replace(' ', "-"), cell(&about(command)));
    }
    all.iter().for_each(|(name, command)| describe(name, command, &mut page));
    compare_page(PAGE, &page);
}

/// Collects the commands with their full names, those of a group after the group.
fn collect<'a>(command: &'a Command, before: &str, all: &mut Vec<(String, &'a Command)>) {
    let name = format!("{before}{}", command.get_name());
    let prefix = format!("{name} ");
    all.push((name, command));
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| collect(sub, &prefix, all));
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn describe(name: &str, command: &Command, page: &mut String) {
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_else(|| about(command));
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "\n## {name}\n\n{}\n\n```text\n{usage}\n```\n", sentences(&long));
    let own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(own).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | meaning | default |\n|---|---|---|\n");
    }
    for arg in arguments {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults = if arg.get_action().takes_values() { arg.get_default_values() } else { &[] };
        let default: Vec<_> = defaults.iter().map(|value| value.to_string_lossy()).collect();
        let _ = writeln!(page, "| {} | {}{} | {} |", spelling(arg), cell(&help), values(arg), cell(&default.join(" ")));
    }
    if let Some(help) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{}\n```\n", help.to_string().trim_end());
    }
}

/// Returns the spelling of an argument as in its help, in code.
fn spelling(arg: &Arg) -> String {
    let short = arg.get_short().map(|letter| format!("`-{letter}`"));
    let long = arg.get_long().map(|word| format!("`--{word}`"));
    let names = arg.get_value_names().unwrap_or_default().join(" ");
    let options: Vec<String> = short.into_iter().chain(long).collect();
    let takes = arg.get_action().takes_values() && !names.is_empty();
    match (options.is_empty(), takes) {
        (true, _) => format!("`{names}`"),
        (false, true) => format!("{} `{names}`", options.join(", ")),
        (false, false) => options.join(", "),
    }
    .replace('|', "\\|")
}

/// Returns the possible values of an argument, if there are few.
fn values(arg: &Arg) -> String {
    let names: Vec<String> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if names.is_empty() || !arg.get_action().takes_values() { String::new() } else { format!(": {}", names.join(", ")) }
}

/// Returns a text with a line for each sentence, as in other pages, and no markup.
fn sentences(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        line.replace(". ", ".\n").replace('<', "&lt;").replace('*', "\\*")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
