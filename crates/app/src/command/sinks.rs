//! The sinks of alerts in the daemon's configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use millpond_api::Severity;
use millpond_api::instant::parse_span;
use millpond_daemon::{Sink, Target, Webhook, check_address};

use crate::config::{CommandLine, SinkKind, SinkSection};

/// Socket of the journal of systemd.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Program that sends mail, as most hosts have it.
const SENDMAIL: [&str; 2] = ["/usr/sbin/sendmail", "-t"];
/// Most sinks: each has a thread.
const MOST: usize = 16;

/// Returns the sinks of the configuration.
///
/// # Errors
/// The reason why one of them cannot be used.
pub fn sinks(sections: &[SinkSection]) -> Result<Vec<Sink>, String> {
    if sections.len() > MOST {
        return Err(format!("{} sinks are more than {MOST}", sections.len()));
    }
    let mut names = BTreeSet::new();
    let each = |section: &SinkSection| {
        let name = &section.name;
        if name.is_empty() || !names.insert(name.clone()) {
            return Err(format!("sink '{name}': each needs a name of its own"));
        }
        sink(section).map_err(|why| format!("sink '{name}': {why}"))
    };
    sections.iter().map(each).collect()
}

fn sink(section: &SinkSection) -> Result<Sink, String> {
    let SinkSection { name, kind, severity, timeout, url, ca_file, token_file, command, socket, to, from } = section.clone();
    let given = [
        ("url", url.is_some(), SinkKind::Webhook),
        ("ca_file", ca_file.is_some(), SinkKind::Webhook),
        ("token_file", token_file.is_some(), SinkKind::Webhook),
        ("socket", socket.is_some(), SinkKind::Journald),
        ("to", to.is_some(), SinkKind::Sendmail),
        ("from", from.is_some(), SinkKind::Sendmail),
    ];
    if let Some((key, ..)) = given.iter().find(|(_, given, of)| *given && *of != kind) {
        return Err(format!("{key} is of no use for its kind; remove it"));
    }
    if command.is_some() && !matches!(kind, SinkKind::Command | SinkKind::Sendmail) {
        return Err("command is of no use for its kind; remove it".to_owned());
    }
    let (target, usual) = match kind {
        SinkKind::Webhook => {
            let url = url.ok_or("a webhook needs url")?;
            (Target::Webhook(Webhook::new(&url, ca_file, token_file).map_err(|why| format!("url: {why}"))?), 10)
        }
        SinkKind::Command => (Target::Command(command.map(CommandLine::words).ok_or("it needs command")??), 30),
        SinkKind::Journald => (Target::Journal(socket.unwrap_or_else(|| PathBuf::from(JOURNAL))), 10),
        SinkKind::Sendmail => {
            let to = to.ok_or("it needs to, the address of the recipient")?;
            [Some(&to), from.as_ref()].into_iter().flatten().try_for_each(|address| check_address(address))?;
            let program = command.map_or_else(|| Ok(SENDMAIL.map(str::to_owned).to_vec()), CommandLine::words)?;
            (Target::Mail { program, to, from }, 30)
        }
    };
    let timeout = timeout.as_deref().map_or(Ok(Duration::from_secs(usual)), parse_span).map_err(|e| format!("timeout: {e}"))?;
    Ok(Sink { name, severity: severity.unwrap_or(Severity::Warning), timeout, target })
}

#[cfg(test)]
mod tests {
    //! Sections that are whole, and those that are refused.
    use super::*;
    use crate::config::ConfigFile;

    fn of(text: &str) -> Result<Vec<Sink>, String> {
        let config: ConfigFile = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        sinks(&config.sink)
    }

    #[test]
    fn sections_are_checked() {
        let all = of("[[sink]]\nname = \"a\"\nkind = \"webhook\"\nurl = \"https://host/x\"\nseverity = \"error\"\n\
            [[sink]]\nname = \"b\"\nkind = \"journald\"\n[[sink]]\nname = \"c\"\nkind = \"sendmail\"\nto = \"root\"\n\
            [[sink]]\nname = \"d\"\nkind = \"command\"\ncommand = \"/bin/true\"\ntimeout = \"2s\"\n");
        let all = all.expect("sinks");
        assert_eq!(all.iter().map(|sink| sink.timeout.as_secs()).collect::<Vec<_>>(), [10, 10, 30, 2]);
        assert_eq!(all.first().map(|sink| sink.severity), Some(Severity::Error));
        for (text, word) in [
            ("kind = \"webhook\"", "needs url"),
            ("kind = \"webhook\"\nurl = \"gopher://x\"", "https://"),
            ("kind = \"journald\"\nurl = \"http://x\"", "url is of no use"),
            ("kind = \"command\"", "needs command"),
            ("kind = \"command\"\ncommand = \"true\"", "not an absolute path"),
            ("kind = \"sendmail\"", "needs to"),
            ("kind = \"sendmail\"\nto = \"a b\"", "not an address"),
            ("kind = \"pigeon\"", "pigeon"),
            ("kind = \"journald\"\ncolour = 1", "colour"),
            ("kind = \"journald\"\n[[sink]]\nname = \"a\"\nkind = \"journald\"", "a name of its own"),
        ] {
            let why = of(&format!("[[sink]]\nname = \"a\"\n{text}\n")).expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
