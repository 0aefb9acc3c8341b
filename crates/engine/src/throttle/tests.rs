use millpond_block::ByteRange;

use super::*;
use crate::SnapshotId;

const MILLI: u64 = 1_000_000;
const HEAD: Target = Target::Head(VolumeId(1));
const SNAPSHOT: Target = Target::Snapshot(SnapshotId(1));

struct World {
    throttles: Throttles,
    bufs: BufPool,
    /// Requests that reached the pool since they were last taken; the pool answers at once.
    entered: Vec<(u64, Vec<u8>)>,
    now: u64,
    tag: u64,
    /// Of the guest that [`World::carried`] is.
    under_way: u64,
}

impl World {
    fn new(limits: Limits) -> World {
        let mut world = World {
            throttles: Throttles::default(),
            bufs: BufPool::default(),
            entered: Vec::new(),
            now: 1000 * MILLI,
            tag: 0,
            under_way: 0,
        };
        world.limit(limits);
        world
    }

    fn limit(&mut self, limits: Limits) {
        let options = VolumeOptions { limits, ..VolumeOptions::default() };
        self.throttles.set(&BTreeMap::from([(VolumeId(1), options)]));
    }

    fn submit(&mut self, target: Target, op: Op, bytes: u64) {
        self.tag += 1;
        let length = if op == Op::Flush { 0 } else { bytes };
        let request = Request { op, range: ByteRange { offset: 0, length }, fua: false };
        let data = vec![self.tag as u8; length as usize];
        let payload = if op == Op::Write { Payload::Copy(&data) } else { Payload::None };
        let entry = Entry { target, tag: Tag(self.tag), request, payload, bytes: false };
        let entered = self.throttles.admit(entry, self.now, &mut self.bufs);
        self.entered.extend(entered.map(seen));
    }

    fn release(&mut self) {
        while let Some(entry) = self.throttles.release(self.now) {
            self.entered.push(seen(entry));
        }
    }

    /// Requests that the pool has seen and answered since the last look.
    fn answered(&mut self) -> Vec<u64> {
        self.entered.drain(..).map(|(tag, _)| tag).collect()
    }

    /// A guest that has always 32 requests under way, for so long, looked at every millisecond.
    fn carried(&mut self, op: Op, bytes: u64, millis: u64) -> u64 {
        let mut done = 0;
        for _ in 0..millis {
            self.release();
            loop {
                let answered = self.answered().len() as u64;
                self.under_way -= answered;
                done += answered;
                if self.under_way >= 32 {
                    break;
                }
                self.submit(HEAD, op, bytes);
                self.under_way += 1;
            }
            self.now += MILLI;
        }
        done
    }
}

/// The tag of a request, and its payload.
fn seen(entry: Entry<'_>) -> (u64, Vec<u8>) {
    let bytes = match entry.payload {
        Payload::None => Vec::new(),
        Payload::Copy(bytes) => bytes.to_vec(),
        Payload::Owned(buf) => buf.bytes()[..entry.request.range.length as usize].to_vec(),
    };
    (entry.tag.0, bytes)
}

fn rate(sustained: u64) -> Rate {
    Rate { sustained, ..Rate::default() }
}

#[test]
fn requests_and_bytes_come_at_the_rate() {
    for (limits, op, bytes, wanted) in [
        (Limits { iops: rate(1000), ..Limits::default() }, Op::Read, 4096, 4000),
        (Limits { iops_wr: rate(777), ..Limits::default() }, Op::Write, 4096, 3108),
        (Limits { bps: rate(20 << 20), ..Limits::default() }, Op::Write, 64 << 10, 1280),
        (Limits { bps_rd: rate(20 << 20), iops: rate(100_000), ..Limits::default() }, Op::Read, 512, 163_840),
        (Limits { iops: rate(50), bps: rate(1 << 30), ..Limits::default() }, Op::Discard, 4096, 200),
    ] {
        let done = World::new(limits).carried(op, bytes, 4000);
        assert!(done.abs_diff(wanted) * 33 <= wanted, "{limits:?}: {done} of {wanted} in four seconds");
    }
}

#[test]
fn the_other_direction_and_other_kinds_are_not_limited() {
    let mut world = World::new(Limits { iops_wr: rate(10), bps_wr: rate(4096), ..Limits::default() });
    (0..100).for_each(|_| world.submit(HEAD, Op::Write, 4096));
    world.answered();
    (0..100).for_each(|_| world.submit(HEAD, Op::Read, 4096));
    assert_eq!(world.answered().len(), 100);
    world.submit(HEAD, Op::Flush, 0);
    assert_eq!(world.answered().len(), 1, "a flush passes what is held");
    (0..100).for_each(|_| world.submit(SNAPSHOT, Op::Read, 4096));
    assert_eq!(world.answered().len(), 100);
    assert!(world.throttles.next_release().is_some_and(|when| when > world.now));
}

#[test]
fn a_burst_is_as_fast_and_as_long_as_it_may_be() {
    let burst = Rate { sustained: 100, burst: 400, seconds: 2 };
    let mut world = World::new(Limits { iops: burst, ..Limits::default() });
    let (first, second, third) =
        (world.carried(Op::Read, 512, 1000), world.carried(Op::Read, 512, 1000), world.carried(Op::Read, 512, 1000));
    assert!((430..=445).contains(&first) && (350..=385).contains(&second), "{first} {second}");
    assert!((97..=105).contains(&third), "{third}");
    // two idle seconds save up 200
    world.now += 2000 * MILLI;
    let after = world.carried(Op::Read, 512, 1000);
    assert!((285..=315).contains(&after), "{after}");
}

#[test]
fn order_is_kept_and_payloads_arrive() {
    let mut world = World::new(Limits { iops: rate(10), ..Limits::default() });
    (0..20).for_each(|_| world.submit(HEAD, Op::Write, 4096));
    let mut seen = std::mem::take(&mut world.entered);
    while let Some(when) = world.throttles.next_release() {
        world.now = world.now.max(when);
        world.release();
        seen.append(&mut world.entered);
    }
    assert_eq!(seen, (1..=20).map(|tag| (tag, vec![tag as u8; 4096])).collect::<Vec<_>>());
    assert!(world.now >= 2800 * MILLI, "{}", world.now);
}

#[test]
fn the_effect_of_limits_is_counted() {
    let mut world = World::new(Limits { iops: rate(10), ..Limits::default() });
    (0..4).for_each(|_| world.submit(HEAD, Op::Write, 4096));
    let entered = world.answered().len() as u64;
    let effect = |world: &World| world.throttles.effect(VolumeId(1));
    assert_eq!(effect(&world), LimitEffect { waiting: 4 - entered, waited: 0, waited_nanos: 0 });
    let begin = world.now;
    let mut waited = 0;
    while let Some(when) = world.throttles.next_release() {
        world.now = world.now.max(when);
        world.release();
        waited += (world.now - begin) * world.answered().len() as u64;
    }
    assert!(waited > 100 * MILLI, "{waited}");
    assert_eq!(effect(&world), LimitEffect { waiting: 0, waited: 4 - entered, waited_nanos: waited });
    assert_eq!(world.throttles.effect(VolumeId(2)), LimitEffect::default(), "a volume without limits");
}

#[test]
fn lifting_and_hurrying_let_everything_in() {
    let slow = Limits { iops: rate(1), ..Limits::default() };
    let mut world = World::new(slow);
    (0..10).for_each(|_| world.submit(HEAD, Op::Write, 4096));
    assert_eq!(world.answered().len(), 1);
    world.throttles.hurry(Some(SNAPSHOT));
    world.release();
    assert_eq!(world.answered().len(), 0, "another's hurry");
    world.throttles.hurry(Some(HEAD));
    assert_eq!(world.throttles.next_release(), Some(0));
    world.release();
    assert_eq!(world.answered().len(), 9);
    world.submit(HEAD, Op::Write, 4096);
    assert_eq!(world.answered().len(), 0, "limited again");
    world.limit(Limits::default());
    world.release();
    assert_eq!(world.answered().len(), 1, "no limit any more");
    world.limit(slow);
    world.throttles.lift();
    (0..10).for_each(|_| world.submit(HEAD, Op::Write, 4096));
    assert_eq!(world.answered().len(), 10);
}
