//! Claims: of two hosts that see the same devices, only one has the pool.

use millpond_block::{DeviceError, DeviceSlot, Io, IoDone, IoKind, MemberId, Op, Tag};
use millpond_engine::{
    Class, Command, Compression, DeviceCommand, Fault, GroupSpec, Holder, Layout, MemberState, PoolState, Target, Time, Tuning, VolumeId,
};
use millpond_format::{AREA_BYTES, CLAIM_OFFSET, Claim};

use crate::harness::Harness;
use millpond_testing::Random;

const MIRROR: Layout = Layout::Mirror { copies: 2 };
const MIB: u64 = 1 << 20;
/// Longest time until an import without force is refused, and until one with force succeeds, in
/// milliseconds.
const WATCH: u64 = 12_000;
const TAKE: u64 = 13_000;

fn tuning(host: u8, session: u8) -> Tuning {
    let holder = Some(Holder { host: [host; 16], name: format!("host{host}"), session: [session; 16] });
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, holder, ..Tuning::default() }
}

fn forced(host: u8, session: u8) -> Tuning {
    Tuning { force: true, ..tuning(host, session) }
}

/// A pool of host 1 with a volume full of ones.
fn pool(devices: usize) -> (Harness, VolumeId) {
    let layout = if devices > 1 { MIRROR } else { Layout::Linear };
    let mut harness = Harness::with(&vec![16; devices], layout, tuning(1, 1));
    let volume = harness.volume("disk0", MIB, Compression::Off);
    harness.request(Target::Head(volume), Op::Write, 0, MIB, &vec![1; MIB as usize]).unwrap();
    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    (harness, volume)
}

fn claim(media: &[u8], second: bool) -> Option<Claim> {
    let area = if second { media.len() as u64 / AREA_BYTES * AREA_BYTES - AREA_BYTES } else { 0 };
    let at = (area + CLAIM_OFFSET) as usize;
    Claim::decode(&media[at..at + 4096]).ok()
}

fn spoil(media: &mut [u8], second: bool) {
    let area = if second { media.len() as u64 / AREA_BYTES * AREA_BYTES - AREA_BYTES } else { 0 };
    let at = (area + CLAIM_OFFSET) as usize;
    media[at + 100..at + 200].fill(0x5a);
}

/// Runs `turn` with the devices that both hosts see.
fn on_same_devices<T>(harness: &mut Harness, media: &mut Vec<Vec<u8>>, turn: impl FnOnce(&mut Harness) -> T) -> T {
    std::mem::swap(&mut harness.media, media);
    let outcome = turn(harness);
    std::mem::swap(&mut harness.media, media);
    outcome
}

/// Runs an import to its end, while `other` has its turns. Returns the time that it took in
/// milliseconds, and the result.
fn open(harness: &mut Harness, media: &mut Vec<Vec<u8>>, mut other: Option<&mut Harness>) -> (u64, Result<(), String>) {
    let begun = harness.now;
    for _ in 0..200 {
        on_same_devices(harness, media, Harness::settle);
        match harness.engine.state() {
            PoolState::Online => return (harness.now - begun, Ok(())),
            PoolState::Faulted(why) => return (harness.now - begun, Err(why.to_string())),
            _ => {}
        }
        harness.now += 500;
        if let Some(other) = &mut other {
            other.now = other.now.max(harness.now);
            on_same_devices(other, media, Harness::settle);
        }
    }
    panic!("neither refused nor taken: {:?}", harness.engine.state());
}

/// Imports devices that no other host uses now.
fn import(media: &[Vec<u8>], tuning: Tuning, now: u64) -> (u64, Result<Harness, String>) {
    let mut harness = Harness::begin_import(media.to_vec(), tuning, now);
    let mut all = std::mem::take(&mut harness.media);
    let (took, outcome) = open(&mut harness, &mut all, None);
    harness.media = all;
    (took, outcome.map(|()| harness))
}

fn reads(harness: &mut Harness, volume: VolumeId, value: u8) -> bool {
    harness.request(Target::Head(volume), Op::Read, 0, MIB, &[]).unwrap().iter().all(|byte| *byte == value)
}

#[test]
fn a_closed_pool_goes_to_any_host_at_once() {
    let (mut harness, volume) = pool(2);
    assert!(harness.media.iter().all(|m| [false, true].iter().all(|second| claim(m, *second).is_some_and(|c| !c.released))));
    harness.command(Command::Close).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Closed);
    for media in &harness.media {
        assert!([false, true].iter().all(|second| claim(media, *second).unwrap().released));
    }
    let (took, imported) = import(&harness.media, tuning(2, 2), harness.now);
    let mut imported = imported.unwrap();
    assert!(took < 500, "{took} ms");
    assert!(reads(&mut imported, volume, 1));
    let mine = claim(&imported.media[1], true).unwrap();
    assert_eq!((mine.holder.name.as_str(), mine.term, mine.released), ("host2", 2, false));
}

#[test]
fn after_a_crash_the_same_host_goes_on_at_once() {
    let (harness, volume) = pool(1);
    let (took, imported) = import(&harness.media, tuning(1, 2), harness.now);
    assert!(took < 500, "{took} ms");
    assert!(reads(&mut imported.unwrap(), volume, 1));
}

#[test]
fn a_silent_host_s_pool_is_refused_and_taken_by_force() {
    for devices in [1, 2] {
        let (harness, volume) = pool(devices);
        let later = harness.now + 300_000;
        let mut refused = Harness::begin_import(harness.media.clone(), tuning(2, 2), later);
        let mut media = harness.media.clone();
        let (took, outcome) = open(&mut refused, &mut media, None);
        assert_eq!(
            outcome.unwrap_err(),
            "pool 'pond' is not taken: host 'host1' has not closed it: it was last heard of 5 min ago, and has been silent for 10 s"
        );
        assert!((10_000..WATCH).contains(&took), "{took} ms");
        assert!(media == harness.media, "nothing is written");
        let (took, taken) = import(&media, forced(2, 3), later);
        let mut taken = taken.unwrap();
        assert!((10_000..TAKE).contains(&took), "as long as the other may go on: {took} ms");
        assert!(reads(&mut taken, volume, 1));
        // from now on host 2 has it
        let (_, outcome) = import(&taken.media, tuning(1, 4), taken.now);
        assert!(outcome.err().unwrap().contains("host 'host2' has not closed it"));
    }
}

#[test]
fn a_living_host_keeps_its_pool() {
    for read_only in [false, true] {
        let (mut harness, volume) = pool(2);
        let mut media = std::mem::take(&mut harness.media);
        let mut other = Harness::begin_import(media.clone(), Tuning { read_only, ..tuning(2, 2) }, harness.now);
        let (took, outcome) = open(&mut other, &mut media, Some(&mut harness));
        let why = outcome.unwrap_err();
        assert!(why.starts_with("pool 'pond' is not taken: it is in use on host 'host1', which was heard of 0 s ago"), "{why}");
        assert!(took < 5_000, "{took} ms");
        harness.now = other.now + 60_000;
        on_same_devices(&mut harness, &mut media, |harness| {
            harness.settle();
            harness.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
            assert!(reads(harness, volume, 2));
        });
    }
}

#[test]
fn to_read_a_silent_host_s_pool_needs_no_force() {
    let (harness, volume) = pool(1);
    let (took, imported) = import(&harness.media, Tuning { read_only: true, ..tuning(2, 2) }, harness.now);
    let mut imported = imported.unwrap();
    assert!(took >= 10_000, "{took} ms");
    assert!(reads(&mut imported, volume, 1));
    imported.now += 60_000;
    imported.settle();
    assert!(imported.media == harness.media, "nothing is written");
    // a read-only import by force does not wait
    let (took, _) = import(&harness.media, Tuning { read_only: true, ..forced(2, 2) }, harness.now);
    assert!(took < 500, "{took} ms");
}

/// Returns operations of a host's engine that would change a device.
fn writes(harness: &mut Harness) -> Vec<Io> {
    let mut writes = Vec::new();
    while let Some(io) = harness.engine.pop_io() {
        if matches!(io.kind, IoKind::Read { .. }) { harness.perform(io) } else { writes.push(io) }
    }
    writes
}

#[test]
fn whoever_was_held_up_writes_nothing_after_the_pool_was_taken() {
    for in_hand in [false, true] {
        let (mut harness, volume) = pool(2);
        harness.command(Command::Checkpoint).unwrap();
        if in_hand {
            // a write is in flight when the host stops
            harness.write(Target::Head(volume), 0, &[3; 4096]);
            harness.turn();
        }
        let mut media = std::mem::take(&mut harness.media);
        let mut other = Harness::begin_import(media.clone(), forced(2, 2), harness.now);
        open(&mut other, &mut media, None).1.unwrap();
        let before = media.clone();
        // the host continues, and fetches the next operation before its turn, as a shard does
        harness.now = other.now + 1;
        on_same_devices(&mut harness, &mut media, |harness| {
            harness.write(Target::Head(volume), 8192, &[3; 4096]);
            harness.engine.answer(Time(harness.now));
            assert!(writes(harness).is_empty());
            for _ in 0..10 {
                harness.turn();
                assert!(writes(harness).is_empty());
            }
            harness.now += 60_000;
            harness.turn();
            assert!(writes(harness).is_empty());
            let PoolState::Faulted(why) = harness.engine.state() else { panic!("{:?}", harness.engine.state()) };
            assert_eq!(*why, Fault::TakenOver { by: "host 'host2'".to_owned() });
            let answers: Vec<_> = std::iter::from_fn(|| harness.engine.pop_completion()).collect();
            assert_eq!(answers.len(), 1 + usize::from(in_hand), "{answers:?}");
            assert!(answers.iter().all(|answer| answer.result.is_err()), "{answers:?}");
            harness.engine.command(Tag(9_999), Command::Close);
            assert!(harness.engine.pop_reply().is_some_and(|(_, reply)| reply.is_err()), "nothing is given back");
            // the host does not know the data that is there now
            harness.submit(Target::Head(volume), Op::Read, 0, 4096);
            harness.turn();
            assert!(harness.engine.pop_completion().is_some_and(|answer| answer.result.is_err()));
        });
        assert!(media == before);
        on_same_devices(&mut other, &mut media, |other| {
            other.now += 5_000;
            other.settle();
            assert!(reads(other, volume, 1));
        });
    }
}

#[test]
fn whoever_was_held_up_goes_on_when_nobody_came() {
    let (mut harness, volume) = pool(1);
    harness.write(Target::Head(volume), 0, &[3; 4096]);
    harness.now += 30_000;
    harness.engine.answer(Time(harness.now));
    assert!(writes(&mut harness).is_empty(), "first it is looked whose the pool is");
    harness.settle();
    assert!(harness.engine.pop_completion().unwrap().result.is_ok());
    assert_eq!(harness.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap(), [3; 4096]);
    // also during a close
    harness.start(Command::Close);
    let mut closed = false;
    for step in 0..2_000 {
        harness.now += if step % 3 == 0 { 10_500 } else { 1 };
        harness.engine.answer(Time(harness.now));
        harness.turn();
        if let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
        closed |= harness.engine.pop_reply().is_some_and(|(_, reply)| reply.is_ok());
    }
    assert!(closed && claim(&harness.media[0], true).unwrap().released);
}

#[test]
fn force_takes_a_pool_from_a_living_host() {
    let (mut harness, volume) = pool(2);
    let mut media = std::mem::take(&mut harness.media);
    let mut other = Harness::begin_import(media.clone(), forced(2, 2), harness.now);
    open(&mut other, &mut media, Some(&mut harness)).1.unwrap();
    assert!(matches!(harness.engine.state(), PoolState::Faulted(_)), "{:?}", harness.engine.state());
    on_same_devices(&mut other, &mut media, |other| {
        assert!(reads(other, volume, 1));
        other.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
        other.reopen();
        assert!(reads(other, volume, 2));
    });
}

#[test]
fn of_hosts_that_import_at_once_one_comes_through_at_most() {
    let (mut harness, _) = pool(1);
    harness.command(Command::Close).unwrap();
    let (mut none, mut one) = (0, 0);
    for seed in 1..400u64 {
        let mut media = harness.media.clone();
        let mut random = Random::new(seed);
        let mut hosts = [2, 3].map(|host| Harness::begin_import(media.clone(), tuning(host, host), harness.now));
        hosts.iter_mut().for_each(|host| host.media = Vec::new());
        // some start at the same time, some when the first one has read everything
        let handicap = seed % 40;
        let mut steps = 0;
        while hosts.iter().any(|host| *host.engine.state() == PoolState::Opening) {
            steps += 1;
            let at = if steps < handicap { 0 } else { random.index(2) };
            on_same_devices(&mut hosts[at], &mut media, |host| {
                host.turn();
                if let Some(io) = host.engine.pop_io() {
                    host.perform(io);
                }
            });
        }
        match hosts.iter().filter(|host| *host.engine.state() == PoolState::Online).count() {
            0 => none += 1,
            1 => one += 1,
            _ => panic!("seed {seed}: both have the pool"),
        }
    }
    assert!(one > 100, "{one} {none}");
}

#[test]
fn what_was_read_before_another_host_used_the_pool_is_not_believed() {
    let (mut harness, volume) = pool(1);
    harness.command(Command::Close).unwrap();
    let mut media = std::mem::take(&mut harness.media);
    for steps in (0..60).step_by(3) {
        let mut slow = Harness::begin_import(media.clone(), tuning(2, 20 + steps), harness.now);
        let mut here = media.clone();
        on_same_devices(&mut slow, &mut here, |slow| {
            for _ in 0..steps {
                slow.turn();
                if let Some(io) = slow.engine.pop_io() {
                    slow.perform(io);
                }
            }
        });
        if *slow.engine.state() != PoolState::Opening {
            assert!(steps > 20, "it is all read at once");
            break;
        }
        let claimed =
            claim(&here[0], true).is_some_and(|claim| !claim.released) || claim(&here[0], false).is_some_and(|claim| !claim.released);
        let mut quick = Harness::begin_import(here.clone(), tuning(3, 100 + steps), harness.now);
        if open(&mut quick, &mut here, None).1.is_err() {
            assert!(claimed, "{steps}: nobody else had it");
            continue;
        }
        on_same_devices(&mut quick, &mut here, |quick| {
            quick.request(Target::Head(volume), Op::Write, 0, MIB, &vec![3; MIB as usize]).unwrap();
            quick.command(Command::Close).unwrap();
        });
        match open(&mut slow, &mut here, None).1 {
            // it has only begun
            Ok(()) => on_same_devices(&mut slow, &mut here, |slow| assert!(reads(slow, volume, 3), "{steps}: an old state")),
            Err(why) => assert!(why.contains("another host") || why.contains("is in use on host"), "{why}"),
        }
    }
    std::mem::swap(&mut harness.media, &mut media);
}

#[test]
fn one_claim_that_can_be_read_is_enough_and_none_is_nobody_s() {
    let (harness, volume) = pool(2);
    for left in [0, 1, 2, 3] {
        let mut media = harness.media.clone();
        for copy in (0..4).filter(|copy| *copy != left) {
            spoil(&mut media[copy / 2], copy % 2 == 1);
        }
        let (_, refused) = import(&media, tuning(2, 2), harness.now);
        assert!(refused.err().unwrap().contains("host 'host1' has not closed it"), "{left}");
    }
    let mut media = harness.media.clone();
    (0..4).for_each(|copy| spoil(&mut media[copy / 2], copy % 2 == 1));
    let (took, imported) = import(&media, tuning(2, 2), harness.now);
    assert!(took < 500 && reads(&mut imported.unwrap(), volume, 1));
}

#[test]
fn a_spoiled_claim_is_written_again_while_the_pool_is_in_use() {
    let (mut harness, volume) = pool(2);
    spoil(&mut harness.media[0], true);
    spoil(&mut harness.media[1], false);
    harness.now += 2_500;
    harness.settle();
    for media in &harness.media {
        assert_eq!(claim(media, false).unwrap().holder, claim(media, true).unwrap().holder);
    }
    assert!(reads(&mut harness, volume, 1));
}

#[test]
fn pools_without_a_claim_are_imported_as_ever_and_claimed() {
    let mut harness = Harness::with(&[16], Layout::Linear, Tuning { holder: None, ..tuning(1, 1) });
    let volume = harness.volume("disk0", MIB, Compression::Off);
    harness.now += 60_000;
    harness.settle();
    assert!([false, true].iter().all(|second| claim(&harness.media[0], *second).is_none()));
    let (took, imported) = import(&harness.media, tuning(2, 2), harness.now);
    let mut imported = imported.unwrap();
    assert!(took < 500 && reads(&mut imported, volume, 0));
    let (_, refused) = import(&imported.media, tuning(3, 3), imported.now);
    assert!(refused.is_err());
    // an import without a claim does not check claims
    Harness::import_with(imported.media, Tuning { holder: None, ..tuning(3, 3) }, 1_000_000).unwrap();
}

#[test]
fn devices_that_come_later_are_claimed_whatever_they_say() {
    let (mut harness, volume) = pool(2);
    let devices = vec![harness.new_device(16), harness.new_device(16)];
    harness
        .command(DeviceCommand::AddDevices { groups: vec![GroupSpec { class: Class::Data, layout: MIRROR, devices: None }], devices })
        .unwrap();
    let device = harness.new_device(16);
    // the device has the claim of another host, with a much later term
    let other = Claim { term: 99, holder: tuning(7, 7).holder.unwrap(), ..claim(&harness.media[0], true).unwrap() };
    for area in [0, 15 * MIB] {
        let at = (area + CLAIM_OFFSET) as usize;
        harness.media[device.slot.index()][at..at + 4096].copy_from_slice(&other.encode());
    }
    harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    harness.finish_jobs();
    for _ in 0..5 {
        harness.now += 2_500;
        harness.settle();
    }
    assert_eq!(*harness.engine.state(), PoolState::Online);
    for media in &harness.media[1..] {
        assert_eq!(claim(media, true).unwrap().holder.session, [1; 16]);
    }
    assert!(reads(&mut harness, volume, 1));
    harness.command(Command::Close).unwrap();
    assert!(harness.media[1..].iter().all(|media| claim(media, true).unwrap().released));
}

#[test]
fn an_idle_pool_beats_every_two_seconds_and_sleeps_between() {
    let (mut harness, _) = pool(1);
    harness.command(Command::Checkpoint).unwrap();
    harness.now += 10_000;
    harness.settle();
    let (mut operations, mut turns) = (0, 0);
    let end = harness.now + 60_000;
    while harness.now < end {
        harness.now += 500;
        let mut more = true;
        while more {
            more = harness.engine.turn(Time(harness.now));
            turns += 1;
            while let Some(io) = harness.engine.pop_io() {
                operations += 1;
                harness.perform(io);
            }
        }
    }
    assert!((58..=62).contains(&operations), "a look and a heartbeat: {operations}");
    assert!(turns <= 125, "{turns}");
}

#[test]
fn a_look_that_fails_renews_nothing() {
    let (mut harness, volume) = pool(1);
    harness.command(Command::Checkpoint).unwrap();
    harness.unreadable = true;
    let begun = harness.now;
    while harness.now < begun + 14_000 {
        harness.now += 500;
        harness.step();
    }
    // another host may have taken and read the pool meanwhile
    harness.write(Target::Head(volume), 0, &[3; 4096]);
    for _ in 0..5 {
        harness.turn();
        assert!(writes(&mut harness).is_empty(), "no look has come back for more than ten seconds");
    }
    harness.unreadable = false;
    harness.now += 2_500;
    harness.settle();
    assert!(harness.engine.pop_completion().unwrap().result.is_ok(), "one did");
    // guests do not wait for ever
    harness.unreadable = true;
    harness.write(Target::Head(volume), 0, &[4; 4096]);
    while harness.now < begun + 70_000 {
        harness.now += 500;
        harness.turn();
        writes(&mut harness);
    }
    let PoolState::Faulted(why) = harness.engine.state() else { panic!("{:?}", harness.engine.state()) };
    assert_eq!(*why, Fault::ClaimUnreadable(DeviceError::Failed(5)));
    assert!(harness.engine.pop_completion().unwrap().result.is_err());
}

#[test]
fn one_device_that_answers_looks_is_enough() {
    let (mut harness, volume) = pool(2);
    harness.dead = vec![0];
    for _ in 0..60 {
        harness.now += 1_000;
        harness.settle();
    }
    harness.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert!(reads(&mut harness, volume, 2));
}

/// Imports as another session; `found` changes the second claim on a device right after it was
/// written there.
fn import_and_find(devices: usize, found: impl FnOnce(Claim) -> Claim) -> Result<(), String> {
    let (harness, _) = pool(devices);
    let last = devices - 1;
    let old = claim(&harness.media[last], true).unwrap();
    let mut other = Harness::begin_import(harness.media.clone(), forced(2, 2), harness.now);
    while claim(&other.media[last], true).unwrap().holder.session != [2; 16] {
        other.turn();
        if let Some(io) = other.engine.pop_io() {
            other.perform(io);
        }
    }
    let at = (15 * MIB + CLAIM_OFFSET) as usize;
    other.media[last][at..at + 4096].copy_from_slice(&found(old).encode());
    let mut media = std::mem::take(&mut other.media);
    open(&mut other, &mut media, None).1
}

#[test]
fn a_claim_that_was_written_over_while_its_host_waited_is_not_believed() {
    // the first host could not read its claim and wrote it again; it sees it and continues
    for devices in [1, 2] {
        let outcome = import_and_find(devices, |old| Claim { heartbeat: old.heartbeat + 1, ..old });
        assert!(outcome.unwrap_err().contains("it is in use on host 'host1'"));
    }
}

#[test]
fn a_device_that_loses_a_claim_makes_nobody_a_rival() {
    // the read returns the claim from before: no other host has written since
    assert_eq!(import_and_find(2, |old| old), Ok(()));
    // if it is the only device, no claim can be confirmed
    assert!(import_and_find(1, |old| old).unwrap_err().contains("cannot be read on any device"));
}

/// A pool that writes nothing notices by its look at the claims that a device was pulled out: it goes
/// on without it where it can, and keeps it where it cannot.
#[test]
fn an_idle_pool_goes_on_without_a_device_that_is_gone() {
    for (devices, state) in [(2, MemberState::Down), (1, MemberState::Present)] {
        let (mut harness, volume) = pool(devices);
        harness.command(Command::Checkpoint).unwrap();
        let pulled = DeviceSlot(devices as u16 - 1);
        let end = harness.now + 2_500;
        while harness.now < end {
            harness.now += 100;
            harness.engine.turn(Time(harness.now));
            while let Some(io) = harness.engine.pop_io() {
                match io.kind {
                    _ if io.device != pulled => harness.perform(io),
                    IoKind::Read { buf, .. } => {
                        harness.engine.io_done(IoDone { id: io.id, result: Err(DeviceError::Gone), buf: Some(buf) });
                    }
                    _ => harness.engine.io_done(IoDone { id: io.id, result: Err(DeviceError::Gone), buf: None }),
                }
            }
        }
        let pool = harness.engine.pool().unwrap();
        assert_eq!(pool.devices[pulled.index()].state, state);
        assert_eq!(*harness.engine.state(), PoolState::Online);
        assert!(devices == 1 || reads(&mut harness, volume, 1));
    }
}
