//! The rules for several hosts: one holder of each term, and one history.

use std::collections::BTreeMap;

use millpond_format::Term;

/// Everything that hosts believe.
#[derive(Debug, Default)]
pub struct Oracle {
    holders: BTreeMap<Term, [u8; 16]>,
    /// The longest history that was committed.
    longest: Vec<u64>,
    commits: u64,
}

impl Oracle {
    /// A session believes that it has a term.
    ///
    /// # Errors
    /// Another one believes so, too.
    pub fn held(&mut self, term: Term, session: [u8; 16]) -> Result<(), String> {
        match self.holders.insert(term, session) {
            Some(other) if other != session => Err(format!("INV-BUCKET-3: two imports believe that they have term {term}")),
            _ => Ok(()),
        }
    }

    /// A host believes that an anchor with a history counts.
    ///
    /// # Errors
    /// Another anchor with a history that is no beginning of it, nor the reverse, counts as well.
    pub fn committed(&mut self, history: &[u64]) -> Result<(), String> {
        self.commits += 1;
        let common = self.longest.iter().zip(history).take_while(|(a, b)| a == b).count();
        if common < self.longest.len().min(history.len()) {
            let (old, new) = (self.longest.len() - common, history.len() - common);
            return Err(format!(
                "INV-BUCKET-4: two histories: after {common} common writes, {old} committed ones are lost and {new} others count"
            ));
        }
        if history.len() > self.longest.len() {
            self.longest = history.to_vec();
        }
        Ok(())
    }

    /// Number of commits.
    pub fn commits(&self) -> u64 {
        self.commits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_and_one_history() {
        let mut oracle = Oracle::default();
        assert!(oracle.held(Term(1), [1; 16]).is_ok() && oracle.held(Term(1), [1; 16]).is_ok());
        assert!(oracle.held(Term(2), [2; 16]).is_ok());
        assert!(oracle.held(Term(1), [2; 16]).is_err());
        for good in [&[1, 2][..], &[1, 2, 3], &[1], &[], &[1, 2, 3, 4]] {
            assert!(oracle.committed(good).is_ok(), "{good:?}");
        }
        assert!(oracle.committed(&[1, 2, 9]).is_err());
        assert!(oracle.committed(&[9]).is_err());
        assert_eq!(oracle.commits(), 7);
    }
}
