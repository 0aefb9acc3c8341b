//! Compares a slab with a map.

use std::collections::BTreeMap;

use super::*;
use millpond_testing::Random;

#[test]
fn a_slab_is_a_map() {
    let (mut slab, mut plain) = (Slab::default(), BTreeMap::new());
    let (random, mut most) = (&mut Random::new(1), 0);
    for step in 0..6000u64 {
        // crowded at first, then nearly empty, then crowded again
        let inserts = [7, 2, 7][(step / 2000) as usize];
        let at = random.small(most + 2);
        match random.below(10) {
            n if n < inserts => {
                let at = slab.insert(step);
                assert_eq!(plain.insert(at, step), None, "a handle in use is given out");
                most = most.max(plain.len() as u32);
            }
            8 => {
                slab.clear(at);
                plain.remove(&at);
            }
            9 => {
                if let Some(value) = slab.get_mut(at) {
                    *value += 1;
                }
                plain.entry(at).and_modify(|value| *value += 1);
            }
            _ => assert_eq!(slab.remove(at), plain.remove(&at)),
        }
        assert_eq!((slab.get(at), slab.len()), (plain.get(&at), plain.len()));
        assert_eq!(slab.handles(), 0..most, "free handles are used again");
        if step % 50 == 0 {
            assert!(slab.iter().eq(plain.values()));
            assert!(slab.iter_mut().map(|value| *value).eq(plain.values().copied()));
        }
    }
}
