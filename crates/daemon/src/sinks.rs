//! Sinks of alerts: a webhook, a command, the journal, mail. Each gets an alert once when a
//! condition begins, and once when it ends.
//!
//! Each sink has a thread and a bounded queue, so a sink that hangs delays neither pools nor other
//! sinks. An alert that cannot be delivered is a line of the log, and the condition
//! [`ConditionKind::SinkFailing`] until the next one is delivered.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millpond_api::{Alert, AlertState, Condition, ConditionKind, EventSeverity, Severity, SinkTest, instant};
use tokio::sync::oneshot;

use super::conditions::Found;
use super::hook::{Killed, run_command};
use super::host::host_name;
use super::service::Daemon;
use rate::Rate;
pub use webhook::Webhook;

mod journal;
mod mail;
mod rate;
#[cfg(test)]
mod tests;
mod webhook;

/// Most alerts that wait for a sink.
const QUEUE: usize = 256;
/// Times between two attempts to deliver an alert to the webhook or the journal.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];
/// How long a test waits for a sink, beside the sink's own limit: earlier alerts may be in its queue.
const TEST_WAIT: Duration = Duration::from_secs(30);

/// A sink of the configuration.
#[derive(Clone, Debug)]
pub struct Sink {
    /// Name, unique in the configuration.
    pub name: String,
    /// Least severity of the conditions.
    pub severity: Severity,
    /// Limit of one attempt.
    pub timeout: Duration,
    /// Destination of the alerts.
    pub target: Target,
}

/// Destination of alerts.
#[derive(Clone, Debug)]
pub enum Target {
    /// Command that is run for each alert: absolute path and arguments.
    Command(Vec<String>),
    /// POST of JSON.
    Webhook(Webhook),
    /// Socket of the journal.
    Journal(PathBuf),
    /// Program that takes a mail on its standard input, and recipient.
    Mail {
        /// Absolute path and arguments.
        program: Vec<String>,
        /// Address of the recipient.
        to: String,
        /// Address of the sender, if it is not to be that of the daemon's user.
        from: Option<String>,
    },
}

/// Checks an address for a header of a mail.
///
/// # Errors
/// The reason why it is none.
pub fn check_address(address: &str) -> Result<(), String> {
    if address.is_empty() || address.len() > 254 || !address.chars().all(|character| character.is_ascii_graphic()) {
        return Err(format!("'{}' is not an address of ASCII characters without spaces", address.escape_debug()));
    }
    Ok(())
}

/// The sinks of the daemon.
#[derive(Default)]
pub(super) struct Sinks(Vec<Running>);

struct Running {
    name: String,
    severity: Severity,
    timeout: Duration,
    queue: SyncSender<Order>,
    trouble: Arc<Trouble>,
}

/// The reason why alerts are not delivered; `None` after one was.
#[derive(Default)]
struct Trouble(Mutex<Option<String>>);

impl Trouble {
    fn why(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Order {
    Deliver(Box<Alert>),
    Test(Box<Alert>, oneshot::Sender<Result<(), String>>),
}

impl Sinks {
    /// Starts the threads, which end some time after this is dropped.
    ///
    /// # Errors
    /// When the host cannot start a thread.
    pub(super) fn start(sinks: Vec<Sink>) -> io::Result<Sinks> {
        let start = |sink: Sink| {
            let (queue, orders) = sync_channel(QUEUE);
            let trouble = Arc::new(Trouble::default());
            let (name, severity, timeout) = (sink.name.clone(), sink.severity, sink.timeout);
            let worker = Worker { sink, trouble: Arc::clone(&trouble), killed: Killed::default(), rate: Rate::default() };
            thread::Builder::new().name("alerts".to_owned()).spawn(move || worker.run(&orders))?;
            Ok(Running { name, severity, timeout, queue, trouble })
        };
        sinks.into_iter().map(start).collect::<io::Result<Vec<Running>>>().map(Sinks)
    }

    /// Queues an alert for each sink that its severity concerns. Returns at once.
    pub(super) fn send(&self, alert: &Alert) {
        for sink in self.0.iter().filter(|sink| alert.condition.severity.is_at_least(sink.severity)) {
            if let Err(TrySendError::Full(_)) = sink.queue.try_send(Order::Deliver(Box::new(alert.clone()))) {
                let why = format!("{QUEUE} alerts wait, and later ones are left out");
                if sink.trouble.why().replace(why).is_none() {
                    tracing::warn!(sink = sink.name, "alerts are left out: {QUEUE} wait for the sink");
                }
            }
        }
    }

    /// Returns the sinks that fail, as conditions.
    pub(super) fn conditions(&self) -> Vec<Found> {
        let failing = self.0.iter().filter_map(|sink| Some((sink, sink.trouble.why().clone()?)));
        let found = |(sink, why): (&Running, String)| {
            let cause = format!("sink '{}' does not get alerts: {why}", sink.name);
            Found::new(ConditionKind::SinkFailing, &sink.name, cause, "correct that, then run 'millpond alert test'")
        };
        failing.map(found).collect()
    }
}

impl Daemon {
    /// Sends a test alert to each sink, and waits until each has delivered it or failed.
    pub(crate) async fn test_sinks(&self) -> Vec<SinkTest> {
        let mut tests = Vec::new();
        for sink in &self.sinks.0 {
            let (answer, answered) = oneshot::channel();
            let result = match sink.queue.try_send(Order::Test(Box::new(test_alert(&sink.name)), answer)) {
                Err(_) => Err(format!("{QUEUE} alerts wait for it already")),
                Ok(()) => match tokio::time::timeout(sink.timeout + TEST_WAIT, answered).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(_)) => Err("its thread has ended".to_owned()),
                    Err(_) => Err("it is busy with earlier alerts".to_owned()),
                },
            };
            tests.push(SinkTest { sink: sink.name.clone(), failure: result.err() });
        }
        tests
    }
}

fn test_alert(sink: &str) -> Alert {
    let time = instant::now();
    let condition = Condition {
        kind: ConditionKind::SinkFailing,
        severity: EventSeverity::Info,
        subject: sink.to_owned(),
        pool: None,
        device: None,
        cause: format!("this is a test of sink '{sink}', there is nothing to do"),
        remedy: String::new(),
        since: time,
        covered: false,
    };
    Alert { state: AlertState::Test, host: host_name(), time, condition }
}

struct Worker {
    sink: Sink,
    trouble: Arc<Trouble>,
    killed: Killed,
    rate: Rate,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        for order in orders {
            match order {
                Order::Deliver(alert) => {
                    thread::sleep(self.rate.wait(Instant::now()));
                    let result = self.deliver(&alert);
                    self.note(result);
                }
                Order::Test(alert, answer) => {
                    let result = self.attempt(&alert);
                    self.note(result.clone());
                    // the client may have gone
                    let _ = answer.send(result);
                }
            }
        }
    }

    fn note(&self, result: Result<(), String>) {
        let name = &self.sink.name;
        let before = std::mem::replace(&mut *self.trouble.why(), result.clone().err());
        match (result, before) {
            (Err(why), _) => tracing::warn!(sink = name, "an alert is not delivered: {why}"),
            (Ok(()), Some(_)) => tracing::info!(sink = name, "alerts are delivered again"),
            (Ok(()), None) => {}
        }
    }

    /// Delivers an alert, with a bounded number of attempts where a repetition does no harm.
    fn deliver(&mut self, alert: &Alert) -> Result<(), String> {
        let mut result = self.attempt(alert);
        if matches!(self.sink.target, Target::Webhook(_) | Target::Journal(_)) {
            for pause in PAUSES {
                if result.is_ok() {
                    break;
                }
                thread::sleep(pause);
                result = self.attempt(alert);
            }
        }
        result
    }

    fn attempt(&mut self, alert: &Alert) -> Result<(), String> {
        let timeout = self.sink.timeout;
        match &self.sink.target {
            Target::Command(command) => {
                let mut json = serde_json::to_vec(alert).map_err(|error| format!("no JSON: {error}"))?;
                json.push(b'\n');
                run_command(command, variables(alert), json, timeout, &mut self.killed)
            }
            Target::Mail { program, to, from } => {
                run_command(program, Vec::new(), mail::text(alert, to, from.as_deref()), timeout, &mut self.killed)
            }
            Target::Webhook(webhook) => webhook.post(alert, timeout),
            Target::Journal(socket) => journal::send(socket, alert),
        }
    }
}

/// Returns the environment of a command.
fn variables(alert: &Alert) -> Vec<(String, String)> {
    let Alert { state, host, time, condition } = alert;
    let Condition { kind, severity, subject, pool, device, cause, remedy, since, .. } = condition;
    let values = [
        ("STATE", state.to_string()),
        ("HOST", host.clone()),
        ("TIME", time.to_string()),
        ("KIND", kind.to_string()),
        ("SEVERITY", severity.to_string()),
        ("SUBJECT", subject.clone()),
        ("POOL", pool.clone().unwrap_or_default()),
        ("DEVICE", device.clone().unwrap_or_default()),
        ("CAUSE", cause.clone()),
        ("REMEDY", remedy.clone()),
        ("SINCE", since.to_string()),
    ];
    values.map(|(name, value)| (format!("MILLPOND_ALERT_{name}"), value)).to_vec()
}
