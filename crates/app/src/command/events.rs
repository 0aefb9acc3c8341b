//! `events`: lists past events and follows new ones.

use std::cell::Cell;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Code, Failure, Outcome};
use millpond_api::instant;
use millpond_api::{Event, Severity, Status};
use tokio::time::sleep;

use super::columns::EVENT;
use crate::output::{Format, Listing, print};

/// Interval between attempts to reach a daemon that has ended.
const RETRY: Duration = Duration::from_millis(500);

/// List events: failed devices, degraded or full pools, ended jobs, and commands of users
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond events --since 24h
  millpond events --severity warning --follow
  millpond events --since 2027-01-31 --format json
  millpond events -o time,by,message

The daemon keeps the last 10000 events, also across restarts. --follow continues when the daemon is restarted, and misses no event.
JSON is one object per line; its field 'by' has the caller whose command made the change.
docs/events.md lists the kinds of events; on_event in the daemon's configuration runs a command for each.")]
pub struct Events {
    /// Continue with new events; without --since, only new ones
    #[arg(short = 'f', long)]
    follow: bool,
    /// Only events since then: a time, a date, or a duration before now such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only events of this severity and above
    #[arg(long, value_enum, default_value_t, value_name = "SEVERITY")]
    severity: Severity,
    #[command(flatten)]
    how: Listing,
}

impl Events {
    pub async fn run(self, client: &Client) -> Outcome {
        let since = self.since.as_deref().map(|text| instant::parse_past(text, instant::now())).transpose()?;
        if self.follow {
            return self.follow(client, since).await;
        }
        let events = stored(client, since.unwrap_or_default(), self.severity).await?;
        if self.how.format == Format::Json {
            return events.iter().try_for_each(|event| self.print_json(event).map(drop));
        }
        print(&events, EVENT, &self.how)
    }

    /// Prints events as they happen, until standard output is closed. Waits for a daemon that ends
    /// and continues with the events after the last one that it printed.
    async fn follow(&self, client: &Client, since: Option<Timestamp>) -> Outcome {
        let begun = instant::now();
        let plain = self.how.no_header || !self.how.columns.is_empty();
        if self.how.format == Format::Table && !plain {
            write(&format!("{:20}  {:8}  {:18}  MESSAGE\n", "TIME", "SEVERITY", "EVENT"))?;
        }
        let by_tabs = Listing { no_header: true, ..self.how.clone() };
        let last = Cell::new(None);
        let each = |line: &str| {
            let event = read(line)?;
            last.set(Some(event.number).filter(|number| *number > 0));
            match self.how.format {
                Format::Json => self.print_json(&event),
                Format::Table if plain => print(&[event], EVENT, &by_tabs).map(|()| true),
                Format::Table => {
                    let time = event.time.strftime("%Y-%m-%dT%H:%M:%SZ");
                    write(&format!("{time:20}  {:8}  {:18}  {}\n", event.severity, event.event, event.message))
                }
            }
        };
        // a daemon that does not run at the beginning is an error
        client.get::<Status>("/v1/status").await?;
        loop {
            let from = match last.get() {
                Some(number) => format!("&after={number}"),
                None => from(since.unwrap_or(begun)),
            };
            let path = format!("/v1/events?follow=true&severity={}{from}", self.severity.name());
            match client.lines(&path, &each).await {
                Ok(false) => return Ok(()),
                Ok(true) => eprintln!("millpond: the daemon ended the stream of events; waiting for the next daemon"),
                Err(failure) if failure.code == Code::Unreachable => {}
                Err(failure) => return Err(failure),
            }
            sleep(RETRY).await;
        }
    }

    /// Prints one event as one line of JSON; false if stdout was closed by its reader.
    fn print_json(&self, event: &Event) -> Outcome<bool> {
        if !self.how.columns.is_empty() {
            return print(std::slice::from_ref(event), EVENT, &self.how).map(|()| true);
        }
        let text = serde_json::to_string(event).map_err(|e| Failure::failed(format!("cannot encode an event: {e}")))?;
        write(&(text + "\n"))
    }
}

/// Returns the stored events since a time, of a severity and above, oldest first.
pub async fn stored(client: &Client, since: Timestamp, severity: Severity) -> Outcome<Vec<Event>> {
    let mut events = Vec::new();
    let path = format!("/v1/events?follow=false&severity={}{}", severity.name(), from(since));
    let each = |line: &str| {
        events.push(read(line)?);
        Ok(true)
    };
    client.lines(&path, each).await?;
    Ok(events)
}

fn from(since: Timestamp) -> String {
    format!("&since={}", quoted(&since.to_string()))
}

fn read(line: &str) -> Outcome<Event> {
    serde_json::from_str(line)
        .map_err(|e| Failure::failed(format!("the daemon's answer is not understood: {e}; use the millpond that belongs to it")))
}

/// Writes to stdout and flushes; false if stdout was closed by its reader.
fn write(text: &str) -> Outcome<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::failed(format!("cannot write to standard output: {e}"))),
    }
}
