//! Compares an index with a map.

use std::collections::BTreeMap;

use super::*;
use millpond_testing::Random;

#[test]
fn an_index_is_a_map() {
    for most in [1, 3, 100, 1000] {
        let mut random = Random::new(most as u64);
        let mut index = Index::new(most);
        let mut twin: BTreeMap<u64, u32> = BTreeMap::new();
        // keys by entry: more entries than fit, some with equal keys
        let keys: Vec<u64> = (0..2 * most as u64).map(|n| (n * 3 / 4) << 13).collect();
        let key_of = |entry: u32| keys[entry as usize];
        for _ in 0..20_000 {
            let entry = random.index(keys.len()) as u32;
            let key = key_of(entry);
            match random.below(3) {
                0 => {
                    index.insert(key, entry, key_of);
                    if twin.contains_key(&key) || twin.len() < most {
                        twin.insert(key, entry);
                    }
                }
                1 => {
                    index.remove(key, entry, key_of);
                    if twin.get(&key) == Some(&entry) {
                        twin.remove(&key);
                    }
                }
                _ => assert_eq!(index.find(key, key_of), twin.get(&key).copied()),
            }
        }
        for key in &keys {
            assert_eq!(index.find(*key, key_of), twin.get(key).copied());
        }
        assert_eq!(index.count, twin.len());
    }
}
