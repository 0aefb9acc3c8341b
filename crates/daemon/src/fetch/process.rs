//! The processes that read targets of publications: this program, with a verb that only the daemon uses.

use std::process::Stdio;
use std::time::Duration;

use millpond_api::{BaseSource, FoundPublication};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::wire::{AnswerHead, ChunkAnswer, ChunkRequest};

/// This program, also after its file was replaced by an update.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Answers that were read and not passed on.
const READ_AHEAD: usize = 4;
/// How long a process may take to find a publication.
const FIND: Duration = Duration::from_secs(120);
/// How long a process that has nothing to do may take to end.
const END: Duration = Duration::from_secs(10);
/// How long the last words of a process that has ended are waited for.
const WORDS: Duration = Duration::from_secs(2);
/// Most bytes of its messages that are kept.
const LONGEST: usize = 4096;

/// A target and the way to it: one process reads it for all pools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetPlace {
    pub target: String,
    pub options: Vec<String>,
    pub credentials: Option<String>,
    pub id: String,
}

impl TargetPlace {
    /// Returns the place of a source.
    pub fn of(source: &BaseSource) -> TargetPlace {
        let BaseSource { target, options, credentials, target_id, .. } = source.clone();
        TargetPlace { target, options, credentials, id: target_id }
    }

    fn words(&self) -> Vec<String> {
        let options = self.options.iter().flat_map(|option| ["-o".to_owned(), option.clone()]);
        let credentials = self.credentials.iter().flat_map(|file| ["--credentials".to_owned(), file.clone()]);
        options.chain(credentials).collect()
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.args(words).env_remove("NOTIFY_SOCKET").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    command
}

/// Returns the last line of messages, without the name of the program.
fn last_line(messages: &[u8]) -> String {
    let text = String::from_utf8_lossy(messages);
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    line.strip_prefix("millpond: ").unwrap_or(line).chars().filter(|c| !c.is_control()).collect()
}

/// Finds a publication, `VOL@SNAP` or `POOL/VOL@SNAP`; with a `pin`, the id and the name of a pool, notes
/// durably in the target that the pool reads it.
///
/// # Errors
/// Its last message.
pub async fn find(place: &TargetPlace, publication: &str, pin: Option<(&str, &str)>) -> Result<FoundPublication, String> {
    let mut words = vec!["find-publication".to_owned(), format!("{}#{publication}", place.target)];
    words.extend(place.words());
    words.extend(pin.into_iter().flat_map(|(id, name)| ["--pin".to_owned(), id.to_owned(), "--pool".to_owned(), name.to_owned()]));
    let mut command = command(&words);
    let output = timeout(FIND, command.stdin(Stdio::null()).output()).await;
    let output = output.map_err(|_| format!("the target does not answer within {} s", FIND.as_secs()))?;
    let output = output.map_err(|error| format!("'{OWN_PROGRAM}' cannot be run: {error}"))?;
    if !output.status.success() {
        let said = last_line(&output.stderr);
        return Err(if said.is_empty() { format!("its process ended with {}", output.status) } else { said });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("the answer about it cannot be read: {error}"))
}

/// A process that reads chunks.
pub struct ChunkReader {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<(u64, ChunkAnswer)>,
    messages: JoinHandle<Vec<u8>>,
}

impl ChunkReader {
    /// Starts it. It ends when this is dropped, and with the daemon.
    ///
    /// # Errors
    /// The system's.
    pub fn start(place: &TargetPlace) -> Result<ChunkReader, String> {
        let mut words = vec!["fetch-chunks".to_owned(), place.target.clone(), "--id".to_owned(), place.id.clone()];
        words.extend(place.words());
        let mut child = command(&words).spawn().map_err(|error| format!("'{OWN_PROGRAM}' cannot be run: {error}"))?;
        let (Some(requests), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err("its process has no pipes".to_owned());
        };
        let (to, answers) = channel(READ_AHEAD);
        tokio::spawn(read_answers(stdout, to));
        Ok(ChunkReader { child, requests, answers, messages: tokio::spawn(read_messages(stderr)) })
    }

    /// Asks for a chunk.
    ///
    /// # Errors
    /// It has ended: the reason.
    pub async fn ask(&mut self, request: &ChunkRequest) -> Result<(), String> {
        match self.requests.write_all(&request.encode()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.reason().await),
        }
    }

    /// Returns the next answer; `None` once it has ended, or says what no such process says.
    pub async fn answer(&mut self) -> Option<(u64, ChunkAnswer)> {
        self.answers.recv().await
    }

    /// Returns why it ended, and kills it if it has not.
    pub async fn reason(&mut self) -> String {
        let said = timeout(WORDS, &mut self.messages).await.ok().and_then(Result::ok).unwrap_or_default();
        // a process that waits for a server of files that is away does not end when it is killed
        let _ = self.child.start_kill();
        let status = timeout(WORDS, self.child.wait()).await;
        match (last_line(&said), status) {
            (said, _) if !said.is_empty() => said,
            (_, Ok(Ok(status))) => format!("its process ended with {status}"),
            _ => "its process ended".to_owned(),
        }
    }

    /// Lets it end.
    pub async fn end(self) {
        let ChunkReader { mut child, requests, .. } = self;
        drop(requests);
        let _ = timeout(END, child.wait()).await;
    }
}

/// Passes answers on until the end, or until something else comes.
async fn read_answers(mut stdout: ChildStdout, to: Sender<(u64, ChunkAnswer)>) {
    loop {
        let mut head = [0; AnswerHead::BYTES];
        if stdout.read_exact(&mut head).await.is_err() {
            return;
        }
        let Some(head) = AnswerHead::decode(&head) else { return };
        let mut rest = vec![0; head.rest];
        if stdout.read_exact(&mut rest).await.is_err() || to.send((head.id, head.answer(rest))).await.is_err() {
            return;
        }
    }
}

/// Reads to the end; keeps the last bytes.
async fn read_messages(mut stderr: ChildStderr) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let extra = kept.len().saturating_sub(LONGEST);
        kept.drain(..extra);
    }
    kept
}
