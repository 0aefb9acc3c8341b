//! Claims: of two hosts that see the same devices, only one has the pool.

use millpond_block::{DeviceError, Io, IoKind, MemberId, Op, Tag};
use millpond_engine::{
    Class, Command, Compression, DeviceCommand, Fault, GroupSpec, Holder, Layout, PoolState, Target, Time, Tuning, VolumeId,
};
use millpond_format::{AREA_BYTES, CLAIM_OFFSET, Claim};

use crate::rig::Rig;
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
fn pool(devices: usize) -> (Rig, VolumeId) {
    let layout = if devices > 1 { MIRROR } else { Layout::Linear };
    let mut rig = Rig::with(&vec![16; devices], layout, tuning(1, 1));
    let volume = rig.volume("disk0", MIB, Compression::Off);
    rig.request(Target::Head(volume), Op::Write, 0, MIB, &vec![1; MIB as usize]).unwrap();
    rig.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    (rig, volume)
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
fn on_same_devices<T>(rig: &mut Rig, media: &mut Vec<Vec<u8>>, turn: impl FnOnce(&mut Rig) -> T) -> T {
    std::mem::swap(&mut rig.media, media);
    let outcome = turn(rig);
    std::mem::swap(&mut rig.media, media);
    outcome
}

/// Runs an import to its end, while `other` has its turns. Returns the time that it took in
/// milliseconds, and the result.
fn open(rig: &mut Rig, media: &mut Vec<Vec<u8>>, mut other: Option<&mut Rig>) -> (u64, Result<(), String>) {
    let begun = rig.now;
    for _ in 0..200 {
        on_same_devices(rig, media, Rig::settle);
        match rig.engine.state() {
            PoolState::Online => return (rig.now - begun, Ok(())),
            PoolState::Faulted(why) => return (rig.now - begun, Err(why.to_string())),
            _ => {}
        }
        rig.now += 500;
        if let Some(other) = &mut other {
            other.now = other.now.max(rig.now);
            on_same_devices(other, media, Rig::settle);
        }
    }
    panic!("neither refused nor taken: {:?}", rig.engine.state());
}

/// Imports devices that no other host uses now.
fn import(media: &[Vec<u8>], tuning: Tuning, now: u64) -> (u64, Result<Rig, String>) {
    let mut rig = Rig::begin_import(media.to_vec(), tuning, now);
    let mut all = std::mem::take(&mut rig.media);
    let (took, outcome) = open(&mut rig, &mut all, None);
    rig.media = all;
    (took, outcome.map(|()| rig))
}

fn reads(rig: &mut Rig, volume: VolumeId, value: u8) -> bool {
    rig.request(Target::Head(volume), Op::Read, 0, MIB, &[]).unwrap().iter().all(|byte| *byte == value)
}

#[test]
fn a_closed_pool_goes_to_any_host_at_once() {
    let (mut rig, volume) = pool(2);
    assert!(rig.media.iter().all(|m| [false, true].iter().all(|second| claim(m, *second).is_some_and(|c| !c.released))));
    rig.command(Command::Close).unwrap();
    assert_eq!(*rig.engine.state(), PoolState::Closed);
    for media in &rig.media {
        assert!([false, true].iter().all(|second| claim(media, *second).unwrap().released));
    }
    let (took, imported) = import(&rig.media, tuning(2, 2), rig.now);
    let mut imported = imported.unwrap();
    assert!(took < 500, "{took} ms");
    assert!(reads(&mut imported, volume, 1));
    let mine = claim(&imported.media[1], true).unwrap();
    assert_eq!((mine.holder.name.as_str(), mine.term, mine.released), ("host2", 2, false));
}

#[test]
fn after_a_crash_the_same_host_goes_on_at_once() {
    let (rig, volume) = pool(1);
    let (took, imported) = import(&rig.media, tuning(1, 2), rig.now);
    assert!(took < 500, "{took} ms");
    assert!(reads(&mut imported.unwrap(), volume, 1));
}

#[test]
fn a_silent_host_s_pool_is_refused_and_taken_by_force() {
    for devices in [1, 2] {
        let (rig, volume) = pool(devices);
        let later = rig.now + 300_000;
        let mut refused = Rig::begin_import(rig.media.clone(), tuning(2, 2), later);
        let mut media = rig.media.clone();
        let (took, outcome) = open(&mut refused, &mut media, None);
        assert_eq!(
            outcome.unwrap_err(),
            "pool 'pond' is not taken: host 'host1' has not closed it: it was last heard of 5 min ago, and has been silent for 10 s"
        );
        assert!((10_000..WATCH).contains(&took), "{took} ms");
        assert!(media == rig.media, "nothing is written");
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
        let (mut rig, volume) = pool(2);
        let mut media = std::mem::take(&mut rig.media);
        let mut other = Rig::begin_import(media.clone(), Tuning { read_only, ..tuning(2, 2) }, rig.now);
        let (took, outcome) = open(&mut other, &mut media, Some(&mut rig));
        let why = outcome.unwrap_err();
        assert!(why.starts_with("pool 'pond' is not taken: it is in use on host 'host1', which was heard of 0 s ago"), "{why}");
        assert!(took < 5_000, "{took} ms");
        rig.now = other.now + 60_000;
        on_same_devices(&mut rig, &mut media, |rig| {
            rig.settle();
            rig.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
            assert!(reads(rig, volume, 2));
        });
    }
}

#[test]
fn to_read_a_silent_host_s_pool_needs_no_force() {
    let (rig, volume) = pool(1);
    let (took, imported) = import(&rig.media, Tuning { read_only: true, ..tuning(2, 2) }, rig.now);
    let mut imported = imported.unwrap();
    assert!(took >= 10_000, "{took} ms");
    assert!(reads(&mut imported, volume, 1));
    imported.now += 60_000;
    imported.settle();
    assert!(imported.media == rig.media, "nothing is written");
    // a read-only import by force does not wait
    let (took, _) = import(&rig.media, Tuning { read_only: true, ..forced(2, 2) }, rig.now);
    assert!(took < 500, "{took} ms");
}

/// Returns operations of a host's engine that would change a device.
fn writes(rig: &mut Rig) -> Vec<Io> {
    let mut writes = Vec::new();
    while let Some(io) = rig.engine.pop_io() {
        if matches!(io.kind, IoKind::Read { .. }) { rig.perform(io) } else { writes.push(io) }
    }
    writes
}

#[test]
fn whoever_was_held_up_writes_nothing_after_the_pool_was_taken() {
    for in_hand in [false, true] {
        let (mut rig, volume) = pool(2);
        rig.command(Command::Checkpoint).unwrap();
        if in_hand {
            // a write is in flight when the host stops
            rig.write(Target::Head(volume), 0, &[3; 4096]);
            rig.turn();
        }
        let mut media = std::mem::take(&mut rig.media);
        let mut other = Rig::begin_import(media.clone(), forced(2, 2), rig.now);
        open(&mut other, &mut media, None).1.unwrap();
        let before = media.clone();
        // the host continues, and fetches the next operation before its turn, as a shard does
        rig.now = other.now + 1;
        on_same_devices(&mut rig, &mut media, |rig| {
            rig.write(Target::Head(volume), 8192, &[3; 4096]);
            rig.engine.answer(Time(rig.now));
            assert!(writes(rig).is_empty());
            for _ in 0..10 {
                rig.turn();
                assert!(writes(rig).is_empty());
            }
            rig.now += 60_000;
            rig.turn();
            assert!(writes(rig).is_empty());
            let PoolState::Faulted(why) = rig.engine.state() else { panic!("{:?}", rig.engine.state()) };
            assert_eq!(*why, Fault::TakenOver { by: "host 'host2'".to_owned() });
            let answers: Vec<_> = std::iter::from_fn(|| rig.engine.pop_completion()).collect();
            assert_eq!(answers.len(), 1 + usize::from(in_hand), "{answers:?}");
            assert!(answers.iter().all(|answer| answer.result.is_err()), "{answers:?}");
            rig.engine.command(Tag(9_999), Command::Close);
            assert!(rig.engine.pop_reply().is_some_and(|(_, reply)| reply.is_err()), "nothing is given back");
            // the host does not know the data that is there now
            rig.submit(Target::Head(volume), Op::Read, 0, 4096);
            rig.turn();
            assert!(rig.engine.pop_completion().is_some_and(|answer| answer.result.is_err()));
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
    let (mut rig, volume) = pool(1);
    rig.write(Target::Head(volume), 0, &[3; 4096]);
    rig.now += 30_000;
    rig.engine.answer(Time(rig.now));
    assert!(writes(&mut rig).is_empty(), "first it is looked whose the pool is");
    rig.settle();
    assert!(rig.engine.pop_completion().unwrap().result.is_ok());
    assert_eq!(rig.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap(), [3; 4096]);
    // also during a close
    rig.start(Command::Close);
    let mut closed = false;
    for step in 0..2_000 {
        rig.now += if step % 3 == 0 { 10_500 } else { 1 };
        rig.engine.answer(Time(rig.now));
        rig.turn();
        if let Some(io) = rig.engine.pop_io() {
            rig.perform(io);
        }
        closed |= rig.engine.pop_reply().is_some_and(|(_, reply)| reply.is_ok());
    }
    assert!(closed && claim(&rig.media[0], true).unwrap().released);
}

#[test]
fn force_takes_a_pool_from_a_living_host() {
    let (mut rig, volume) = pool(2);
    let mut media = std::mem::take(&mut rig.media);
    let mut other = Rig::begin_import(media.clone(), forced(2, 2), rig.now);
    open(&mut other, &mut media, Some(&mut rig)).1.unwrap();
    assert!(matches!(rig.engine.state(), PoolState::Faulted(_)), "{:?}", rig.engine.state());
    on_same_devices(&mut other, &mut media, |other| {
        assert!(reads(other, volume, 1));
        other.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
        other.reopen();
        assert!(reads(other, volume, 2));
    });
}

#[test]
fn of_hosts_that_import_at_once_one_comes_through_at_most() {
    let (mut rig, _) = pool(1);
    rig.command(Command::Close).unwrap();
    let (mut none, mut one) = (0, 0);
    for seed in 1..400u64 {
        let mut media = rig.media.clone();
        let mut random = Random::new(seed);
        let mut hosts = [2, 3].map(|host| Rig::begin_import(media.clone(), tuning(host, host), rig.now));
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
    let (mut rig, volume) = pool(1);
    rig.command(Command::Close).unwrap();
    let mut media = std::mem::take(&mut rig.media);
    for steps in (0..60).step_by(3) {
        let mut slow = Rig::begin_import(media.clone(), tuning(2, 20 + steps), rig.now);
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
        let mut quick = Rig::begin_import(here.clone(), tuning(3, 100 + steps), rig.now);
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
    std::mem::swap(&mut rig.media, &mut media);
}

#[test]
fn one_claim_that_can_be_read_is_enough_and_none_is_nobody_s() {
    let (rig, volume) = pool(2);
    for left in [0, 1, 2, 3] {
        let mut media = rig.media.clone();
        for copy in (0..4).filter(|copy| *copy != left) {
            spoil(&mut media[copy / 2], copy % 2 == 1);
        }
        let (_, refused) = import(&media, tuning(2, 2), rig.now);
        assert!(refused.err().unwrap().contains("host 'host1' has not closed it"), "{left}");
    }
    let mut media = rig.media.clone();
    (0..4).for_each(|copy| spoil(&mut media[copy / 2], copy % 2 == 1));
    let (took, imported) = import(&media, tuning(2, 2), rig.now);
    assert!(took < 500 && reads(&mut imported.unwrap(), volume, 1));
}

#[test]
fn a_spoiled_claim_is_written_again_while_the_pool_is_in_use() {
    let (mut rig, volume) = pool(2);
    spoil(&mut rig.media[0], true);
    spoil(&mut rig.media[1], false);
    rig.now += 2_500;
    rig.settle();
    for media in &rig.media {
        assert_eq!(claim(media, false).unwrap().holder, claim(media, true).unwrap().holder);
    }
    assert!(reads(&mut rig, volume, 1));
}

#[test]
fn pools_without_a_claim_are_imported_as_ever_and_claimed() {
    let mut rig = Rig::with(&[16], Layout::Linear, Tuning { holder: None, ..tuning(1, 1) });
    let volume = rig.volume("disk0", MIB, Compression::Off);
    rig.now += 60_000;
    rig.settle();
    assert!([false, true].iter().all(|second| claim(&rig.media[0], *second).is_none()));
    let (took, imported) = import(&rig.media, tuning(2, 2), rig.now);
    let mut imported = imported.unwrap();
    assert!(took < 500 && reads(&mut imported, volume, 0));
    let (_, refused) = import(&imported.media, tuning(3, 3), imported.now);
    assert!(refused.is_err());
    // an import without a claim does not check claims
    Rig::import_with(imported.media, Tuning { holder: None, ..tuning(3, 3) }, 1_000_000).unwrap();
}

#[test]
fn devices_that_come_later_are_claimed_whatever_they_say() {
    let (mut rig, volume) = pool(2);
    let devices = vec![rig.new_device(16), rig.new_device(16)];
    rig.command(DeviceCommand::AddDevices { groups: vec![GroupSpec { class: Class::Data, layout: MIRROR, devices: None }], devices })
        .unwrap();
    let device = rig.new_device(16);
    // the device has the claim of another host, with a much later term
    let other = Claim { term: 99, holder: tuning(7, 7).holder.unwrap(), ..claim(&rig.media[0], true).unwrap() };
    for area in [0, 15 * MIB] {
        let at = (area + CLAIM_OFFSET) as usize;
        rig.media[device.slot.index()][at..at + 4096].copy_from_slice(&other.encode());
    }
    rig.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    rig.finish_jobs();
    for _ in 0..5 {
        rig.now += 2_500;
        rig.settle();
    }
    assert_eq!(*rig.engine.state(), PoolState::Online);
    for media in &rig.media[1..] {
        assert_eq!(claim(media, true).unwrap().holder.session, [1; 16]);
    }
    assert!(reads(&mut rig, volume, 1));
    rig.command(Command::Close).unwrap();
    assert!(rig.media[1..].iter().all(|media| claim(media, true).unwrap().released));
}

#[test]
fn an_idle_pool_beats_every_two_seconds_and_sleeps_between() {
    let (mut rig, _) = pool(1);
    rig.command(Command::Checkpoint).unwrap();
    rig.now += 10_000;
    rig.settle();
    let (mut operations, mut turns) = (0, 0);
    let end = rig.now + 60_000;
    while rig.now < end {
        rig.now += 500;
        let mut more = true;
        while more {
            more = rig.engine.turn(Time(rig.now));
            turns += 1;
            while let Some(io) = rig.engine.pop_io() {
                operations += 1;
                rig.perform(io);
            }
        }
    }
    assert!((58..=62).contains(&operations), "a look and a beat: {operations}");
    assert!(turns <= 125, "{turns}");
}

#[test]
fn a_look_that_fails_renews_nothing() {
    let (mut rig, volume) = pool(1);
    rig.command(Command::Checkpoint).unwrap();
    rig.unreadable = true;
    let begun = rig.now;
    while rig.now < begun + 14_000 {
        rig.now += 500;
        rig.step();
    }
    // another host may have taken and read the pool meanwhile
    rig.write(Target::Head(volume), 0, &[3; 4096]);
    for _ in 0..5 {
        rig.turn();
        assert!(writes(&mut rig).is_empty(), "no look has come back for more than ten seconds");
    }
    rig.unreadable = false;
    rig.now += 2_500;
    rig.settle();
    assert!(rig.engine.pop_completion().unwrap().result.is_ok(), "one did");
    // guests do not wait for ever
    rig.unreadable = true;
    rig.write(Target::Head(volume), 0, &[4; 4096]);
    while rig.now < begun + 70_000 {
        rig.now += 500;
        rig.turn();
        writes(&mut rig);
    }
    let PoolState::Faulted(why) = rig.engine.state() else { panic!("{:?}", rig.engine.state()) };
    assert_eq!(*why, Fault::ClaimUnreadable(DeviceError::Failed(5)));
    assert!(rig.engine.pop_completion().unwrap().result.is_err());
}

#[test]
fn one_device_that_answers_looks_is_enough() {
    let (mut rig, volume) = pool(2);
    rig.dead = vec![0];
    for _ in 0..60 {
        rig.now += 1_000;
        rig.settle();
    }
    rig.request(Target::Head(volume), Op::Write, 0, MIB, &vec![2; MIB as usize]).unwrap();
    assert_eq!(*rig.engine.state(), PoolState::Online);
    assert!(reads(&mut rig, volume, 2));
}

/// Imports as another session; `found` changes the second claim on a device right after it was
/// written there.
fn import_and_find(devices: usize, found: impl FnOnce(Claim) -> Claim) -> Result<(), String> {
    let (rig, _) = pool(devices);
    let last = devices - 1;
    let old = claim(&rig.media[last], true).unwrap();
    let mut other = Rig::begin_import(rig.media.clone(), forced(2, 2), rig.now);
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
        let outcome = import_and_find(devices, |old| Claim { beat: old.beat + 1, ..old });
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
