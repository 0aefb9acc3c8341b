use super::*;

#[test]
fn jobs_keep_to_their_rate_however_often_they_are_looked_at() {
    for step in [1, 7, 500] {
        let (mut pace, mut read) = (Pace::default(), 0u64);
        for now in (0..60_000).step_by(step) {
            while pace.allows(Time(now), 1 << 20) {
                pace.charge(1 << 20, 256 << 10);
                read += 256 << 10;
            }
        }
        let (least, most) = (58 << 20, 61 << 20);
        assert!((least..=most).contains(&read), "{read} bytes in a minute with a look every {step} ms");
    }
}

#[test]
fn a_job_begins_without_a_burst() {
    const RATE: u64 = 64 << 20;
    let mut pace = Pace::default();
    for begin in [10_000, 20_000] {
        let mut read = 0;
        for now in begin..begin + 100 {
            while pace.allows(Time(now), RATE) {
                pace.charge(RATE, 256 << 10);
                read += 256 << 10;
            }
        }
        let (least, most) = (RATE / 11, RATE / 9);
        assert!((least..=most).contains(&read), "{read} bytes in its first 100 ms");
    }
}

#[test]
fn without_a_rate_nothing_holds_them_up_and_a_new_one_holds_at_once() {
    let mut pace = Pace::default();
    for _ in 0..1000 {
        assert!(pace.allows(Time(5), 0));
        pace.charge(0, 1 << 30);
    }
    // no allowance was saved while there was no rate
    assert!(!pace.allows(Time(5), 1000));
    assert!(pace.allows(Time(105), 1000));
    pace.charge(1000, 1 << 30);
    assert!(!pace.allows(Time(205), 1000));
    // at most one second of a read that was too large is paid back
    assert!((3..12).any(|n| pace.allows(Time(n * 205), 1000)));
}

#[test]
fn speed_is_what_was_done_lately() {
    let mut pace = Pace::default();
    let job = |done| JobInfo { kind: JobKind::Scrub, member: None, done, total: 1 << 30, errors: 0, rate: 0 };
    pace.look(Time(0), &[job(0)]);
    assert_eq!(pace.rate_of(&job(0)), 0);
    pace.look(Time(2_000), &[job(4000)]);
    assert_eq!(pace.rate_of(&job(0)), 2000);
    // for a job that advances in steps, the rate is their average
    pace.look(Time(20_000), &[job(4000)]);
    pace.look(Time(40_000), &[job(84_000)]);
    assert_eq!(pace.rate_of(&job(0)), 4000);
    // a job that began anew
    pace.look(Time(41_000), &[job(10)]);
    assert_eq!(pace.rate_of(&job(0)), 0);
    pace.look(Time(42_000), &[]);
    assert!(pace.speeds.is_empty());
}
