use millpond_device::Ring;

use super::*;

#[test]
fn the_first_in_the_queue_is_served_first_and_all_of_them_in_the_end() {
    let (ring, budget) = (Ring::new().expect("ring"), Budget::new(0));
    let waker = ring.waker();
    let mut clients: Vec<Purse> = (0..4).map(|_| Purse::new(budget.asker())).collect();
    let large = LEAST;
    assert!(clients[0].take(&budget, large, &waker));
    assert!(clients[0].holds_shared());
    assert!(!clients[1].take(&budget, large, &waker) && clients[1].waits());
    // there are enough bytes for this client, but another came first; its own share needs no budget
    assert!(!clients[2].take(&budget, SHARE + 1, &waker));
    assert!(clients[3].take(&budget, SHARE, &waker) && !clients[3].holds_shared());
    assert!(!clients[3].take(&budget, 1, &waker));
    clients[0].shrink(&budget, 0);
    assert!(!clients[2].take(&budget, SHARE + 1, &waker), "it is not its turn");
    assert!(clients[1].take(&budget, large, &waker));
    assert!(clients[2].take(&budget, SHARE + 1, &waker) && clients[3].take(&budget, 1, &waker));
    assert_eq!(budget.use_of(), (LEAST, LEAST - SHARE + 2));
    let mut gone = Purse::new(budget.asker());
    assert!(!gone.take(&budget, large, &waker));
    gone.settle(&budget);
    assert!(gone.waits(), "it asked just now");
    gone.settle(&budget);
    assert!(!gone.waits());
    // a client that leaves lets the next one go first
    let [mut a, mut b] = [(); 2].map(|()| Purse::new(budget.asker()));
    assert!(!a.take(&budget, large, &waker) && !b.take(&budget, SHARE + 1, &waker));
    a.empty(&budget);
    assert!(b.take(&budget, SHARE + 1, &waker));
    clients.iter_mut().chain([&mut b]).for_each(|client| client.empty(&budget));
    assert_eq!(budget.use_of().1, 0);
}

#[test]
fn what_is_compressed_counts_with_the_memory_for_that() {
    let (ring, budget) = (Ring::new().expect("ring"), Budget::new(0));
    let mut client = Purse::new(budget.asker());
    client.weigh(3);
    assert!(client.take(&budget, millpond_block::MAX_REQUEST_BYTES, &ring.waker()), "the longest request never waits for ever");
    assert_eq!(budget.use_of().1, 3 * millpond_block::MAX_REQUEST_BYTES - SHARE);
    client.shrink(&budget, 1 << 20);
    assert_eq!(budget.use_of().1, (3 << 20) - SHARE);
    // a volume that is not compressed any more
    client.weigh(1);
    client.shrink(&budget, 1 << 20);
    assert_eq!(budget.use_of().1, (1 << 20) - SHARE);
    client.empty(&budget);
    assert_eq!(budget.use_of().1, 0);
}
