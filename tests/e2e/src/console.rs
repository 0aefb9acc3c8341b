//! The web console in Chromium: volumes, snapshots under load, rollback, policies, a lost device, and
//! many snapshots. `MILLPOND_PICTURES=DIR` keeps pictures of the pages.

use super::browser::Browser;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Op};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use millpond_lab::process::{find_tool, memory, run_command};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 65536;
/// Version of axe-core that checks the pages.
const AXE: &str = "axe-core@4.10.3";
/// Numbers of the test of scale.
const VOLUMES: usize = 1000;
const SNAPSHOTS: usize = 10_000;
/// Snapshots that one request takes.
const AT_ONCE: usize = 250;
/// Longest time until the first paint, in milliseconds.
const FIRST_PAINT: f64 = 1000.0;
/// Most bytes of a page's scripts.
const HEAP: f64 = 64e6;

fn start(subject: &Subject) -> Result<Millpond> {
    let mut millpond = Millpond::new(millpond_binary()?).without_read_cache().with_setting("web = \"127.0.0.1:0\"");
    millpond.start_empty(&subject.file("server"))?;
    Ok(millpond)
}

fn log_in(browser: &mut Browser, millpond: &Millpond) -> Result<String> {
    let link = millpond.cli(&["token", "link"])?;
    browser.open(link.trim())?;
    browser.wait("the overview", "document.querySelector('h1')?.textContent === 'Overview'")?;
    let address = browser.eval("location.href")?;
    ensure!(!address.as_str().is_some_and(|address| address.contains("login")), "the code stays in the address: {address}");
    Ok(link.trim().split('#').next().unwrap_or_default().to_owned())
}

/// Returns axe-core's script: that of `MILLPOND_AXE`, or fetched with npm.
fn axe(dir: &Path) -> Result<Option<String>> {
    if let Some(path) = std::env::var_os("MILLPOND_AXE") {
        return Ok(Some(std::fs::read_to_string(path)?));
    }
    let fetch = || -> Result<String> {
        find_tool("npm").context("npm is not installed")?;
        run_command(Command::new("npm").args(["pack", "--silent", AXE]).current_dir(dir))?;
        let archive = AXE.replace('@', "-") + ".tgz";
        run_command(Command::new("tar").args(["-xzf", &archive, "package/axe.min.js"]).current_dir(dir))?;
        Ok(std::fs::read_to_string(dir.join("package/axe.min.js"))?)
    };
    match fetch() {
        Ok(script) => Ok(Some(script)),
        Err(error) => {
            println!("SKIPPED axe-core: {error:#}");
            Ok(None)
        }
    }
}

/// Checks the page as it is: in both schemes and two widths, with axe-core, and without a horizontal
/// scroll bar on a phone.
fn inspect(browser: &mut Browser, axe: Option<&str>, name: &str) -> Result<()> {
    let pictures = std::env::var_os("MILLPOND_PICTURES").map(PathBuf::from);
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light")] {
        browser.look(width, scheme)?;
        std::thread::sleep(Duration::from_millis(300));
        if let Some(dir) = &pictures {
            browser.picture(&dir.join(format!("{name}-{width}-{scheme}.png")))?;
        }
        let beyond = browser.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")?;
        ensure!(beyond.as_f64().is_some_and(|beyond| beyond <= 0.0), "{name} at {width}: {beyond} pixels are beyond the window");
        let Some(axe) = axe else { continue };
        if browser.eval("typeof axe")? == "undefined" {
            browser.eval(&format!("{axe};0"))?;
        }
        let found = browser.eval(
            "axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations\
             .filter((one) => ['serious', 'critical'].includes(one.impact))\
             .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.html} ${node.failureSummary}`).join('; ')}`))",
        )?;
        ensure!(found == json!([]), "axe-core finds on {name} at {width}, {scheme}: {found:#}");
    }
    browser.look(1280, "light")
}

fn read(endpoint: &Endpoint, offset: u64) -> Result<u8> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    client.call(Op::Read, offset, BLOCK)?;
    client.data(0).first().copied().context("no data")
}

fn write(endpoint: &Endpoint, byte: u8) -> Result<()> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    client.data(0).fill(byte);
    client.call(Op::Write, 0, BLOCK)?;
    client.call(Op::Flush, 0, 0)?;
    Ok(())
}

/// Writes to the end of the disk until `over`; returns the number of writes.
fn load(endpoint: &Endpoint, over: &AtomicBool) -> Result<u64> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        client.call(Op::Write, (1 + count % 64) * BLOCK as u64, BLOCK)?;
        count += 1;
    }
    Ok(count)
}

/// Takes snapshots and looks at the live figures while a load runs.
fn under_load(browser: &mut Browser, axe: Option<&str>) -> Result<()> {
    for name in ["one", "two", "three"] {
        snapshot(browser, name)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    let words = "[...document.querySelectorAll('figcaption')].map((one) => one.innerText).join(' ')";
    browser.wait("writes in the chart", &format!("/writes [1-9]/.test({words})"))?;
    browser.wait("marks in the chart", "document.querySelectorAll('.chart .mark').length >= 3")?;
    inspect(browser, axe, "volume")
}

/// Refuses errors on the console, except the browser's lines about requests that the daemon refused
/// as the test wanted.
fn no_errors(browser: &mut Browser) -> Result<()> {
    let wanted = |error: &String| ["status of 401", "status of 409", "status of 422"].iter().any(|status| error.contains(status));
    let errors: Vec<String> = std::mem::take(&mut browser.errors).into_iter().filter(|error| !wanted(error)).collect();
    ensure!(errors.is_empty(), "errors on the console: {errors:#?}");
    Ok(())
}

/// Takes a snapshot in the dialog.
fn snapshot(browser: &mut Browser, name: &str) -> Result<()> {
    browser.press("Snapshot…")?;
    browser.fill("snapshot", name)?;
    browser.press("Take it")?;
    browser.wait(name, &format!("[...document.querySelectorAll('.vrow')].some((row) => row.innerText.includes('@{name}'))"))
}

fn select(browser: &mut Browser, name: &str) -> Result<()> {
    browser.eval(&format!("[...document.querySelectorAll('.vrow')].find((row) => row.innerText.includes('@{name}')).click()"))?;
    browser.wait("its actions", &format!("document.querySelector('[aria-label=\"Selected snapshot\"] h2')?.textContent === '@{name}'"))
}

/// Rolls back: the dialog says what is lost before it lets one go on.
fn roll_back(browser: &mut Browser, axe: Option<&str>, endpoint: &Endpoint) -> Result<()> {
    write(endpoint, 2)?;
    select(browser, "one")?;
    browser
        .wait("no client", "fetch('/v1/exports').then((answer) => answer.json()).then((all) => all.every((one) => one.clients === 0))")?;
    browser.press("Roll back…")?;
    browser
        .wait("the loss", "document.querySelector('dialog .loss')?.innerText.includes('is kept as the snapshot tank/vm1@pre-rollback')")?;
    inspect(browser, axe, "rollback")?;
    ensure!(read(endpoint, 0)? == 2, "nothing is done before it is agreed to");
    browser.press("Roll back")?;
    browser.wait_text("is as it was at @one")?;
    ensure!(read(endpoint, 0)? == 1, "the volume is as it was");
    browser.wait_text("pre-rollback")?;
    Ok(())
}

/// Clones a snapshot and holds another one, which cannot be destroyed then.
fn clone_and_hold(browser: &mut Browser) -> Result<()> {
    select(browser, "two")?;
    browser.press("Clone…")?;
    browser.fill("clone", "vm1-copy")?;
    browser.press("Clone")?;
    browser.wait("a branch", "document.querySelector('.timeline .name')?.textContent === 'vm1-copy'")?;
    select(browser, "three")?;
    browser.press("Hold…")?;
    browser.fill("tag", "audit")?;
    browser.press("Hold")?;
    browser.wait("a mark", "[...document.querySelectorAll('.vrow')].some((row) => /@three[^]*held/.test(row.innerText))")?;
    select(browser, "three")?;
    browser.press("Destroy…")?;
    browser.wait("a refusal", "document.querySelector('dialog .loss.bad')?.innerText.match(/hold|held/)")?;
    ensure!(browser.eval("document.querySelector('dialog button.danger').disabled")? == true, "a held snapshot cannot be destroyed");
    browser.key("Escape")?;
    browser.wait("no dialog", "!document.querySelector('dialog')")?;
    Ok(())
}

/// Compares by keyboard: the list, the next snapshot, its button.
fn compare_by_keyboard(browser: &mut Browser) -> Result<()> {
    browser.eval("document.querySelector('.vlist').focus()")?;
    browser.key("End")?;
    browser.wait("the oldest", "document.querySelector('[aria-label=\"Selected snapshot\"] h2').textContent === '@one'")?;
    browser.press("Compare…")?;
    browser.wait("differences", "/differ, in \\d+ ranges/.test(document.querySelector('dialog .loss').innerText)")?;
    browser.key("Escape")?;
    Ok(())
}

/// Makes a policy, attaches the volume, lets it run, and changes it: the dialog names the snapshots
/// that the new rules would destroy.
fn policies(browser: &mut Browser, axe: Option<&str>, url: &str) -> Result<()> {
    browser.open(&format!("{url}#/policies"))?;
    browser.wait_text("No policy yet")?;
    browser.press("New policy…")?;
    browser.fill("policy", "often")?;
    browser.fill("keep", "1s:never")?;
    browser.wait("a refusal", "document.querySelector('dialog .loss.bad')?.innerText.includes('never')")?;
    ensure!(browser.eval("document.querySelector('dialog button.main').disabled")? == true, "wrong rules cannot be sent");
    browser.fill("keep", "1s:1m")?;
    browser.wait("a plan", "/at most \\d+ of each volume/.test(document.querySelector('dialog .loss').innerText)")?;
    inspect(browser, axe, "policy")?;
    browser.press("Create")?;
    browser.wait_text("No volume is attached.")?;
    browser.press("Attach…")?;
    browser.wait("a volume", "document.querySelector('dialog .loss li')?.innerText === 'tank/vm1'")?;
    browser.press("Attach")?;
    let number = "Number(document.querySelector('td[data-name=Snapshots]')?.innerText)";
    browser.wait("some runs", &format!("{number} >= 3"))?;
    browser.wait("the next run", "/^\\d{4}-/.test(document.querySelector('td[data-name=\"Next run\"]').innerText)")?;
    inspect(browser, axe, "policies")?;

    browser.press("Change…")?;
    browser.fill("keep", "1d:2d")?;
    browser.wait(
        "the loss",
        "[...document.querySelectorAll('dialog .loss.bad li')].some((one) => one.innerText.includes('tank/vm1@auto-often-'))",
    )?;
    browser.press("Change")?;
    browser.wait_text("1d:2d")?;
    let before = browser.eval(number)?.as_u64().context("a number")?;
    browser.press("Run now…")?;
    browser.wait("the loss", "document.querySelectorAll('dialog .loss.bad li').length > 1")?;
    browser.press("Run")?;
    browser.wait("fewer snapshots", &format!("{number} < {before}"))?;
    browser.press("Detach tank/vm1")?;
    browser.press("Detach")?;
    browser.wait_text("No volume is attached.")?;
    browser.press("Destroy…")?;
    browser.press("Destroy")?;
    browser.wait_text("No policy yet")?;
    Ok(())
}

/// Waits until the page Health has no condition, except the free space of the machine that runs the
/// tests.
fn wait_well(browser: &mut Browser) -> Result<()> {
    let conditions = "[...document.querySelectorAll('section.alert')].map((one) => one.getAttribute('aria-label'))";
    browser.wait(
        "no condition",
        &format!(
            "document.querySelector('h1')?.textContent === 'Health' && \
             {conditions}.every((one) => one.startsWith('host.nearly-full ')) && \
             ({conditions}.length > 0 || document.body.innerText.includes('are well'))"
        ),
    )
}

/// Looks at the pages without a pool.
fn look_at_pages(browser: &mut Browser, axe: Option<&str>, url: &str) -> Result<()> {
    for (page, title, text) in [
        ("exports", "Exports", "tank/vm1"),
        ("jobs", "Jobs", "Nothing runs"),
        ("health", "Health", "Health"),
        ("events", "Events", "snapshot.created"),
    ] {
        browser.open(&format!("{url}#/{page}"))?;
        browser.wait(title, &format!("document.querySelector('h1')?.textContent === '{title}'"))?;
        browser.wait_text(text)?;
        if page == "health" {
            wait_well(browser)?;
        }
        if page == "exports" {
            browser.wait("an export", "document.querySelector('summary')")?;
            browser.eval("document.querySelector('summary').click()")?;
            browser.wait_text("qemu")?;
        }
        inspect(browser, axe, page)?;
    }
    Ok(())
}

/// Logs out: the cookie is worth nothing any more.
fn log_out(browser: &mut Browser) -> Result<()> {
    browser.press("Log out")?;
    browser.wait_text("You are logged out.")?;
    let status = browser.eval("fetch('/v1/session').then((answer) => answer.status)")?;
    ensure!(status == 401, "{status}");
    Ok(())
}

/// Takes snapshots while another client writes.
fn snapshots_under_load(browser: &mut Browser, axe: Option<&str>, endpoint: &Endpoint) -> Result<()> {
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| load(endpoint, &over));
        let steps = under_load(browser, axe);
        over.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        steps.map(|()| written)
    })?;
    ensure!(written > 10, "only {written} writes");
    Ok(())
}

/// Create, snapshot under load, roll back, clone, hold, policies, lose and replace a device; in both
/// schemes, on a phone, by keyboard, without serious findings of axe-core or errors on the console.
pub fn run(subject: &mut Subject) -> Result<()> {
    let mut millpond = start(subject)?;
    let axe = axe(subject.dir())?;
    let axe = axe.as_deref();
    let device = |name: &str| subject.file(name).display().to_string();
    millpond.cli(&["pool", "create", "tank", "mirror", &format!("{}:512M", device("a")), &format!("{}:512M", device("b"))])?;
    let mut browser = Browser::start(&subject.file("profile"))?;
    let url = {
        browser.open(millpond.cli(&["token", "link"])?.trim().split('#').next().unwrap_or_default())?;
        browser.wait_text("Log in")?;
        inspect(&mut browser, axe, "login")?;
        log_in(&mut browser, &millpond)?
    };
    browser.wait_text("tank")?;
    inspect(&mut browser, axe, "overview")?;

    browser.open(&format!("{url}#/pool/tank"))?;
    browser.press("New volume…")?;
    browser.fill("name", "vm1")?;
    browser.fill("size", "64M")?;
    inspect(&mut browser, axe, "dialog")?;
    browser.press("Create")?;
    browser.wait_text("Volumes (1)")?;
    browser.open(&format!("{url}#/volume/tank/vm1"))?;
    browser.wait_text("Timeline")?;
    let endpoint = millpond.export("tank/vm1")?;
    write(&endpoint, 1)?;
    snapshots_under_load(&mut browser, axe, &endpoint)?;

    roll_back(&mut browser, axe, &endpoint)?;
    clone_and_hold(&mut browser)?;
    compare_by_keyboard(&mut browser)?;
    policies(&mut browser, axe, &url)?;
    look_at_pages(&mut browser, axe, &url)?;

    // a device is lost while the daemon is down
    browser.open("about:blank")?;
    millpond.stop()?;
    std::fs::rename(subject.file("b"), subject.file("lost"))?;
    millpond.launch()?;
    no_errors(&mut browser)?;
    browser.call("Network.clearBrowserCookies", json!({}))?;
    browser.call("Storage.clearDataForOrigin", json!({"origin": url.trim_end_matches('/'), "storageTypes": "all"}))?;
    let url = log_in(&mut browser, &millpond)?;
    browser.wait_text("degraded")?;
    browser.open(&format!("{url}#/health"))?;
    browser.wait_text("pool tank is degraded")?;
    browser.wait_text("is missing")?;
    inspect(&mut browser, axe, "alert")?;
    browser.open(&format!("{url}#/pool/tank"))?;
    browser.wait("the lost device", "document.querySelectorAll('button[aria-label^=Replace]').length === 2")?;
    browser
        .eval("[...document.querySelectorAll('tr')].find((row) => row.innerText.includes('missing')).querySelector('button').click()")?;
    std::fs::File::create(subject.file("c"))?.set_len(512 << 20)?;
    browser.fill("new", &device("c"))?;
    browser.wait("a plan", "document.querySelector('dialog .loss')?.innerText.includes('are to be copied')")?;
    browser.press("Replace")?;
    browser.wait_text("has started")?;
    browser.open(&format!("{url}#/health"))?;
    wait_well(&mut browser)?;
    inspect(&mut browser, axe, "healthy")?;

    log_out(&mut browser)?;
    no_errors(&mut browser)?;
    millpond.stop()
}

/// Makes a certificate for `localhost`, in place of an earlier one.
fn certify(dir: &Path, name: &str) -> Result<()> {
    let path = |file: &str| dir.join(file).display().to_string();
    let (key, cert) = (path("server-key.pem"), path("server-cert.pem"));
    let words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-addext", "subjectAltName=DNS:localhost"];
    let files = ["-subj", &format!("/CN={name}"), "-keyout", &key, "-out", &cert];
    run_command(Command::new("openssl").args(words).args(files)).map(drop)
}

/// Console and API with TLS: a client that trusts the certificate is served, cookies are for TLS
/// alone, others are not served, and a renewed certificate comes into force without a restart.
pub fn tls(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("tls");
    std::fs::create_dir_all(&dir)?;
    certify(&dir, "first")?;
    let setting = format!("web = \"127.0.0.1:0\"\nweb_tls = \"{}\"", dir.display());
    let mut millpond = Millpond::new(millpond_binary()?).with_setting(&setting);
    millpond.start_empty(&subject.file("server"))?;
    let link = millpond.cli(&["token", "link"])?;
    let port = link.split(['/', '#']).find_map(|part| part.strip_prefix("127.0.0.1:")).context("a port")?.to_owned();
    ensure!(link.starts_with("https://"), "{link}");
    let secret = millpond.cli(&["token", "create", "t", "--role", "viewer"])?.trim().to_owned();
    let cert = dir.join("server-cert.pem").display().to_string();
    let bearer = format!("Authorization: Bearer {secret}");
    let url = |path: &str| format!("https://localhost:{port}{path}");
    let get = || run_command(Command::new("curl").args(["-sS", "--cacert", &cert, "-H", &bearer, &url("/v1/session")]));
    ensure!(get()?.contains("token t"), "a client that trusts the certificate is served");
    let body = format!("{{\"token\":\"{secret}\"}}");
    let login = ["-sS", "-i", "--cacert", &cert, "-H", "Content-Type: application/json", "-d", &body, &url("/v1/session")];
    let answer = run_command(Command::new("curl").args(login))?;
    let name = format!("__Host-millpond-{port}=");
    ensure!(answer.lines().any(|line| line.contains(&name) && line.contains("; Secure")), "{answer}");
    ensure!(run_command(Command::new("curl").args(["-sS", &url("/")])).is_err(), "an unknown certificate is not trusted");
    let plain = format!("http://localhost:{port}/");
    ensure!(run_command(Command::new("curl").args(["-sS", &plain])).is_err(), "nothing is served without TLS");

    certify(&dir, "second")?;
    let end = Instant::now() + Duration::from_secs(120);
    while get().is_err() {
        ensure!(Instant::now() < end, "the renewed certificate is not in force");
        std::thread::sleep(Duration::from_millis(200));
    }
    millpond.stop()
}

/// 1,000 volumes, and a volume with 10,000 snapshots: the first paint takes less than a second, the
/// page has few elements and little memory, and requests of guests go on.
pub fn scale(subject: &mut Subject) -> Result<()> {
    let mut millpond = start(subject)?;
    let device = format!("{}:4G", subject.file("device").display());
    millpond.cli(&["pool", "create", "tank", &device])?;
    for volume in 0..VOLUMES {
        millpond.cli(&["create", &format!("tank/vm{volume}"), "-L", "64M"])?;
    }
    for first in (0..SNAPSHOTS).step_by(AT_ONCE) {
        let names: Vec<String> = (first..first + AT_ONCE).map(|at| format!("tank/vm0@s{at}")).collect();
        let words: Vec<&str> = std::iter::once("snapshot").chain(names.iter().map(String::as_str)).collect();
        millpond.cli(&words)?;
    }
    let before = memory(millpond.pid()?)?;
    let mut browser = Browser::start(&subject.file("profile"))?;
    let url = log_in(&mut browser, &millpond)?;
    for (page, rows) in [("#/pool/tank", VOLUMES), ("#/volume/tank/vm0", SNAPSHOTS)] {
        // a new document, as for a user who opens a bookmark
        browser.open("about:blank")?;
        browser.open(&format!("{url}{page}"))?;
        let begin = Instant::now();
        browser.wait("all rows", &format!("document.querySelector('.vlist')?.getAttribute('aria-rowcount') === '{rows}'"))?;
        let filled = begin.elapsed();
        let paint = browser.eval("performance.getEntriesByName('first-contentful-paint')[0].startTime")?.as_f64().context("a paint")?;
        std::thread::sleep(Duration::from_secs(10));
        let heap = browser.metric("JSHeapUsedSize")?;
        let elements = browser.eval("document.querySelectorAll('*').length")?.as_u64().context("a number")?;
        println!(
            "{page}: first paint {paint:.0} ms, {rows} rows after {:.0} ms, {elements} elements, {:.1} MB of scripts",
            filled.as_secs_f64() * 1e3,
            heap / 1e6
        );
        ensure!(paint < FIRST_PAINT, "the first paint takes {paint:.0} ms");
        ensure!(heap < HEAP && elements < 3000, "the page has {elements} elements and {heap} bytes");
        browser.eval("document.querySelector('.vlist').focus()")?;
        browser.key("End")?;
        browser.wait(
            "the last row",
            &format!("document.querySelector('.vrow[aria-selected=true]')?.getAttribute('aria-rowindex') === '{rows}'"),
        )?;
        if let Some(dir) = std::env::var_os("MILLPOND_PICTURES").map(PathBuf::from) {
            browser.picture(&dir.join(format!("scale-{rows}.png")))?;
        }
    }
    let after = memory(millpond.pid()?)?;
    println!("the daemon has {} MiB, {} MiB before the first page", after >> 20, before >> 20);
    ensure!(browser.errors.is_empty(), "errors on the console: {:#?}", browser.errors);
    millpond.stop()
}
