//! `events`: lists past events and follows new ones.

use std::io::{self, Write};

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant;
use millpond_api::{Event, Severity};

use super::columns::EVENT;
use crate::output::{Format, Listing, print};

/// List events: failed devices, degraded or full pools, ended jobs, and commands of users
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond events --since 24h
  millpond events --severity warning --follow
  millpond events --since 2027-01-31 --format json

The daemon keeps the last 1000 events, also across restarts. JSON is one object per line.
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
        let since = if self.follow { since } else { Some(since.unwrap_or_default()) };
        let since = since.map(|since| format!("&since={}", quoted(&since.to_string()))).unwrap_or_default();
        let path = format!("/v1/events?follow={}&severity={}{since}", self.follow, self.severity.name());
        if self.follow {
            return self.follow(client, &path).await;
        }
        let mut events = Vec::new();
        client
            .lines(&path, |line| {
                events.push(read(line)?);
                Ok(true)
            })
            .await?;
        if self.how.format == Format::Json {
            return events.iter().try_for_each(|event| self.print_json(event).map(drop));
        }
        print(&events, EVENT, &self.how)
    }

    async fn follow(&self, client: &Client, path: &str) -> Outcome {
        let plain = self.how.no_header || !self.how.columns.is_empty();
        if self.how.format == Format::Table && !plain {
            write(&format!("{:20}  {:8}  {:18}  MESSAGE\n", "TIME", "SEVERITY", "EVENT"))?;
        }
        let by_tabs = Listing { no_header: true, ..self.how.clone() };
        let each = |line: &str| {
            let event = read(line)?;
            match self.how.format {
                Format::Json => self.print_json(&event),
                Format::Table if plain => print(&[event], EVENT, &by_tabs).map(|()| true),
                Format::Table => {
                    let time = event.time.strftime("%Y-%m-%dT%H:%M:%SZ");
                    write(&format!("{time:20}  {:8}  {:18}  {}\n", event.severity, event.event, event.message))
                }
            }
        };
        if client.lines(path, each).await? {
            return Err(Failure::unreachable("the daemon ended the stream of events: it is stopping, or was stopped"));
        }
        Ok(())
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
