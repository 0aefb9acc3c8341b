//! A proxy between a client and an object store, for HTTP/1.1 without TLS. It passes on each request
//! unchanged, since requests are signed, and changes answers.

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::set_socket_linger;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest head of a message, in bytes.
const HEAD: usize = 64 << 10;
/// Time limit of the store.
const PATIENCE: Duration = Duration::from_secs(30);

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store does it, and the connection is closed without an answer.
    LoseAnswer,
    /// The connection is closed, and the store gets nothing.
    LoseRequest,
    /// The connection is closed, and the store does it at [`Proxy::release`].
    DoLate,
    /// The store does it, and the connection is reset.
    ResetAfter,
    /// The answer comes late.
    Delay,
    /// The answer ends in the middle of its body.
    CutBody,
    /// An error with a status and a code, and the store gets nothing.
    Refuse(u16, &'static str),
    /// The store does it, and the answer is an error with a status and a code.
    RefuseAfter(u16, &'static str),
    /// "Precondition failed" becomes a success.
    HideExists,
    /// Lists lack their first name.
    ForgetListed,
    /// A part of an object becomes an answer with other bytes.
    WholeForParts,
}

impl Fault {
    /// Delay of a late answer.
    const LATE: Duration = Duration::from_millis(400);
}

/// Faults that are to come.
#[derive(Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    /// Requests that are done late.
    held: Vec<Message>,
    /// Time that each answer takes longer.
    latency: Duration,
    /// Number of the answers that were sent, and their bytes.
    sent: (u64, u64),
}

/// A proxy. Its threads end with the process.
pub struct Proxy {
    address: SocketAddr,
    store: SocketAddr,
    plan: Arc<Mutex<Plan>>,
}

impl Proxy {
    /// Starts a proxy for the store at an address.
    pub fn start(store: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port for the proxy")?;
        let (address, plan) = (listener.local_addr()?, Arc::new(Mutex::new(Plan::default())));
        let shared = Arc::clone(&plan);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let plan = Arc::clone(&shared);
                thread::spawn(move || {
                    if let Err(error) = serve(client, store, &plan) {
                        println!("proxy: {error:#}");
                    }
                });
            }
        });
        Ok(Proxy { address, store, plan })
    }

    /// Address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes on the requests that are done late. Returns their number.
    pub fn release(&self) -> Result<usize> {
        let held = std::mem::take(&mut self.plan.lock().unwrap_or_else(PoisonError::into_inner).held);
        held.iter().try_for_each(|request| forward(request, self.store).map(drop))?;
        Ok(held.len())
    }

    /// Sets the faults of the next requests.
    pub fn next(&self, faults: &[Fault]) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).next = faults.iter().copied().collect();
    }

    /// Lets all answers take this much longer.
    pub fn delay(&self, latency: Duration) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).latency = latency;
    }

    /// Returns the number of the answers that were sent, and their bytes.
    pub fn sent(&self) -> (u64, u64) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).sent
    }

    /// Sets a fault of all requests.
    pub fn always(&self, fault: Option<Fault>) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).always = fault;
    }
}

/// A message: its head with the empty line, and its body.
struct Message {
    head: String,
    body: Vec<u8>,
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }

    fn refusal(status: u16, code: &str) -> Message {
        let body = format!("<Error><Code>{code}</Code><Message>the proxy says so</Message></Error>").into_bytes();
        Message { head: format!("HTTP/1.1 {status} Refused\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len()), body }
    }

    /// The same head with the length of the body, and without keeping the connection.
    fn whole(mut self) -> Message {
        let kept = |line: &&str| {
            let line = line.to_ascii_lowercase();
            !["content-length:", "transfer-encoding:", "connection:"].iter().any(|name| line.starts_with(name))
        };
        let lines: Vec<&str> = self.head.trim_end().lines().filter(kept).collect();
        self.head = format!("{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", lines.join("\r\n"), self.body.len());
        self
    }
}

/// Reads a head; `None` when the other side has closed the connection.
fn read_head(stream: &mut TcpStream) -> Result<Option<String>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return if head.is_empty() { Ok(None) } else { bail!("a head that ends early") };
        }
        head.push(byte[0]);
        if head.len() > HEAD {
            bail!("a head of more than {HEAD} bytes");
        }
    }
    Ok(Some(String::from_utf8(head)?))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let is_named = |line: &&str| line.split_once(':').is_some_and(|(own, _)| own.eq_ignore_ascii_case(name));
    head.lines().find(is_named)?.split_once(':').map(|(_, value)| value.trim())
}

fn serve(mut client: TcpStream, store: SocketAddr, plan: &Mutex<Plan>) -> Result<()> {
    let Some(head) = read_head(&mut client)? else { return Ok(()) };
    let mut body = vec![0; header(&head, "content-length").map_or(Ok(0), str::parse)?];
    client.read_exact(&mut body)?;
    let request = Message { head, body };
    let fault = {
        let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.next.pop_front().or(plan.always)
    };
    let answer = match fault {
        Some(Fault::LoseRequest) => return Ok(()),
        Some(Fault::Refuse(status, code)) => Message::refusal(status, code),
        Some(Fault::DoLate) => {
            plan.lock().unwrap_or_else(PoisonError::into_inner).held.push(request);
            return Ok(client.shutdown(Shutdown::Both)?);
        }
        _ => forward(&request, store)?,
    };
    match fault {
        Some(Fault::LoseAnswer) => return Ok(()),
        Some(Fault::ResetAfter) => return Ok(set_socket_linger(&client, Some(Duration::ZERO))?),
        Some(Fault::Delay) => thread::sleep(Fault::LATE),
        _ => {}
    }
    let mut bytes = changed(&request, answer, fault).bytes();
    if fault == Some(Fault::CutBody) {
        bytes.truncate(bytes.len() - 1000);
    }
    let latency = {
        let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.sent = (plan.sent.0 + 1, plan.sent.1 + bytes.len() as u64);
        plan.latency
    };
    thread::sleep(latency);
    client.write_all(&bytes)?;
    // every answer says that the connection ends
    Ok(client.shutdown(Shutdown::Write)?)
}

/// Changes the answer of the store.
fn changed(request: &Message, answer: Message, fault: Option<Fault>) -> Message {
    let status = answer.head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    match fault {
        Some(Fault::RefuseAfter(status, code)) => Message::refusal(status, code),
        Some(Fault::HideExists) if status == "412" => {
            Message { head: "HTTP/1.1 200 OK\r\netag: \"1\"\r\n\r\n".into(), body: Vec::new() }.whole()
        }
        Some(Fault::ForgetListed) if request.head.contains("list-type=2") => {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let without =
                text.split_once("<Contents>").and_then(|(before, rest)| Some(format!("{before}{}", rest.split_once("</Contents>")?.1)));
            Message { body: without.unwrap_or(text).into_bytes(), ..answer }.whole()
        }
        Some(Fault::WholeForParts) if status == "206" => {
            let body = answer.body.iter().map(|byte| !byte).collect();
            Message { body, ..answer }.whole()
        }
        _ => answer.whole(),
    }
}

/// Sends a request to the store; returns its answer.
fn forward(request: &Message, store: SocketAddr) -> Result<Message> {
    let mut stream = TcpStream::connect(store).context("connecting to the store")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&request.bytes())?;
    let mut head = read_head(&mut stream)?.context("the store closed the connection")?;
    while head.starts_with("HTTP/1.1 100") {
        head = read_head(&mut stream)?.context("the store closed the connection")?;
    }
    let status = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut body = Vec::new();
    if status != "204" && status != "304" {
        match header(&head, "content-length") {
            Some(length) => {
                body = vec![0; length.parse()?];
                stream.read_exact(&mut body)?;
            }
            None if header(&head, "transfer-encoding").is_some() => body = chunks(&mut stream)?,
            None => drop(stream.read_to_end(&mut body)?),
        }
    }
    Ok(Message { head, body })
}

/// Reads a body in chunks.
fn chunks(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        let length = usize::from_str_radix(std::str::from_utf8(&line)?.trim(), 16)?;
        let from = body.len();
        body.resize(from + length + 2, 0);
        stream.read_exact(body.get_mut(from..).unwrap_or_default())?;
        body.truncate(from + length);
        if length == 0 {
            return Ok(body);
        }
    }
}
