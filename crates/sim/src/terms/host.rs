//! A host: imports, commits anchors, crashes, and imports again.

use millpond_bucket::{AnchorCommit, Answer, Claimed, Committed, ErrorKind, Newest, Operation, Part, Planted, Search, Series, TermClaim};
use millpond_format::{Holder, ObjectHead, ObjectName, PoolId, Term};

use crate::bucket::Ticket;
use crate::rng::Rng;

/// The pool of these worlds.
const POOL: PoolId = PoolId([7; 16]);
/// Longest wait before a request is repeated, and between anchors, in ticks.
const PAUSE: u64 = 60;
/// Longest time between two imports, in ticks.
const REST: u64 = 400;
/// Attempts to read an anchor.
const ATTEMPTS: u8 = 6;

/// An event of a host.
#[derive(Debug)]
pub enum Happened {
    /// It sends a request.
    Request(Operation),
    /// It believes that it has a term, in a session.
    Held(Term, [u8; 16]),
    /// It goes on with a term after a crash.
    Resumed(Term),
    /// It believes that an anchor with a history counts.
    Committed(Term, u64, Vec<u64>),
    /// Another host took the term first.
    Lost,
    /// It found a later term.
    Fenced,
    /// It ends an import.
    GaveUp(String),
}

#[derive(Debug)]
enum Step {
    Idle,
    Claim(Box<TermClaim>),
    /// Searches for the newest anchor of a term, on behalf of the own one.
    Base {
        own: Term,
        of: Term,
        search: Box<Newest>,
    },
    /// Reads an anchor.
    Fetch {
        own: Term,
        name: ObjectName,
        number: u64,
        left: u8,
    },
    /// Commits an anchor.
    Serve {
        own: Term,
        number: u64,
        history: Vec<u64>,
        commit: Box<AnchorCommit>,
    },
}

/// A host.
#[derive(Debug)]
pub struct Host {
    id: u8,
    /// Number of sessions so far.
    sessions: u64,
    /// Number of writes so far.
    writes: u64,
    step: Step,
    waiting: Option<Ticket>,
    inbox: Option<Result<Answer, ErrorKind>>,
    wake: u64,
    paused: u64,
    /// The term that the local label names.
    label: Option<Term>,
    /// The name whose create was answered "exists".
    doubt: Option<ObjectName>,
    created: Option<ObjectName>,
    planted: Option<Planted>,
}

impl Host {
    pub fn new(id: u8, planted: Option<Planted>) -> Host {
        Host {
            id,
            sessions: 0,
            writes: 0,
            step: Step::Idle,
            waiting: None,
            inbox: None,
            wake: 0,
            paused: 0,
            label: None,
            doubt: None,
            created: None,
            planted,
        }
    }

    /// Loses everything in memory; starts again at a time.
    pub fn crash(&mut self, again: u64) {
        (self.step, self.waiting, self.inbox, self.doubt, self.created) = (Step::Idle, None, None, None, None);
        (self.wake, self.paused) = (again, 0);
    }

    /// Does nothing until a time.
    pub fn pause(&mut self, until: u64) {
        self.paused = self.paused.max(until);
    }

    /// Whether the host waits for an answer.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        self.waiting == Some(ticket)
    }

    /// A request was sent.
    pub fn sent(&mut self, ticket: Ticket) {
        self.waiting = Some(ticket);
    }

    /// An answer has arrived. A paused host reads it later.
    pub fn deliver(&mut self, answer: Result<Answer, ErrorKind>) {
        (self.waiting, self.inbox) = (None, Some(answer));
    }

    /// Whether the host was just answered that this object exists.
    pub fn is_in_doubt(&self, name: ObjectName) -> bool {
        self.doubt == Some(name)
    }

    /// Time at which the host goes on without an answer; `None` while it waits for one.
    pub fn wakes_at(&self) -> Option<u64> {
        let at = if self.inbox.is_some() { self.paused } else { self.wake.max(self.paused) };
        (self.waiting.is_none() && at < u64::MAX).then_some(at)
    }

    /// Goes on by one event; `None` when the host waits.
    pub fn turn(&mut self, now: u64, rng: &mut Rng) -> Option<Happened> {
        if self.wakes_at().is_none_or(|at| at > now) {
            return None;
        }
        if let Some(answer) = self.inbox.take() {
            if matches!(answer, Err(ErrorKind::Exists)) {
                self.doubt = self.created;
            }
            // the host is to be asked again, whether something happened or not
            return self.take(&answer, now, rng).or_else(|| self.turn(now, rng));
        }
        self.request(now, rng)
    }

    fn holder(&self) -> Holder {
        let mut session = [self.id; 16];
        session[8..].copy_from_slice(&self.sessions.to_le_bytes());
        Holder { host: [self.id; 16], name: format!("host{}", self.id), session }
    }

    fn rest(&mut self, now: u64, rng: &mut Rng) {
        self.step = Step::Idle;
        self.wake = now + rng.between(1, REST);
    }

    /// Begins an import, or sends the next request.
    fn request(&mut self, now: u64, rng: &mut Rng) -> Option<Happened> {
        let operation = match &self.step {
            Step::Idle => return self.import(rng),
            Step::Claim(claim) => claim.operation(),
            Step::Base { search, .. } => Some(search.operation()),
            Step::Fetch { name, .. } => Some(Operation::Get { name: *name, part: Part::Whole }),
            Step::Serve { commit, .. } => commit.operation(),
        };
        let Some(operation) = operation else {
            self.rest(now, rng);
            return Some(Happened::GaveUp("there is nothing to ask for".to_owned()));
        };
        if let Operation::Put { name, .. } = &operation {
            (self.created, self.doubt) = (Some(*name), None);
        }
        Some(Happened::Request(operation))
    }

    fn import(&mut self, rng: &mut Rng) -> Option<Happened> {
        self.sessions += 1;
        match self.label.filter(|_| rng.percent(40)) {
            Some(term) => {
                self.search(term, term);
                Some(Happened::Resumed(term))
            }
            None => {
                self.step = Step::Claim(Box::new(TermClaim::new(POOL, self.holder()).planting(self.planted)));
                self.request(0, rng)
            }
        }
    }

    fn search(&mut self, own: Term, of: Term) {
        let search = Newest::new(POOL, Series::Anchors(of)).planting(self.planted);
        self.step = Step::Base { own, of, search: Box::new(search) };
    }

    /// Starts to commit the next anchor.
    fn serve(&mut self, own: Term, number: u64, history: Vec<u64>) {
        let payload: Vec<u8> = history.iter().flat_map(|write| write.to_le_bytes()).collect();
        let object = ObjectHead::seal(POOL, own, self.holder(), ObjectName::Root(own, number), &payload);
        // the object begins with the head that was made above
        let Ok(commit) = AnchorCommit::new(object) else { return };
        self.step = Step::Serve { own, number, history, commit: Box::new(commit.planting(self.planted)) };
    }

    /// Adds a write to the history, and starts to commit it.
    fn write(&mut self, own: Term, number: u64, mut history: Vec<u64>) {
        self.writes += 1;
        history.push(u64::from(self.id) << 32 | self.writes);
        self.serve(own, number, history);
    }

    /// Takes an answer.
    fn take(&mut self, answer: &Result<Answer, ErrorKind>, now: u64, rng: &mut Rng) -> Option<Happened> {
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle => None,
            Step::Claim(claim) => self.claimed(claim, answer, now, rng),
            Step::Base { own, of, mut search } => match search.answer(answer) {
                Search::Next => {
                    self.step = Step::Base { own, of, search };
                    None
                }
                Search::Later(_) => {
                    self.step = Step::Base { own, of, search };
                    self.wake = now + rng.between(1, PAUSE);
                    None
                }
                Search::Found(Some(head)) => {
                    let restarts = Planted::CounterRestarts.is(self.planted);
                    let number = match head.name {
                        ObjectName::Root(term, number) if term == own && !restarts => number + 1,
                        _ => 0,
                    };
                    self.step = Step::Fetch { own, name: head.name, number, left: ATTEMPTS };
                    None
                }
                Search::Found(None) if of.0 <= 1 => {
                    self.write(own, 0, Vec::new());
                    None
                }
                Search::Found(None) => {
                    self.search(own, Term(of.0 - 1));
                    None
                }
                Search::Refused(kind) => self.give_up(format!("{kind:?}"), now, rng),
                Search::Damaged(name, fault) => self.give_up(format!("{name}: {fault}"), now, rng),
            },
            Step::Fetch { own, name, number, left } => self.fetched((own, name, number, left), answer, now, rng),
            Step::Serve { own, number, history, commit } => self.served((own, number, history, commit), answer, now, rng),
        }
    }

    fn give_up(&mut self, why: String, now: u64, rng: &mut Rng) -> Option<Happened> {
        self.rest(now, rng);
        Some(Happened::GaveUp(why))
    }

    fn claimed(&mut self, mut claim: Box<TermClaim>, answer: &Result<Answer, ErrorKind>, now: u64, rng: &mut Rng) -> Option<Happened> {
        let mut claimed = claim.answer(answer);
        if let Claimed::Found(_) = claimed {
            claimed = claim.take();
        }
        match claimed {
            Claimed::Next | Claimed::Found(_) => self.step = Step::Claim(claim),
            Claimed::Later(_) => {
                self.step = Step::Claim(claim);
                self.wake = now + rng.between(1, PAUSE);
            }
            Claimed::Held(term) => {
                self.label = Some(term);
                if term.0 <= 1 {
                    self.write(term, 0, Vec::new())
                } else {
                    self.search(term, Term(term.0 - 1))
                }
                return Some(Happened::Held(term, self.holder().session));
            }
            Claimed::Lost(_) => {
                self.rest(now, rng);
                return Some(Happened::Lost);
            }
            Claimed::Exhausted => return self.give_up("no term is left".to_owned(), now, rng),
            Claimed::Refused(kind) => return self.give_up(format!("{kind:?}"), now, rng),
            Claimed::Damaged(name, fault) => return self.give_up(format!("{name}: {fault}"), now, rng),
        }
        None
    }

    fn fetched(
        &mut self,
        (own, name, number, left): (Term, ObjectName, u64, u8),
        answer: &Result<Answer, ErrorKind>,
        now: u64,
        rng: &mut Rng,
    ) -> Option<Happened> {
        if let Ok(Answer::Read { bytes, .. }) = answer
            && let Ok((_, payload)) = ObjectHead::expect_whole(bytes, POOL, name)
        {
            let (writes, _) = payload.as_chunks::<8>();
            self.write(own, number, writes.iter().map(|write| u64::from_le_bytes(*write)).collect());
            return None;
        }
        if left == 0 {
            return self.give_up(format!("{name} cannot be read"), now, rng);
        }
        self.step = Step::Fetch { own, name, number, left: left - 1 };
        self.wake = now + rng.between(1, PAUSE);
        None
    }

    fn served(
        &mut self,
        (own, number, history, mut commit): (Term, u64, Vec<u64>, Box<AnchorCommit>),
        answer: &Result<Answer, ErrorKind>,
        now: u64,
        rng: &mut Rng,
    ) -> Option<Happened> {
        match commit.answer(answer) {
            Committed::Next => self.step = Step::Serve { own, number, history, commit },
            Committed::Later(_) => {
                self.step = Step::Serve { own, number, history, commit };
                self.wake = now + rng.between(1, PAUSE);
            }
            Committed::Done => {
                self.write(own, number + 1, history.clone());
                self.wake = now + rng.between(1, PAUSE);
                return Some(Happened::Committed(own, number, history));
            }
            Committed::Fenced => {
                self.label = None;
                self.rest(now, rng);
                return Some(Happened::Fenced);
            }
            Committed::Taken(_) => self.serve(own, number + 1, history),
            Committed::Refused(kind) => return self.give_up(format!("{kind:?}"), now, rng),
            Committed::Damaged(fault) => return self.give_up(fault.to_string(), now, rng),
        }
        None
    }
}
