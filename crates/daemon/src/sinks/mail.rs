//! An alert as a mail, for `sendmail -t`.

use millpond_api::{Alert, AlertState, Condition};

/// Returns the mail. Control characters become spaces, so that no value adds a header.
pub fn text(alert: &Alert, to: &str, from: Option<&str>) -> Vec<u8> {
    let Alert { state, host, time, condition } = alert;
    let Condition { kind, severity, subject, cause, remedy, since, .. } = condition;
    let word = match state {
        AlertState::Ended => "ended".to_owned(),
        AlertState::Test => "test".to_owned(),
        _ => severity.to_string(),
    };
    let from = from.map(|from| format!("From: {}\n", header(from))).unwrap_or_default();
    let title = header(&format!("{host}: millpond {word}: {kind} {subject}"));
    let date = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
    let remedy = if remedy.is_empty() { String::new() } else { format!("What to do: {}\n", plain(remedy)) };
    let text = format!(
        "{from}To: {}\nSubject: {title}\nDate: {date}\nAuto-Submitted: auto-generated\nMIME-Version: 1.0\n\
         Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n\
         {}\n\n{remedy}Condition:  {kind}\nSeverity:   {severity}\nSubject:    {}\nSince:      {since}\nState:      {state} at {time}\nHost:       {host}\n",
        header(to),
        plain(cause),
        plain(subject),
    );
    text.into_bytes()
}

/// Returns a value of a header: printable ASCII alone.
fn header(value: &str) -> String {
    value.chars().map(|character| if character == ' ' || character.is_ascii_graphic() { character } else { '?' }).take(200).collect()
}

fn plain(value: &str) -> String {
    value.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
