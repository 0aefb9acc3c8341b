//! The command gets the event, failures are reported, and a command that hangs is killed.

use std::fs;
use std::io::{BufRead, BufReader};

use millpond_api::{EventKind, instant};

use super::*;

fn event(severity: Severity, message: &str) -> Event {
    Event {
        number: 1,
        time: instant::from_millis(0),
        severity: severity.into(),
        event: EventKind::DeviceFailed,
        subject: "/dev/sdx".to_owned(),
        pool: Some("tank".to_owned()),
        device: Some("/dev/sdx".to_owned()),
        message: message.to_owned(),
        by: None,
    }
}

fn shell(script: &str, timeout: Duration) -> Hook {
    Hook { command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), severity: Severity::Warning, timeout }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn the_command_gets_the_event_in_its_environment_and_as_json() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("out");
    let script = format!("env | grep ^MILLPOND_EVENT_ | sort > {0}; cat >> {0}", file.display());
    let event = event(Severity::Error, "device /dev/sdx of pool 'tank' failed: it is \"gone\"");
    assert_eq!(run_once(&shell(&script, LONG), &event, &mut Killed::default()), Ok(()));
    let text = fs::read_to_string(&file).expect("written");
    let (lines, json) = text.rsplit_once("\n{").expect("lines and JSON");
    assert_eq!(
        lines.lines().collect::<Vec<_>>(),
        [
            "MILLPOND_EVENT_DEVICE=/dev/sdx",
            "MILLPOND_EVENT_KIND=device.failed",
            "MILLPOND_EVENT_MESSAGE=device /dev/sdx of pool 'tank' failed: it is \"gone\"",
            "MILLPOND_EVENT_POOL=tank",
            "MILLPOND_EVENT_SEVERITY=error",
            "MILLPOND_EVENT_SUBJECT=/dev/sdx",
            "MILLPOND_EVENT_TIME=1970-01-01T00:00:00Z",
        ]
    );
    assert_eq!(serde_json::from_str::<Event>(&format!("{{{json}")).expect("JSON"), event);
}

#[test]
fn failures_are_told_and_a_command_that_hangs_is_killed_with_its_children() {
    let event = event(Severity::Warning, "slow");
    let mut killed = Killed::default();
    let mut failure = |hook: &Hook| run_once(hook, &event, &mut killed).expect_err("a failure");
    assert_eq!(failure(&shell("exit 3", LONG)), "it ended with exit code 3");
    assert_eq!(failure(&shell("kill -9 $$", LONG)), "it ended by signal 9");
    let nothing = Hook { command: vec!["/nonexistent/program".to_owned()], severity: Severity::Info, timeout: LONG };
    assert!(failure(&nothing).starts_with("it cannot be run"));
    assert_eq!(failure(&shell("sleep 600", Duration::ZERO)), "it did not end within 0 s, and was killed");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "sleep 600 & echo up; wait"]).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("reads");
    assert_eq!(attend(&mut child, None, Duration::ZERO).expect("waits"), None);
    killed.kill(child, LONG);
    // end of file: the command's child does not hold the pipe open any more either
    assert_eq!(out.read_line(&mut line).expect("reads"), 0);
}

#[test]
fn a_command_that_does_not_read_a_long_event_is_killed_in_time() {
    // more than a pipe holds
    let event = Event { subject: "x".repeat(100_000), ..event(Severity::Warning, "long") };
    let failure = run_once(&shell("exec sleep 600", Duration::ZERO), &event, &mut Killed::default()).expect_err("it does not end");
    assert_eq!(failure, "it did not end within 0 s, and was killed");
    let read = shell("test $(wc -c) -gt 100000", LONG);
    assert_eq!(run_once(&read, &event, &mut Killed::default()), Ok(()));
}

#[test]
fn commands_that_do_not_end_when_killed_are_so_many_at_most_and_are_not_waited_for() {
    let mut killed = Killed::default();
    let sleep = || Command::new("/bin/sh").args(["-c", "exec sleep 600"]).process_group(0).spawn().expect("starts");
    // as if the kernel kept them from ending
    killed.0.extend((0..UNENDED).map(|_| sleep()));
    let event = event(Severity::Warning, "one more");
    let failure = run_once(&shell("true", LONG), &event, &mut killed).expect_err("too many");
    assert!(failure.contains("have not ended"), "{failure}");
    assert_eq!(killed.0.len(), UNENDED);
    for child in &killed.0 {
        kill_process_group(Pid::from_child(child), Signal::KILL).expect("killed");
    }
    eventually(|| {
        killed.reap();
        killed.0.is_empty()
    });
    assert_eq!(run_once(&shell("true", LONG), &event, &mut killed), Ok(()));
}

#[test]
fn events_wait_in_a_bounded_queue_and_nobody_waits_for_them() {
    let dir = tempfile::tempdir().expect("directory");
    let at = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(at("go")).status().expect("mkfifo").success());
    // the first command waits until the test lets it go on
    let script =
        format!("cd {}; [ -e begun ] || {{ : > begun; read line < go; }}; echo $MILLPOND_EVENT_MESSAGE >> out", dir.path().display());
    let mut queue = HookQueue::start(shell(&script, LONG)).expect("thread");
    queue.hand_over(&event(Severity::Info, "below what is asked for"));
    queue.hand_over(&event(Severity::Warning, "0"));
    eventually(|| at("begun").exists());
    (1..=QUEUE + 5).for_each(|nth| queue.hand_over(&event(Severity::Error, &nth.to_string())));
    assert_eq!(queue.left_out, 5);
    fs::write(at("go"), "\n").expect("goes on");
    drop(queue);
    let lines = || fs::read_to_string(at("out")).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    eventually(|| lines().len() > QUEUE);
    assert_eq!(lines(), (0..=QUEUE).map(|nth| nth.to_string()).collect::<Vec<_>>());
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never");
        thread::sleep(Duration::from_millis(5));
    }
}
