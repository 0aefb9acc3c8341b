use millpond_device::{Event, Ring, Wait};

use super::*;

const MIB: u64 = 1 << 20;

/// A budget of the least size, with pools.
fn pools<const N: usize>() -> (Arc<Budget>, Vec<Ring>, [PoolBudget; N]) {
    let (budget, rings) = (Arc::new(Budget::new(0)), (0..N).map(|_| Ring::new().expect("ring")).collect::<Vec<_>>());
    let pools = std::array::from_fn(|pool| PoolBudget::new(Arc::clone(&budget), rings[pool].waker()));
    (budget, rings, pools)
}

/// Whether the thread of a pool was woken since the last call.
fn is_woken(ring: &mut Ring) -> bool {
    ring.turn(Wait::AtMost(Duration::from_millis(10))).expect("turn");
    std::iter::from_fn(|| ring.pop()).any(|event| matches!(event, Event::Woken))
}

/// Forgets that a thread was woken.
fn settle(ring: &mut Ring) {
    let _ = is_woken(ring);
}

#[test]
fn the_first_in_the_queue_is_served_first_and_all_of_them_in_the_end() {
    let (budget, _rings, [pool]) = pools();
    let mut clients: Vec<Purse> = (0..4).map(|_| Purse::new(pool.asker())).collect();
    let large = LEAST;
    assert!(clients[0].take(&pool, large));
    assert!(clients[0].holds_shared());
    assert!(!clients[1].take(&pool, large) && clients[1].waits());
    // there are enough bytes for this client, but another came first; its own share needs no budget
    assert!(!clients[2].take(&pool, SHARE + 1));
    assert!(clients[3].take(&pool, SHARE) && !clients[3].holds_shared());
    assert!(!clients[3].take(&pool, 1));
    clients[0].shrink(&pool, 0);
    assert!(!clients[2].take(&pool, SHARE + 1), "it is not its turn");
    assert!(clients[1].take(&pool, large));
    assert!(clients[2].take(&pool, SHARE + 1) && clients[3].take(&pool, 1));
    assert_eq!(budget.use_of(), (LEAST, LEAST - SHARE + 2));
    let mut gone = Purse::new(pool.asker());
    assert!(!gone.take(&pool, large));
    gone.settle(&pool);
    assert!(gone.waits(), "it asked just now");
    gone.settle(&pool);
    assert!(!gone.waits());
    // a client that leaves lets the next one go first
    let [mut a, mut b] = [(); 2].map(|()| Purse::new(pool.asker()));
    assert!(!a.take(&pool, large) && !b.take(&pool, SHARE + 1));
    a.empty(&pool);
    assert!(b.take(&pool, SHARE + 1));
    clients.iter_mut().chain([&mut b]).for_each(|client| client.empty(&pool));
    assert_eq!(budget.use_of().1, 0);
}

#[test]
fn what_is_compressed_counts_with_the_memory_for_that() {
    let (budget, _rings, [pool]) = pools();
    let mut client = Purse::new(pool.asker());
    client.weigh(3);
    assert!(client.take(&pool, millpond_block::MAX_REQUEST_BYTES), "the longest request never waits for ever");
    assert_eq!(budget.use_of().1, 3 * millpond_block::MAX_REQUEST_BYTES - SHARE);
    client.shrink(&pool, 1 << 20);
    assert_eq!(budget.use_of().1, (3 << 20) - SHARE);
    // a volume that is not compressed any more
    client.weigh(1);
    client.shrink(&pool, 1 << 20);
    assert_eq!(budget.use_of().1, (1 << 20) - SHARE);
    client.empty(&pool);
    assert_eq!(budget.use_of().1, 0);
}

/// Takes requests of `bytes` by new clients until one has to wait. Returns the clients that were served,
/// and the bytes that they hold of the budget.
fn fill(pool: &PoolBudget, bytes: u64) -> (Vec<Purse>, u64) {
    let mut served = Vec::new();
    loop {
        let mut client = Purse::new(pool.asker());
        if !client.take(pool, SHARE + bytes) {
            client.empty(pool);
            let held = served.len() as u64 * bytes;
            return (served, held);
        }
        served.push(client);
    }
}

#[test]
fn pools_that_wait_leave_memory_for_others() {
    let (budget, _rings, [away, also_away, quick]) = pools();
    // requests for targets that are away: their memory does not return
    let (_first, half) = fill(&away, MIB);
    assert_eq!(half, LEAST / 2);
    let (_second, quarter) = fill(&also_away, MIB);
    assert_eq!(quarter, LEAST / 4);
    let waiting = [&away, &also_away].map(|pool| (Purse::new(pool.asker()), pool));
    for (mut client, pool) in waiting {
        assert!(!client.take(pool, SHARE + 1));
    }
    let (mut clients, eighth) = fill(&quick, MIB);
    assert_eq!(eighth, LEAST / 8);
    // the memory that one pool returns is there for it again, although others wait
    for _ in 0..100 {
        clients.iter_mut().for_each(|client| client.empty(&quick));
        assert!(clients.iter_mut().all(|client| client.take(&quick, SHARE + MIB)));
    }
    clients.iter_mut().for_each(|client| client.empty(&quick));
    assert_eq!(budget.use_of().1, half + quarter);
}

#[test]
fn a_pool_that_holds_nothing_takes_one_request_of_any_length() {
    let (budget, _rings, [away, quick]) = pools();
    let mut hog = Purse::new(away.asker());
    assert!(hog.take(&away, LEAST + SHARE));
    let mut longest = Purse::new(quick.asker());
    longest.weigh(3);
    assert!(longest.take(&quick, millpond_block::MAX_REQUEST_BYTES), "it waits for another pool");
    assert!(budget.use_of().1 > LEAST);
    let mut next = Purse::new(quick.asker());
    assert!(!next.take(&quick, SHARE + 1), "there is no end to it");
    longest.empty(&quick);
    assert!(next.take(&quick, SHARE + 1));
}

#[test]
fn memory_that_returns_wakes_those_pools_that_can_go_on() {
    let (_budget, mut rings, [first, second, third]) = pools();
    let [mut a, mut b, mut c] = [&first, &second, &third].map(|pool| Purse::new(pool.asker()));
    assert!(a.take(&first, SHARE + LEAST - 10 * MIB) && b.take(&second, SHARE + MIB) && c.take(&third, SHARE + MIB));
    let mut waiting = Purse::new(second.asker());
    assert!(!waiting.take(&second, SHARE + 32 * MIB) && !a.take(&first, MIB));
    rings.iter_mut().for_each(settle);
    c.empty(&third);
    assert_eq!(rings.iter_mut().map(is_woken).collect::<Vec<_>>(), [false; 3], "nobody can go on");
    assert!(!waiting.take(&second, SHARE + 32 * MIB));
    a.empty(&first);
    assert!(is_woken(&mut rings[1]) && !is_woken(&mut rings[2]));
    assert!(waiting.take(&second, SHARE + 32 * MIB));
}

#[test]
fn a_pool_that_ends_returns_what_its_clients_hold() {
    let (budget, mut rings, [ending, waiting]) = pools();
    let mut gone = Purse::new(ending.asker());
    assert!(gone.take(&ending, SHARE + LEAST / 2));
    let mut client = Purse::new(waiting.asker());
    assert!(client.take(&waiting, SHARE + 1) && !client.take(&waiting, LEAST - 1));
    settle(&mut rings[1]);
    drop(ending);
    assert_eq!(budget.use_of().1, 1);
    assert!(is_woken(&mut rings[1]));
    assert!(client.take(&waiting, LEAST - 1), "the only pool may have all of it");
}
