use super::*;

#[test]
fn same_seed_same_numbers_other_seed_other_numbers() {
    let numbers = |seed| {
        let mut rng = Rng::new(seed);
        (0..100).map(|_| rng.next()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
}

#[test]
fn ranges_hold_and_every_value_comes() {
    let mut rng = Rng::new(1);
    let mut seen = [0u32; 6];
    for _ in 0..6000 {
        let n = rng.between(3, 8);
        assert!((3..=8).contains(&n));
        seen[(n - 3) as usize] += 1;
    }
    assert!(seen.iter().all(|n| *n > 800), "{seen:?}");
    assert_eq!(rng.below(0), 0);
    assert!((0..1000).filter(|_| rng.weighted(&[1, 0, 9]) == 2).count() > 800);
    assert!((0..1000).all(|_| rng.weighted(&[1, 0, 9]) != 1));
}
