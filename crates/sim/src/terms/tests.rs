use super::{TermOptions, TermStats, run_terms};

#[test]
fn hosts_that_fight_for_terms_have_one_history() {
    let mut total = TermStats::default();
    for seed in 0..200 {
        let outcome = run_terms(seed, &TermOptions::default());
        assert_eq!(outcome.finding, None, "seed {seed}: {:#?}", outcome.trace);
        total.add(&outcome.stats);
    }
    // the worlds are about something
    assert!(total.terms > 2000 && total.commits > 2000 && total.faults > 10_000, "{total:?}");
    assert!(total.fenced > 200 && total.lost > 100 && total.resumed > 100, "{total:?}");
}

#[test]
fn a_world_follows_from_its_seed() {
    let options = TermOptions { trace: true, ..TermOptions::default() };
    let (first, second) = (run_terms(7, &options), run_terms(7, &options));
    assert_eq!((first.trace, first.stats), (second.trace, second.stats));
    assert_ne!(run_terms(8, &options).stats, first.stats);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_of_buckets_are_found() {
    use millpond_bucket::Planted;
    for bug in [Planted::ExistsIsSuccess, Planted::ListBelieved, Planted::CounterRestarts] {
        let options = TermOptions { planted: Some(bug), ..TermOptions::default() };
        let found = (0..100).find_map(|seed| run_terms(seed, &options).finding);
        assert!(found.is_some_and(|what| what.starts_with("INV-BUCKET")), "{bug:?}");
    }
}
