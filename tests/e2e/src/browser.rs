//! Chromium, driven over the pipe of the DevTools protocol: JSON messages that end with a zero byte.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for an answer of the browser, or for a condition on a page.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// Errors on the page's console, exceptions, and requests that the page's policy blocked.
    pub errors: Vec<String>,
}

impl Browser {
    /// Starts the browser with a new profile in `dir`.
    pub fn start(dir: &Path) -> Result<Browser> {
        // the shell gives the browser its pipes as descriptors 3 and 4
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"])
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
            ])
            .args(["--ignore-certificate-errors", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting chromium")?;
        let (to, out) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
        let (send, from) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if send.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Browser { child, to, from, session: String::new(), next: 1, errors: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}))?;
        browser.session = attached["sessionId"].as_str().context("a session")?.to_owned();
        for domain in ["Page", "Runtime", "Log", "Performance"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.to.write_all(&bytes).context("the browser has ended")?;
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = match self.from.recv_timeout(left) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => bail!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => bail!("{method}: the browser has ended"),
            };
            if answer["id"] == json!(id) {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].clone());
            }
            self.note(&answer);
        }
    }

    /// Remembers errors that the browser reports.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.consoleAPICalled" if params["type"] == "error" || params["type"] == "assert" => {
                self.errors.push(params["args"].to_string())
            }
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.errors.push(format!("{} {}", params["entry"]["text"], params["entry"]["url"]));
            }
            _ => {}
        }
    }

    /// Opens an address.
    pub fn open(&mut self, url: &str) -> Result<()> {
        self.call("Page.navigate", json!({"url": url})).map(drop)
    }

    /// Evaluates an expression on the page; waits for a promise.
    pub fn eval(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let result = self.call("Runtime.evaluate", params)?;
        ensure!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]["exception"]["description"]);
        Ok(result["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, what: &str, expression: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        // a page that is being loaded has no body yet
        while self.eval(&format!("(async () => Boolean(await ({expression})))()")).ok() != Some(json!(true)) {
            if Instant::now() > end {
                let text = self.eval("document.body.innerText")?;
                bail!("never: {what}; the page has {text}");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until the page, or an open dialog, has a text.
    pub fn wait_text(&mut self, text: &str) -> Result<()> {
        self.wait(text, &format!("document.body.innerText.includes({})", json!(text)))
    }

    /// Presses the button or link whose name is or begins with a text; in a dialog if one is open.
    pub fn press(&mut self, name: &str) -> Result<()> {
        let find = format!(
            "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('button, a')]\
             .find((one) => !one.disabled && (one.getAttribute('aria-label') ?? one.textContent).trim().startsWith({}))",
            json!(name)
        );
        self.wait(&format!("a button {name}"), &find)?;
        self.eval(&format!("{find}.click()")).map(drop)
    }

    /// Fills a field of the open dialog, or of the page.
    pub fn fill(&mut self, field: &str, value: &str) -> Result<()> {
        let find = format!("(document.querySelector('dialog[open]') ?? document).querySelector('[name={field}]')");
        self.wait(&format!("a field {field}"), &find)?;
        let fill = format!(
            "(() => {{ const one = {find}; one.focus(); one.value = {}; \
             one.dispatchEvent(new Event('input', {{bubbles: true}})); one.dispatchEvent(new Event('change', {{bubbles: true}})); }})()",
            json!(value)
        );
        self.eval(&fill).map(drop)
    }

    /// Presses a key, such as `ArrowDown` or `Enter`.
    pub fn key(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowDown" => 40,
            "End" => 35,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if key == "Enter" && kind == "keyDown" {
                event["text"] = json!("\r");
            }
            self.call("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Sets the width of the window in pixels, and the colour scheme: `light` or `dark`.
    pub fn look(&mut self, width: u32, scheme: &str) -> Result<()> {
        let phone = width < 600;
        self.call("Emulation.setDeviceMetricsOverride", json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}))?;
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).map(drop)
    }

    /// Writes a picture of the whole page.
    pub fn picture(&mut self, path: &Path) -> Result<()> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}))?;
        let bytes = decode(shot["data"].as_str().context("a picture")?)?;
        std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
    }

    /// Returns a measurement of the page, such as `JSHeapUsedSize`, after unused memory was freed.
    pub fn metric(&mut self, name: &str) -> Result<f64> {
        self.call("HeapProfiler.collectGarbage", json!({}))?;
        let metrics = self.call("Performance.getMetrics", json!({}))?;
        let found = metrics["metrics"].as_array().into_iter().flatten().find(|one| one["name"] == name);
        found.and_then(|one| one["value"].as_f64()).with_context(|| format!("no measurement {name}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64.
fn decode(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("no base64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Ok(bytes)
}
