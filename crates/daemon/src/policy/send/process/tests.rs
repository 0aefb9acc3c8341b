//! Processes with real commands of the host.

use super::*;

/// Longer than anything takes that does not hang, on a busy machine.
const LONG: Duration = Duration::from_secs(300);

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn shell(script: &str) -> Vec<String> {
    command(&["sh", "-c", script])
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

#[test]
fn the_last_message_is_the_reason_of_a_failure() {
    run(async {
        assert_eq!(output(&shell("printf data")).await, Ok(b"data".to_vec()));
        let failed = output(&shell("echo 'send: 1 of 2' >&2; printf 'millpond: no\tpool\\n' >&2; exit 1")).await;
        assert_eq!(failed, Err("no pool".to_owned()));
        let silent = output(&shell("exit 3")).await.expect_err("it failed");
        assert!(silent.contains('3'), "{silent}");
        let missing = output(&command(&["/no/such/program"])).await.expect_err("it cannot run");
        assert!(missing.contains("cannot be run"), "{missing}");
    });
}

/// Runs two scripts as a pipe.
async fn pipe(sender: &str, receiver: &str, line: &LastLine, is_wanted: bool) -> Result<(), SendFailure> {
    pipe_within(sender, receiver, line, LONG, || is_wanted).await
}

async fn pipe_within(
    sender: &str,
    receiver: &str,
    line: &LastLine,
    limit: Duration,
    is_wanted: impl Fn() -> bool,
) -> Result<(), SendFailure> {
    let (sender, receiver) = (shell(sender), shell(receiver));
    let ended = timeout(LONG, piped((&sender, &receiver), Arc::clone(line), limit, is_wanted));
    ended.await.expect("it ends")
}

#[test]
fn a_pipe_fails_with_the_reason_of_the_one_that_failed_first() {
    run(async {
        let line = LastLine::default();
        assert_eq!(pipe("printf abc", "test \"$(cat)\" = abc", &line, true).await, Ok(()));
        let cut = pipe("echo cause >&2; exit 1", "cat; sleep 1; echo consequence >&2; exit 1", &line, true).await;
        assert_eq!(cut, Err(SendFailure::Failed("cause".to_owned())));
        assert_eq!(*line.lock().expect("a line"), "cause", "the progress of the sender is shown");
        let refused = pipe("sleep 1; yes; echo consequence >&2; exit 1", "echo cause >&2; exit 1", &line, true).await;
        assert_eq!(refused, Err(SendFailure::Failed("cause".to_owned())));
    });
}

#[test]
fn a_send_that_is_no_longer_wanted_ends() {
    run(async {
        let ended = pipe("exec sleep 300", "cat; exit 1", &LastLine::default(), false).await;
        assert!(ended.is_err_and(|why| why.to_string().contains("no longer wanted")));
    });
}

/// Fixed defect: a receive that took nothing kept its place among the sends for ever.
#[test]
fn a_receiver_that_takes_nothing_is_ended() {
    run(async {
        let limit = Duration::from_secs(1);
        // it takes nothing; it takes all and does not end
        for (sender, receiver) in [("exec yes", "exec sleep 300"), ("echo all", "cat > /dev/null; exec sleep 300")] {
            let hung = pipe_within(sender, receiver, &LastLine::default(), limit, || true).await;
            assert_eq!(hung, Err(SendFailure::Hung(limit)), "{sender} | {receiver}");
        }
    });
}

/// Fixed defect: a backup that waited for a directory of a server that was away kept its place for ever.
#[test]
fn a_command_that_does_nothing_is_ended() {
    run(async {
        let (limit, line) = (Duration::from_secs(2), LastLine::default());
        let run = async |script| timeout(LONG, alone(&shell(script), Arc::clone(&line), limit, || true)).await.expect("it ends");
        let waits = "while sleep 0.1; do echo waiting >&2; done";
        assert_eq!(run(waits).await, Err(SendFailure::Idle(limit)));
        // it works for more than the limit
        let works = "for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /dev/null; sleep 1; done";
        assert_eq!(run(works).await, Ok(()));
    });
}

/// The limit is for the receiver alone: this sender is silent for longer, and takes longer in all.
#[test]
fn a_pipe_in_which_bytes_move_goes_on() {
    run(async {
        let moves = "sleep 4; for i in 1 2 3 4; do echo $i; sleep 1; done";
        let limit = Duration::from_secs(2);
        assert_eq!(pipe_within(moves, "exec cat > /dev/null", &LastLine::default(), limit, || true).await, Ok(()));
    });
}

#[test]
fn everything_goes_through_the_pipe() {
    run(async {
        let sum = "head -c 3000001 | cksum";
        let line = LastLine::default();
        let check = format!("test \"$(cksum)\" = \"$(yes abcdefg | {sum})\"");
        assert_eq!(pipe("yes abcdefg | head -c 3000001", &check, &line, true).await, Ok(()));
    });
}
