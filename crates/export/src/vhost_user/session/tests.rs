use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use millpond_block::{Features, Geometry, SectorProfile};
use vm_memory::MmapRegion;

use super::{Backend, Reply, Session, SessionError, Signal};
use crate::vhost_user::Refusal;
use crate::vhost_user::front_end::RingPlaces;
use crate::vhost_user::front_end::message::{configuration, longs, memory_region, memory_table, record_of, ring_address, words};
use crate::vhost_user::wire::{HEADER, Header, Region, code, request};
use crate::vhost_user::{DirtyLog, InflightMemory, Offer, QueueSetup};

const GUEST: u64 = 1 << 32;
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: u64 = 1 << 20;
const PROTOCOL: u64 = 1 << 30;
const REGION: Region = Region { guest: GUEST, size: MEMORY, user: USER, offset: 0 };
/// Places of each queue, as addresses of the front end.
const PLACES: RingPlaces = RingPlaces { size: 128, descriptors: USER + 0x1000, available: USER + 0x2000, used: USER + 0x3000 };

/// Back end that records all calls.
#[derive(Default)]
struct Notes {
    log: Vec<String>,
    running: BTreeMap<usize, QueueSetup>,
    refuse: bool,
    /// Value of `fresh` in the last call of `configuration`.
    fresh: Option<bool>,
    /// True if the disk has no write cache.
    strict: bool,
}

/// Error of [`Notes`].
#[derive(Debug, PartialEq, Eq)]
struct Unwilling;

impl Notes {
    fn note(&mut self, what: String) -> Result<(), Unwilling> {
        self.log.push(what);
        if self.refuse { Err(Unwilling) } else { Ok(()) }
    }
}

impl Backend for Notes {
    type Region = Region;
    type Error = Unwilling;

    fn offer(&mut self) -> Result<Offer, Unwilling> {
        let geometry = Geometry { size: 1 << 30, sector: SectorProfile::S512e };
        Ok(Offer { geometry, features: Features { read_only: false, write_cache: !self.strict }, queues: 4 })
    }
    fn configuration(&mut self, fresh: bool) -> Result<Offer, Unwilling> {
        self.fresh = Some(fresh);
        self.offer()
    }
    fn map(&mut self, region: &Region, _: OwnedFd) -> Result<Region, Unwilling> {
        self.note(format!("map {:x}", region.guest)).map(|()| *region)
    }
    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), Unwilling> {
        assert!(self.running.is_empty(), "the memory changes while a queue runs");
        self.note(format!("memory {:x?}", regions.iter().map(|region| region.guest).collect::<Vec<_>>()))
    }
    fn make_inflight(&mut self, size: u64) -> Result<OwnedFd, Unwilling> {
        self.note(format!("record {size}")).map(|()| fd())
    }
    fn map_shared(&mut self, _: OwnedFd, offset: u64, size: u64) -> Result<InflightMemory, Unwilling> {
        self.note(format!("map record {offset} {size}"))?;
        Ok(Arc::new(MmapRegion::new(size as usize).expect("memory")))
    }
    fn set_log(&mut self, _: DirtyLog) -> Result<(), Unwilling> {
        self.note("log".to_owned())
    }
    fn set_features(&mut self, features: u64) -> Result<(), Unwilling> {
        self.note(format!("features {features:x}"))
    }
    fn set_write_cache(&mut self, on: bool) -> Result<(), Unwilling> {
        self.note(format!("cache {on}"))
    }
    fn start(&mut self, index: usize, setup: QueueSetup, _: Arc<OwnedFd>) -> Result<(), Unwilling> {
        assert!(self.running.insert(index, setup.clone()).is_none(), "it runs already");
        self.note(format!("start {index} at {} of {}", setup.base, setup.size))
    }
    fn stop(&mut self, index: usize) -> Result<u16, Unwilling> {
        let setup = self.running.remove(&index).expect("it runs");
        self.note(format!("stop {index}")).map(|()| setup.base + 10)
    }
    fn set_signal(&mut self, index: usize, signal: Signal, fd: Option<OwnedFd>) -> Result<(), Unwilling> {
        self.note(format!("{signal:?} {index} {}", fd.is_some()))
    }
    fn check_kick(&mut self, _: &OwnedFd) -> Result<(), Unwilling> {
        Ok(())
    }
    fn set_channel(&mut self, _: OwnedFd) -> Result<(), Unwilling> {
        self.note("channel".to_owned())
    }
}

/// Returns some descriptor.
fn fd() -> OwnedFd {
    rustix::pipe::pipe().expect("a pipe").0
}

struct Talk {
    session: Session<Notes>,
    notes: Notes,
}

impl Talk {
    fn new() -> Talk {
        Talk { session: Session::new(4), notes: Notes::default() }
    }

    fn send(&mut self, code: u32, need_reply: bool, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Reply, SessionError<Unwilling>> {
        let bytes = request(code, need_reply, payload);
        let (head, payload) = bytes.split_first_chunk::<HEADER>().expect("a header");
        self.session.handle(&mut self.notes, &Header::read(head)?, payload, fds)
    }

    /// Sends a message and checks that it has no reply.
    fn tell(&mut self, code: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        let reply = self.send(code, false, payload, fds).expect("taken");
        assert!(reply.bytes.is_empty() && reply.fd.is_none(), "message {code} is not answered");
    }

    /// Sends a message and returns the payload of its reply.
    fn ask(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        let reply = self.send(code, false, payload, Vec::new()).expect("taken");
        assert_eq!(reply.bytes.get(..8), Some(words(&[code, 5]).as_slice()), "a reply of version 1");
        reply.bytes[HEADER..].to_vec()
    }

    fn agree(&mut self) {
        self.tell(code::SET_OWNER, &[], vec![]);
        let features = u64::from_ne_bytes(self.ask(code::GET_FEATURES, &[]).try_into().expect("a number"));
        self.tell(code::SET_FEATURES, &features.to_ne_bytes(), vec![]);
        let protocol = self.ask(code::GET_PROTOCOL_FEATURES, &[]);
        self.tell(code::SET_PROTOCOL_FEATURES, &protocol, vec![]);
        self.tell(code::SET_MEM_TABLE, &memory_table(&[REGION]), vec![fd()]);
    }

    fn describe(&mut self, index: u32) {
        self.tell(code::SET_VRING_NUM, &words(&[index, 128]), vec![]);
        self.tell(code::SET_VRING_BASE, &words(&[index, 3]), vec![]);
        self.tell(code::SET_VRING_ADDR, &ring_address(index, &PLACES, None), vec![]);
        self.tell(code::SET_VRING_CALL, &u64::from(index).to_ne_bytes(), vec![fd()]);
        self.tell(code::SET_VRING_KICK, &u64::from(index).to_ne_bytes(), vec![fd()]);
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes.log)
    }
}

/// Messages of QEMU when a guest's driver starts and stops.
#[test]
fn queues_run_from_enabled_to_asked_where_they_are() {
    let mut talk = Talk::new();
    talk.agree();
    assert_eq!(talk.ask(code::GET_QUEUE_NUM, &[]), longs(&[4]));
    talk.log();
    talk.describe(1);
    assert_eq!(talk.log(), ["Call 1 true"], "it is not enabled");
    talk.tell(code::SET_VRING_ENABLE, &words(&[1, 1]), vec![]);
    assert_eq!(talk.log(), ["start 1 at 3 of 128"]);
    let setup = talk.notes.running.get(&1).expect("it runs");
    assert_eq!((setup.descriptors, setup.available, setup.used), (GUEST + 0x1000, GUEST + 0x2000, GUEST + 0x3000));
    // Masking and unmasking interrupts does not stop the queue.
    talk.tell(code::SET_VRING_CALL, &(1u64 | 256).to_ne_bytes(), vec![]);
    assert_eq!(talk.log(), ["Call 1 false"]);
    talk.tell(code::SET_VRING_ENABLE, &words(&[1, 0]), vec![]);
    talk.tell(code::SET_VRING_ENABLE, &words(&[1, 1]), vec![]);
    assert_eq!(talk.log(), ["stop 1", "start 1 at 13 of 128"]);
    assert_eq!(talk.ask(code::GET_VRING_BASE, &words(&[1, 0])), words(&[1, 23]));
    assert_eq!(talk.ask(code::GET_VRING_BASE, &words(&[1, 0])), words(&[1, 23]), "asked again");
    talk.tell(code::SET_VRING_ENABLE, &words(&[1, 1]), vec![]);
    assert_eq!(talk.log(), ["stop 1"], "until it gets something to be kicked by");
    talk.tell(code::SET_VRING_KICK, &1u64.to_ne_bytes(), vec![fd()]);
    assert_eq!(talk.log(), ["start 1 at 23 of 128"]);
    talk.tell(code::RESET_OWNER, &[], vec![]);
    assert_eq!(talk.log(), ["stop 1"]);
}

#[test]
fn without_protocol_features_queues_need_not_be_enabled() {
    let mut talk = Talk::new();
    talk.agree();
    let features = u64::from_ne_bytes(talk.ask(code::GET_FEATURES, &[]).try_into().expect("a number"));
    talk.tell(code::SET_FEATURES, &(features & !PROTOCOL).to_ne_bytes(), vec![]);
    talk.log();
    talk.describe(0);
    assert_eq!(talk.log(), ["Call 0 true", "start 0 at 3 of 128"]);
}

#[test]
fn memory_comes_and_goes_while_queues_stand_still() {
    let mut talk = Talk::new();
    talk.agree();
    talk.describe(0);
    talk.tell(code::SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    talk.log();
    assert_eq!(talk.ask(code::GET_MAX_MEM_SLOTS, &[]), longs(&[509]));
    let more = memory_region(&Region { guest: 0, size: MEMORY, user: USER + (1 << 32), offset: 0 });
    talk.tell(code::ADD_MEM_REG, &more, vec![fd()]);
    assert_eq!(talk.log(), ["map 0", "stop 0", "memory [0, 100000000]", "start 0 at 13 of 128"]);
    talk.tell(code::REM_MEM_REG, &more, vec![fd()]);
    assert_eq!(talk.log(), ["stop 0", "memory [100000000]", "start 0 at 23 of 128"]);
    let none = talk.send(code::REM_MEM_REG, false, &more, vec![]);
    assert!(matches!(none, Err(SessionError::Refused { code: code::REM_MEM_REG, reason: Refusal::NoRegion })), "{none:?}");
    // The memory with the queue is removed, so the queue cannot continue.
    let gone = talk.send(code::REM_MEM_REG, true, &memory_region(&REGION), vec![]).expect("answered");
    assert_eq!(gone.bytes[HEADER..], longs(&[0]));
    assert_eq!(talk.log(), ["stop 0", "memory []"]);
}

#[test]
fn requests_in_flight_are_recorded_by_queue() {
    let mut talk = Talk::new();
    talk.agree();
    talk.log();
    let asked = [record_of(2, 128), vec![0; 4]].concat(); // with padding at its end, as QEMU sends it
    let reply = talk.send(code::GET_INFLIGHT_FD, false, &asked, vec![]).expect("answered");
    let size = 2 * 2112;
    assert_eq!(reply.bytes[HEADER..], [longs(&[size, 0]), vec![2, 0, 128, 0], vec![0; 4]].concat());
    assert!(reply.fd.is_some());
    let area = [longs(&[size, 0]), vec![2, 0, 128, 0]].concat();
    talk.tell(code::SET_INFLIGHT_FD, &area, vec![fd()]);
    assert_eq!(talk.log(), [format!("record {size}"), format!("map record 0 {size}")]);
    talk.describe(1);
    talk.tell(code::SET_VRING_ENABLE, &words(&[1, 1]), vec![]);
    let setup = talk.notes.running.get(&1).expect("it runs");
    assert_eq!(setup.inflight.as_ref().map(|(_, at)| *at), Some(2112));
    // Queue 3 is not among the two queues of the record.
    talk.describe(3);
    talk.tell(code::SET_VRING_ENABLE, &words(&[3, 1]), vec![]);
    assert!(talk.notes.running.get(&3).is_some_and(|setup| setup.inflight.is_none()));
    let short = [longs(&[size - 1, 0]), vec![2, 0, 128, 0]].concat();
    assert!(talk.send(code::SET_INFLIGHT_FD, false, &short, vec![fd()]).is_err());
    for (queues, size) in [(0, 128), (5, 128), (4, 65535), (0, 0)] {
        let answer = talk.send(code::GET_INFLIGHT_FD, false, &record_of(queues, size), vec![]);
        assert_eq!(answer.is_ok(), size == 65535, "{queues} of {size}");
    }
}

#[test]
fn the_configuration_is_read_and_the_cache_switched() {
    let mut talk = Talk::new();
    talk.agree();
    talk.log();
    let read = |talk: &mut Talk, at: u32, size: u32| talk.ask(code::GET_CONFIG, &configuration(at, size));
    assert_eq!(read(&mut talk, 0, 8), [words(&[0, 8, 0]), longs(&[1 << 21])].concat());
    assert_eq!(read(&mut talk, 32, 1)[12..], [1]);
    talk.tell(code::SET_CONFIG, &[words(&[32, 1, 0]), vec![0]].concat(), vec![]);
    assert_eq!((talk.log(), &read(&mut talk, 32, 1)[12..]), (vec!["cache false".to_owned()], &[0][..]));
    assert_eq!(read(&mut talk, 200, 57).len(), 12, "beyond the end there is nothing");
    for (at, bytes) in [(0u32, vec![1u8; 8]), (32, vec![2]), (33, vec![1])] {
        let payload = [words(&[at, bytes.len() as u32, 0]), bytes].concat();
        assert!(talk.send(code::SET_CONFIG, false, &payload, vec![]).is_err());
    }
}

/// The reported write cache depends on the disk's present mode and on the guest's setting. `fresh`
/// is false once a queue has run, because the guest may have read an older mode.
#[test]
fn the_write_cache_is_what_guest_and_disk_agree_on() {
    let mut talk = Talk::new();
    talk.agree();
    let read = |talk: &mut Talk| talk.ask(code::GET_CONFIG, &configuration(32, 1))[12];
    assert_eq!((read(&mut talk), talk.notes.fresh), (1, Some(true)));
    talk.tell(code::SET_CONFIG, &[words(&[32, 1, 0]), vec![1]].concat(), vec![]);
    talk.notes.strict = true;
    assert_eq!(read(&mut talk), 0, "though the guest has switched it on");
    talk.describe(0);
    talk.tell(code::SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    talk.notes.strict = false;
    assert_eq!((read(&mut talk), talk.notes.fresh), (1, Some(false)), "the queue's driver may have seen the older one");
    talk.tell(code::SET_CONFIG, &[words(&[32, 1, 0]), vec![0]].concat(), vec![]);
    assert_eq!(talk.ask(code::GET_VRING_BASE, &words(&[0, 0])).len(), 8);
    assert_eq!((read(&mut talk), talk.notes.fresh), (0, Some(false)), "the guest's own wish");
}

#[test]
fn refusals_are_told_when_the_front_end_waits_for_them() {
    let mut talk = Talk::new();
    let done = |reply: Result<Reply, SessionError<Unwilling>>| reply.map(|reply| reply.bytes.get(HEADER..).map(<[u8]>::to_vec));
    // Replies with a result were not agreed on yet, so the connection ends.
    assert!(talk.send(code::SET_VRING_NUM, true, &words(&[0, 3]), vec![]).is_err());
    talk.agree();
    assert_eq!(done(talk.send(code::SET_VRING_NUM, true, &words(&[0, 4]), vec![])), Ok(Some(longs(&[0]))));
    for (code, payload) in [
        (code::SET_VRING_NUM, words(&[0, 3])),
        (code::SET_VRING_NUM, words(&[4, 4])),
        (code::SET_FEATURES, longs(&[1 << 63])),
        (code::SET_PROTOCOL_FEATURES, longs(&[1 << 40])),
        (code::SET_VRING_KICK, longs(&[256])),
    ] {
        assert_eq!(done(talk.send(code, true, &payload, vec![])), Ok(Some(longs(&[1]))), "message {code}");
    }
    talk.notes.refuse = true;
    assert_eq!(done(talk.send(code::ADD_MEM_REG, true, &longs(&[0, 0, 4096, 0, 0]), vec![fd()])), Ok(Some(longs(&[1]))));
}

#[test]
fn what_is_no_message_ends_the_connection() {
    for (what, code, payload, fds) in [
        ("unknown", 99, vec![], 0),
        ("a header's end", code::SET_VRING_NUM, vec![0; 7], 0),
        ("a table without descriptors", code::SET_MEM_TABLE, [words(&[1, 0]), longs(&[0; 4])].concat(), 0),
        ("a table of nothing", code::SET_MEM_TABLE, words(&[0, 0]), 0),
        ("a table that is cut short", code::SET_MEM_TABLE, words(&[1, 0]), 1),
        ("two descriptors", code::SET_VRING_KICK, longs(&[0]), 2),
        ("a descriptor that is missing", code::SET_VRING_CALL, longs(&[0]), 0),
        ("a configuration of another length", code::GET_CONFIG, words(&[0, 8, 0]), 0),
    ] {
        let mut talk = Talk::new();
        let fds: Vec<OwnedFd> = (0..fds).map(|_| fd()).collect();
        let raw: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let answer = talk.send(code, true, &payload, fds);
        assert!(matches!(answer, Err(SessionError::Malformed(_))), "{what}: {answer:?} {raw:?}");
    }
    for (code, flags, length) in [(1u32, 0u32, 0u32), (1, 2, 0), (1, 5, 0), (1, 1, 4097), (1, 1, u32::MAX)] {
        let bytes: [u8; HEADER] = words(&[code, flags, length]).try_into().expect("a header");
        assert!(Header::read(&bytes).is_err(), "{flags:x} {length}");
    }
}

/// Messages of QEMU when a guest's migration begins, and when the guest pauses.
#[test]
fn a_moving_guest_has_its_writes_logged_and_a_reset_stops_its_queues() {
    let mut talk = Talk::new();
    talk.agree();
    talk.describe(0);
    talk.tell(code::SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    assert_eq!(talk.notes.running.get(&0).map(|setup| setup.log), Some(None));
    talk.log();
    // This message has an empty reply, even without a request for one.
    let reply = talk.send(code::SET_LOG_BASE, false, &longs(&[8192, 4096]), vec![fd()]).expect("taken");
    assert_eq!(reply.bytes, words(&[code::SET_LOG_BASE, 5, 0]));
    assert_eq!(talk.log(), ["map record 4096 8192", "log"]);
    // Logging starts while no queue runs, so that no request in flight misses it.
    let features = u64::from_ne_bytes(talk.ask(code::GET_FEATURES, &[]).try_into().expect("a number"));
    assert!(features & 1 << 26 != 0, "logging is offered");
    talk.tell(code::SET_FEATURES, &features.to_ne_bytes(), vec![]);
    assert_eq!(talk.log(), ["stop 0".to_owned(), format!("features {features:x}"), "start 0 at 13 of 128".to_owned()]);
    talk.tell(code::SET_VRING_ADDR, &ring_address(0, &PLACES, Some(0x77_3000)), vec![]);
    assert_eq!(talk.notes.running.get(&0).and_then(|setup| setup.log), Some(0x77_3000));

    for (code, payload, fds) in [
        (code::SET_LOG_BASE, longs(&[0, 0]), 1),
        (code::SET_LOG_BASE, longs(&[1 << 40, 0]), 1),
        (code::SET_LOG_BASE, longs(&[4096, 0]), 0),
        (code::SET_LOG_FD, Vec::new(), 1),
    ] {
        let fds = (0..fds).map(|_| fd()).collect();
        assert!(talk.send(code, false, &payload, fds).is_err(), "message {code} {payload:?}");
    }

    talk.log();
    talk.tell(code::SET_STATUS, &longs(&[15]), vec![]);
    assert_eq!((talk.ask(code::GET_STATUS, &[]), talk.log().len()), (longs(&[15]), 0));
    talk.tell(code::SET_STATUS, &longs(&[0]), vec![]);
    assert_eq!((talk.ask(code::GET_STATUS, &[]), talk.log()), (longs(&[0]), vec!["stop 0".to_owned()]));
    // The queue runs again after all messages that start a queue.
    talk.tell(code::SET_VRING_KICK, &longs(&[0]), vec![fd()]);
    assert!(talk.notes.running.is_empty());
    talk.tell(code::SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    assert!(talk.notes.running.contains_key(&0));
}

#[test]
fn a_log_that_is_no_shared_memory_is_refused() {
    let mut talk = Talk::new();
    talk.agree();
    talk.tell(code::SET_PROTOCOL_FEATURES, &longs(&[1 << 3]), vec![]);
    let refused = talk.send(code::SET_LOG_BASE, true, &longs(&[4096, 0]), vec![fd()]).expect("told");
    assert_eq!(refused.bytes, [words(&[code::SET_LOG_BASE, 5, 8]), longs(&[1])].concat());
}
