//! Health: a device of a mirror dies under load; the condition is listed, a webhook gets one alert,
//! and one more when a new device is full.

use super::PATIENCE;
use super::devices::wait_whole;
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, anyhow, ensure};
use millpond_lab::peer::{Contender, Millpond, VolatileDisk, millpond_binary};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

const DEVICE: u64 = 128 << 20;
/// Two looks of the daemon at its pools: an alert that comes twice has come twice by then.
const LOOKS: Duration = Duration::from_secs(11);

/// A web server that keeps the alerts that are posted to it.
struct Receiver {
    port: u16,
    alerts: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start() -> Result<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let alerts = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&alerts);
        // ends with the program
        thread::spawn(move || {
            for alert in listener.incoming().flatten().filter_map(|stream| take(stream).ok()) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(alert);
            }
        });
        Ok(Receiver { port, alerts })
    }

    /// States of the alerts of a kind, in order.
    fn states(&self, kind: &str) -> Vec<String> {
        let alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = alerts.iter().filter(|alert| alert["condition"]["kind"] == kind);
        of_kind.map(|alert| alert["state"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Reads a request and answers it.
fn take(stream: TcpStream) -> Result<Value> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    write!(reader.get_mut(), "HTTP/1.1 204 No Content\r\n\r\n")?;
    Ok(serde_json::from_slice(&body)?)
}

fn conditions(millpond: &Millpond, kind: &str) -> Result<Vec<Value>> {
    let status = millpond.json(&["status"])?;
    let listed = status["conditions"].as_array().context("no list of conditions")?;
    Ok(listed.iter().filter(|condition| condition["kind"] == kind).cloned().collect())
}

/// Pulls a device of a mirror under load, and replaces it.
pub fn run(subject: &mut Subject) -> Result<()> {
    let receiver = Receiver::start()?;
    let top = subject.file("health");
    fs::create_dir_all(&top)?;
    let mut dying = VolatileDisk::start(&subject.file("health-dying"), DEVICE)?;
    let sink = format!("[[sink]]\nname = \"web\"\nkind = \"webhook\"\nurl = \"http://127.0.0.1:{}/alerts\"", receiver.port);
    let mut millpond = Millpond::new(millpond_binary()?).with_setting("import_wait = \"1s\"").with_setting(&sink);
    millpond.start_empty(&top)?;
    let sized = |name: &str| format!("{}:{DEVICE}", top.join(name).display());
    millpond.cli(&["pool", "create", "tank", "mirror", &dying.path().display().to_string(), &sized("b")])?;
    millpond.cli(&["create", "tank/disk", "-L", "32M"])?;
    millpond.cli(&["alert", "test"])?;
    ensure!(receiver.states("sink.failing") == ["test"], "the test alert did not come");
    let uri = millpond.export("tank/disk")?.uri();
    ensure!(conditions(&millpond, "pool.degraded")?.is_empty(), "the new pool is degraded");

    let load = {
        let uri = uri.clone();
        thread::spawn(move || fio(&uri, "randwrite", 2, &[]).and_then(|()| fio(&uri, "randwrite", 3, &[])))
    };
    sleep(Duration::from_millis(300));
    ensure!(!load.is_finished(), "the load ended before the device died");
    dying.power_off()?;
    wait_until("an alert", PATIENCE, || receiver.states("pool.degraded") == ["begun"])?;
    load.join().map_err(|_| anyhow!("fio's thread panicked"))??;
    let listed = conditions(&millpond, "pool.degraded")?;
    let [condition] = listed.as_slice() else { return Err(anyhow!("not one condition: {listed:?}")) };
    let says = |field: &str, words: &str| condition[field].as_str().is_some_and(|text| text.contains(words));
    ensure!(condition["severity"] == "error" && says("subject", "tank") && says("remedy", "pool replace tank"), "{condition}");
    let since = condition["since"].clone();
    // the condition is known over a restart, and reported once
    millpond.kill9()?;
    millpond.launch()?;
    wait_until("the pool is back", PATIENCE, || conditions(&millpond, "pool.degraded").is_ok_and(|listed| !listed.is_empty()))?;
    sleep(LOOKS);
    ensure!(conditions(&millpond, "pool.degraded")?.iter().all(|condition| condition["since"] == since), "it begins anew");
    ensure!(receiver.states("pool.degraded") == ["begun"], "{:?}", receiver.states("pool.degraded"));

    millpond.cli(&["pool", "replace", "tank", &dying.path().display().to_string(), &sized("c"), "--wait"])?;
    wait_whole(&millpond)?;
    wait_until("the end", PATIENCE, || receiver.states("pool.degraded") == ["begun", "ended"])?;
    sleep(LOOKS);
    ensure!(receiver.states("pool.degraded") == ["begun", "ended"], "{:?}", receiver.states("pool.degraded"));
    ensure!(conditions(&millpond, "pool.degraded")?.is_empty(), "the condition is still listed");
    fio(&uri, "randwrite", 3, &["--verify_only=1"])?;
    millpond.stop()
}
