//! The command line: its definition, and the dispatch to the command that was chosen.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use millpond_api::client::Client;
use millpond_api::failure::Outcome;

#[cfg(feature = "bucket")]
use super::bucket;
use super::{
    alert, backup, cache, completions, create, demo, destroy, diff, doctor, events, exports, failback, failover, fetch_chunks, fuse_guard,
    get, history, hold, image, lab, list, man, policy, pool, rebase, receive, rename, resize, sectors, send, serve, snapshot, status,
    token, up,
};
use crate::config::socket_path;

/// Virtual disks in a log-structured pool: instant snapshots, clones and rollbacks, served over NBD, vhost-user and FUSE.
#[derive(Debug, Parser)]
#[command(
    name = "millpond",
    version,
    max_term_width = 110,
    after_help = "\
Example:
  millpond up                                   a disk to try
  millpond serve &                              or a daemon, and then:
  millpond pool create tank /srv/a.img:20G
  millpond create tank/vm1 -L 10G
  millpond export nbd tank/vm1 --unix /run/vm1.sock
  millpond snapshot tank/vm1@before-upgrade

Names are POOL/VOL@SNAP. Sizes take 512, 64k, 10G, 1.5T (powers of 1024).
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 daemon not reachable; of --check: 0 healthy, 1 warnings, 4 degraded or worse."
)]
pub struct Cli {
    /// Control socket of the daemon [env: MILLPOND_SOCKET]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(up::Up),
    Demo(demo::Demo),
    Serve(serve::Serve),
    Status(status::Status),
    Events(events::Events),
    History(history::History),
    Doctor(doctor::Doctor),
    #[command(subcommand)]
    Alert(alert::Alert),
    /// Pools and their devices; 'millpond pool --help' lists the verbs
    #[command(subcommand)]
    Pool(pool::Pool),
    Create(create::Create),
    List(list::List),
    Show(get::Show),
    Get(get::Get),
    Set(get::Set),
    /// Advice on cache modes
    #[command(subcommand, after_help = "Example:\n  millpond cache advise --db")]
    Cache(cache::Cache),
    #[cfg(feature = "bucket")]
    #[command(subcommand)]
    Bucket(bucket::Bucket),
    Resize(resize::Resize),
    Snapshot(snapshot::Snapshot),
    Rollback(snapshot::Rollback),
    Clone(snapshot::Clone),
    Promote(snapshot::Promote),
    Rebase(rebase::Rebase),
    Rename(rename::Rename),
    Diff(diff::Diff),
    Destroy(destroy::Destroy),
    /// Policies: snapshots by a schedule, with thinning
    #[command(subcommand)]
    Policy(policy::Policy),
    Hold(hold::Hold),
    Release(hold::Release),
    Export(exports::ExportVerb),
    Exports(exports::Exports),
    Unexport(exports::Unexport),
    #[command(subcommand)]
    Token(token::TokenVerb),
    #[command(hide = true)]
    FuseGuard(fuse_guard::FuseGuard),
    #[command(hide = true)]
    FindPublication(fetch_chunks::FindPublication),
    #[command(hide = true)]
    FetchChunks(fetch_chunks::FetchChunks),
    ImportImage(image::ImportImage),
    ExportImage(image::ExportImage),
    ConvertSectors(sectors::ConvertSectors),
    Send(send::Send),
    Receive(receive::Receive),
    /// Incremental backups in a directory or a bucket; 'millpond backup --help' lists the verbs
    #[command(subcommand)]
    Backup(backup::Backup),
    Failover(failover::Failover),
    Failback(failback::Failback),
    Lab(lab::Lab),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// Runs the chosen command.
    ///
    /// # Errors
    /// The exit code and the one-line message that the program ends with.
    pub async fn run(self) -> Outcome {
        // Not clap's `env`: the usage line would show the option as required.
        let variable = std::env::var_os("MILLPOND_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        let given = self.socket.as_deref().or(variable.as_deref());
        let client = Client::new(socket_path(given));
        match self.verb {
            // `up` starts its own daemon; `MILLPOND_SOCKET` names another one, so it is ignored
            // here
            Verb::Up(up) => up.run(self.socket.as_deref()).await,
            Verb::Demo(demo) => demo.run().await,
            Verb::Serve(serve) => serve.run(given).await,
            Verb::Status(status) => status.run(&client).await,
            Verb::Events(events) => events.run(&client).await,
            Verb::History(history) => history.run(&client).await,
            Verb::Doctor(doctor) => doctor.run(&client, &socket_path(given)).await,
            Verb::Alert(alert) => alert.run(&client).await,
            Verb::Pool(pool) => pool.run(&client).await,
            Verb::Create(create) => create.run(&client).await,
            Verb::List(list) => list.run(&client).await,
            Verb::Show(show) => show.run(&client).await,
            Verb::Get(get) => get.run(&client).await,
            Verb::Set(set) => set.run(&client).await,
            Verb::Cache(cache) => cache.run(&client).await,
            #[cfg(feature = "bucket")]
            Verb::Bucket(bucket) => bucket.run().await,
            Verb::Resize(resize) => resize.run(&client).await,
            Verb::Snapshot(snapshot) => snapshot.run(&client).await,
            Verb::Rollback(rollback) => rollback.run(&client).await,
            Verb::Clone(clone) => clone.run(&client).await,
            Verb::Promote(promote) => promote.run(&client).await,
            Verb::Rebase(rebase) => rebase.run(&client).await,
            Verb::Rename(rename) => rename.run(&client).await,
            Verb::Diff(diff) => diff.run(&client).await,
            Verb::Destroy(destroy) => destroy.run(&client).await,
            Verb::Policy(policy) => policy.run(&client).await,
            Verb::Hold(hold) => hold.run(&client).await,
            Verb::Release(release) => release.run(&client).await,
            Verb::Export(export) => export.run(&client).await,
            Verb::Exports(exports) => exports.run(&client).await,
            Verb::Unexport(unexport) => unexport.run(&client).await,
            Verb::Token(token) => token.run(&client).await,
            Verb::FuseGuard(guard) => guard.run().await,
            Verb::FindPublication(find) => find.run().await,
            Verb::FetchChunks(fetch) => fetch.run().await,
            Verb::ImportImage(import) => import.run(&client).await,
            Verb::ExportImage(export) => export.run(&client).await,
            Verb::ConvertSectors(convert) => convert.run(&client).await,
            Verb::Send(send) => send.run(&client).await,
            Verb::Receive(receive) => receive.run(&client).await,
            Verb::Backup(backup) => backup.run(&client).await,
            Verb::Failover(failover) => failover.run(&client).await,
            Verb::Failback(failback) => failback.run(&client, &socket_path(given)).await,
            Verb::Lab(lab) => lab.run(),
            Verb::Completions(completions) => completions.run(),
            Verb::Man(man) => man.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    //! The definition is consistent, and the help of every command has an example.
    use clap::{Command, CommandFactory, ValueHint};
    use clap_complete::engine::ArgValueCompleter;

    use super::*;

    #[test]
    fn the_definition_holds() {
        Cli::command().debug_assert();
    }

    fn without_example(command: &Command, missing: &mut Vec<String>) {
        let groups = command.get_subcommands().count() > 0 && !command.is_allow_external_subcommands_set();
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let hidden = command.is_hide_set();
        if !hidden && !help.contains("Example:") && command.get_name() != "help" {
            missing.push(format!("{} (group: {groups})", command.get_name()));
        }
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| without_example(sub, missing));
    }

    #[test]
    fn every_help_has_an_example() {
        let mut missing = Vec::new();
        without_example(&Cli::command(), &mut missing);
        assert_eq!(missing, Vec::<String>::new());
    }

    fn unfinished(command: &Command, found: &mut Vec<String>) {
        let help = command.clone().render_long_help().to_string().to_lowercase();
        let phrases = ["not in this version", "not implemented", "later version", "not yet"];
        found.extend(phrases.iter().filter(|phrase| help.contains(**phrase)).map(|phrase| format!("{}: {phrase}", command.get_name())));
        command.get_subcommands().for_each(|sub| unfinished(sub, found));
    }

    #[test]
    fn no_help_describes_a_command_that_does_nothing() {
        let mut found = Vec::new();
        unfinished(&Cli::command(), &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    /// Positional arguments that a shell cannot complete: free text, sizes, and addresses of buckets.
    const FREE: [&str; 4] = ["size", "words", "number", "url"];

    fn without_candidates(command: &Command, missing: &mut Vec<String>) {
        for argument in command.get_positionals() {
            let known = argument.get::<ArgValueCompleter>().is_some() || !argument.get_possible_values().is_empty();
            let file = argument.get_value_hint() != ValueHint::Unknown;
            if !known && !file && !FREE.contains(&argument.get_id().as_str()) {
                missing.push(format!("{} {}", command.get_name(), argument.get_id()));
            }
        }
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| without_candidates(sub, missing));
    }

    #[test]
    fn every_positional_argument_can_be_completed() {
        let mut missing = Vec::new();
        without_candidates(&Cli::command(), &mut missing);
        // the names of a new pool, policy and token
        assert_eq!(missing, ["create name", "create name", "create name"]);
    }

    #[test]
    fn options_stand_before_between_and_after_words() {
        for words in [
            vec!["millpond", "resize", "p/v", "+5G"],
            vec!["millpond", "resize", "p/v", "--allow-shrink", "5G"],
            vec!["millpond", "resize", "--allow-shrink", "--", "p/v", "-5G"],
            vec!["millpond", "pool", "create", "p", "stripe", "-i", "2", "-I", "64k", "/a", "/b"],
            vec!["millpond", "pool", "create", "p", "-o", "x=y", "/a:1G"],
            vec!["millpond", "list", "-H", "-p", "-o", "name,size", "-t", "all", "p/v"],
            vec!["millpond", "status", "--wait", "5", "--format", "json"],
            vec!["millpond", "pool", "status", "--check", "tank"],
            vec!["millpond", "events", "--since", "24h", "-f", "--severity", "warning", "-H", "-o", "time,pool"],
            vec!["millpond", "lab", "run", "A", "--scale", "0.1"],
            vec!["millpond", "export", "nbd", "p/v", "--unix", "/s", "--socket", "/c"],
            vec!["millpond", "export", "--socket", "/c", "nbd", "p/v", "--if-missing"],
            vec!["millpond", "export", "--from", "-"],
        ] {
            assert!(Cli::try_parse_from(&words).is_ok(), "{words:?}");
        }
    }
}
