//! When sends are tried again, and when they are behind.

use super::*;
use crate::policy::PolicyRecord;
use crate::policy::tests::record;

const HOUR: u64 = 3600;

fn at(seconds: u64) -> Timestamp {
    instant::from_millis(1_000_000_000_000 + 1000 * seconds)
}

fn no_answer() -> Result<Option<AtTarget>, SendFailure> {
    Err(SendFailure::Failed("no answer".to_owned()))
}

fn arrived(seconds: u64) -> Option<AtTarget> {
    Some(AtTarget { name: "a".to_owned(), taken: at(seconds) })
}

#[test]
fn a_failed_send_is_tried_again_at_growing_intervals() {
    let now = Instant::now();
    let mut sending = Sending::new(now);
    let minutes: Vec<u64> = (0..8)
        .map(|_| {
            sending.ended(no_answer(), now, at(0));
            assert!(!sending.is_due(now) && sending.is_due(now + RETRY.1));
            sending.retry.expect("a time").duration_since(now).as_secs() / 60
        })
        .collect();
    assert_eq!(minutes, [1, 2, 4, 8, 16, 30, 30, 30]);
    let view = sending.view(now, at(0));
    assert_eq!((view.failing, view.failed, view.error.as_deref(), view.retry), (8, 8, Some("no answer"), Some(at(1800))));
    sending.at_once = true;
    sending.ended(no_answer(), now, at(0));
    assert!(sending.is_due(now), "a user asked for it meanwhile");
    sending.ended(Ok(arrived(5)), now, at(9));
    let view = sending.view(now, at(12));
    assert_eq!((view.failing, view.failed, view.error, view.retry), (0, 9, None, None));
    assert_eq!((view.newest.as_deref(), view.sent, view.lag_seconds), (Some("a"), Some(at(9)), Some(7)));
}

#[test]
fn a_send_is_behind_after_three_failures_or_twice_the_interval() {
    let now = Instant::now();
    let mut sending = Sending::new(now);
    let why = |sending: &Sending, seconds: u64| sending.why_behind(HOUR, at(0), (now, at(seconds)));
    assert_eq!(why(&sending, 100 * HOUR), None, "the first look has not ended");
    for _ in 0..2 {
        sending.ended(no_answer(), now, at(0));
        assert_eq!(why(&sending, 0), None);
    }
    sending.ended(no_answer(), now, at(0));
    assert_eq!(why(&sending, 0), Some("no answer".to_owned()));
    sending.ended(Ok(arrived(1000)), now, at(0));
    assert_eq!(why(&sending, 1000 + 2 * HOUR + SLACK), None);
    let late = why(&sending, 1001 + 2 * HOUR + SLACK).expect("late");
    assert!(late.starts_with("the newest snapshot there is 2 h 10 min old; "), "{late}");
    // nothing is there: from the beginning
    let nothing = Sending { looked: true, ..Sending::new(now) };
    assert_eq!((why(&nothing, 2 * HOUR + SLACK), why(&nothing, 2 * HOUR + SLACK + 1).is_some()), (None, true));
}

#[test]
fn a_send_that_hung_is_behind_at_once_until_one_succeeds() {
    let now = Instant::now();
    let mut sending = Sending::new(now);
    let why = |sending: &Sending| sending.why_behind(HOUR, at(0), (now, at(0)));
    sending.ended(Err(SendFailure::Hung(Duration::from_secs(600))), now, at(0));
    assert!(why(&sending).is_some_and(|why| why.contains("the target took no data for 10 min")), "{:?}", why(&sending));
    assert_eq!(sending.retry, Some(now + RETRY.0), "it is tried again");
    sending.ended(no_answer(), now, at(0));
    assert!(why(&sending).is_some(), "another failure does not end it");
    sending.ended(Ok(arrived(0)), now, at(0));
    assert_eq!(why(&sending), None);
}

fn attached(volume: u32) -> Attached {
    Attached { pool_id: "07".repeat(16), volume, name: format!("tank/v{volume}"), since: at(0) }
}

#[test]
fn the_longest_wait_comes_first_and_one_volume_is_sent_once_at_a_time() {
    let pools = BTreeMap::from([("07".repeat(16), "tank".to_owned())]);
    let sender = |name: &str, volumes: Vec<Attached>| PolicyRecord {
        name: name.to_owned(),
        send: Some("copy".to_owned()),
        volumes,
        ..record("{time}")
    };
    let mut policies = Policies::of(vec![sender("p", vec![attached(1), attached(2)]), sender("q", vec![attached(1)])]);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    policies.all.get_mut("q").expect("q").meet_volumes(now);
    policies.all.get_mut("p").expect("p").meet_volumes(later);
    let mut next = |pools: &BTreeMap<String, String>| policies.next_send(pools, later).map(|job| (job.policy, job.volume.0));
    assert_eq!(next(&BTreeMap::new()), None, "the pool is not in service");
    assert_eq!(next(&pools), Some(("q".to_owned(), 1)));
    assert_eq!(next(&pools), Some(("p".to_owned(), 2)), "volume 1 is being sent");
    assert_eq!(next(&pools), None);
}

#[test]
fn targets_are_checked_with_the_other_properties() {
    let of = |send: &str, name: &str| Terms::of(&PolicyRecord { send: Some(send.to_owned()), name: name.to_owned(), ..record("{time}") });
    assert!(of("ssh://host/tank", &"p".repeat(LONGEST_SENDER)).is_ok());
    assert!(of("ssh://host/tank", &"p".repeat(LONGEST_SENDER + 1)).is_err());
    assert!(of("ssh://-host/tank", "p").is_err());
}
