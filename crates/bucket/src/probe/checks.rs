//! The checks, in the order in which they are made.

use futures_util::future::join_all;

use super::*;

/// Numbers of the objects: one for each check, the rounds of the race, those that are timed, and those
/// that are listed.
const FIRST: u32 = 0;
const LARGE_AT: u32 = 1;
const NEVER: u32 = 2;
const RACE_AT: u32 = 10;
const TIMED_AT: u32 = RACE_AT + ROUNDS;
const LISTED_AT: u32 = TIMED_AT + TIMED;
/// Creates of a round with a clear answer, for the round to count as a race.
const LEAST_CLEAR: u32 = 4;
/// Number of names that a probe may use.
pub const NAMES: u32 = LISTED_AT + LISTED;

/// Checks and times so far.
struct Found {
    checks: Vec<Check>,
    put: Vec<Duration>,
    get: Vec<Duration>,
}

impl Found {
    /// Keeps the result of a check; returns whether it is one of the store.
    ///
    /// # Errors
    /// The store does not answer or permits nothing, so there is no result.
    fn keep(&mut self, check: CheckName, (result, took): (Result<String, Trouble>, Duration)) -> Result<bool, BucketError> {
        let (state, found) = match result {
            Ok(found) => (CheckState::Ok, found),
            Err(Trouble::Wrong(found)) => (CheckState::Failed, found),
            Err(Trouble::Failed(error)) if matches!(error.kind, ErrorKind::Refused | ErrorKind::Exists) => {
                (CheckState::Failed, error.to_string())
            }
            // an object that was written and is missing is an answer of the store; so is none of the bucket
            Err(Trouble::Failed(error)) if error.kind == ErrorKind::Missing && check != CheckName::Create => {
                (CheckState::Failed, error.to_string())
            }
            Err(Trouble::Failed(error)) => return Err(error),
        };
        let took_millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.checks.push(Check { check, state, found, took_millis });
        Ok(state == CheckState::Ok)
    }
}

/// Makes all checks.
///
/// # Errors
/// The store does not answer or permits nothing, so nothing was found out.
pub async fn run(objects: &Objects<'_>) -> Result<Verdict, BucketError> {
    Checks { objects }.all().await
}

struct Checks<'a> {
    objects: &'a Objects<'a>,
}

impl Checks<'_> {
    async fn all(&self) -> Result<Verdict, BucketError> {
        let mut found = Found { checks: Vec::new(), put: Vec::new(), get: Vec::new() };
        let later = [
            CheckName::CreateAgain,
            CheckName::Race,
            CheckName::Read,
            CheckName::Range,
            CheckName::Suffix,
            CheckName::Absent,
            CheckName::List,
        ];
        let created = timed(self.check_create()).await;
        if found.keep(CheckName::Create, created)? {
            found.keep(CheckName::CreateAgain, timed(self.check_create_again()).await)?;
            found.keep(CheckName::Race, timed(self.check_race()).await)?;
            let read = timed(self.check_read(&mut found.put, &mut found.get)).await;
            found.keep(CheckName::Read, read)?;
            let content = self.content();
            found.keep(CheckName::Range, timed(self.check_range(&content)).await)?;
            found.keep(CheckName::Suffix, timed(self.check_suffix(&content)).await)?;
            found.keep(CheckName::Absent, timed(self.check_absent()).await)?;
            found.keep(CheckName::List, timed(self.check_list()).await)?;
            found.keep(CheckName::Delete, timed(self.check_delete()).await)?;
            found.keep(CheckName::DeleteAgain, timed(self.check_delete_again()).await)?;
        } else {
            let skipped = |check| Check { check, state: CheckState::Skipped, found: "nothing can be written".to_owned(), took_millis: 0 };
            found.checks.extend(later.into_iter().chain([CheckName::Delete, CheckName::DeleteAgain]).map(skipped));
        }
        let mut lacks = Vec::new();
        for check in found.checks.iter().filter(|check| check.state == CheckState::Failed) {
            if !lacks.contains(&check.check.lack()) {
                lacks.push(check.check.lack());
            }
        }
        Ok(Verdict {
            usable: lacks.is_empty(),
            lacks,
            checks: found.checks,
            put_p50_nanos: median(found.put),
            get_p50_nanos: median(found.get),
            left_behind: None,
        })
    }

    async fn check_create(&self) -> Result<String, Trouble> {
        self.objects.create(FIRST, 1, b"first").await?;
        Ok("an object was created".to_owned())
    }

    async fn check_create_again(&self) -> Result<String, Trouble> {
        match self.objects.create(FIRST, 2, b"second").await {
            Err(error) if error.kind == ErrorKind::Exists => {}
            Ok(()) => return Err(Trouble::Wrong("a second create succeeded instead of failing".to_owned())),
            Err(error) => return Err(error.into()),
        }
        let (bytes, _) = self.objects.read(FIRST, Part::Whole).await?;
        if bytes != self.objects.object(FIRST, 1, b"first") {
            return Err(Trouble::Wrong("a second create failed, and changed the object".to_owned()));
        }
        Ok("a second create failed, and changed nothing".to_owned())
    }

    async fn check_race(&self) -> Result<String, Trouble> {
        let (mut several, mut clear) = (0, 0);
        for round in 0..ROUNDS {
            let number = RACE_AT + round;
            let racers: Vec<u8> = (1..=RACERS).filter_map(|racer| u8::try_from(racer).ok()).collect();
            let answers = join_all(racers.iter().map(|racer| self.race(number, *racer))).await;
            let mut winners = Vec::new();
            let mut in_doubt = 0;
            for (racer, answer) in racers.iter().zip(answers) {
                match answer {
                    Ok(()) => winners.push(*racer),
                    Err(error) if error.kind == ErrorKind::Exists => {}
                    // a store may say that another create is under way; then the object says who won
                    Err(error) if error.kind.may_be_done() => in_doubt += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            clear += u32::from(RACERS - in_doubt >= LEAST_CLEAR);
            let (bytes, _) = self.objects.read(number, Part::Whole).await?;
            let owner = racers.iter().find(|racer| bytes == self.objects.object(number, **racer, &[**racer]));
            match (&winners[..], owner) {
                ([winner], Some(owner)) if winner == owner => {}
                ([], Some(_)) if in_doubt > 0 => {}
                ([_], _) => return Err(Trouble::Wrong("the object is not that of the create that succeeded".to_owned())),
                ([], _) => return Err(Trouble::Wrong(format!("none of {RACERS} creates at the same time succeeded"))),
                _ => several += 1,
            }
        }
        if several > 0 {
            return Err(Trouble::Wrong(format!("several of {RACERS} creates at the same time succeeded, in {several} of {ROUNDS} rounds")));
        }
        // creates that the store turned away did not race
        if clear == 0 {
            return Err(Trouble::Wrong(format!(
                "fewer than {LEAST_CLEAR} of {RACERS} creates at the same time got a clear answer, each time"
            )));
        }
        Ok(format!("one of {RACERS} creates at the same time succeeded, in {clear} of {ROUNDS} rounds with clear answers"))
    }

    async fn race(&self, number: u32, racer: u8) -> Result<(), BucketError> {
        // without patience: a repeated create would meet the first one
        let object = self.objects.object(number, racer, &[racer]);
        self.objects.bucket.carry_out(Operation::Put { name: self.objects.name(number), create: true, object }).await.map(drop)
    }

    /// Content of the large object: no two parts of it are alike.
    fn content(&self) -> Vec<u8> {
        let payload: Vec<u8> = (0..LARGE as u32 / 4).flat_map(|at| (at ^ 0x5a5a_5a5a).to_le_bytes()).collect();
        self.objects.object(LARGE_AT, 1, &payload)
    }

    async fn check_read(&self, put: &mut Vec<Duration>, get: &mut Vec<Duration>) -> Result<String, Trouble> {
        for number in TIMED_AT..TIMED_AT + TIMED {
            // absent a moment ago, as a later term is: something that remembers this would hide it
            match self.objects.read(number, Part::Whole).await {
                Err(error) if error.kind == ErrorKind::Missing => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Trouble::Wrong("an object was read that was never written".to_owned())),
            }
            let (written, took) = timed(self.objects.create(number, 1, b"")).await;
            written?;
            put.push(took);
            let (read, took) = timed(self.objects.read(number, Part::Whole)).await;
            get.push(took);
            if read?.0 != self.objects.object(number, 1, b"") {
                return Err(Trouble::Wrong("an object of 4 KiB was read with other bytes".to_owned()));
            }
        }
        let content = self.content();
        self.objects.patiently(Operation::Put { name: self.objects.name(LARGE_AT), create: true, object: content.clone() }).await?;
        let (bytes, length) = self.objects.read(LARGE_AT, Part::Whole).await?;
        if bytes != content || length != content.len() as u64 {
            return Err(Trouble::Wrong("an object of 1 MiB was read with other bytes".to_owned()));
        }
        Ok(format!("{} objects were read right after they were written", TIMED + 1))
    }

    async fn check_range(&self, content: &[u8]) -> Result<String, Trouble> {
        let end = content.len();
        let parts = [(0, 4096), (4096, 65_536), (1, 1), (12_345, 54_321), (end - 4096, 4096), (end - 10, 100)];
        for (offset, length) in parts {
            let (bytes, whole) = self.objects.read(LARGE_AT, Part::Range { offset: offset as u64, length: length as u64 }).await?;
            let expected = content.get(offset..(offset + length).min(end)).unwrap_or_default();
            if bytes != expected || whole != end as u64 {
                return Err(Trouble::Wrong(format!("bytes {offset} to {} of an object were read wrong", offset + length)));
            }
        }
        Ok(format!("{} parts of an object were read", parts.len()))
    }

    async fn check_suffix(&self, content: &[u8]) -> Result<String, Trouble> {
        for length in [1, 4096] {
            let (bytes, _) = self.objects.read(LARGE_AT, Part::Tail(length as u64)).await?;
            if Some(&bytes[..]) != content.get(content.len() - length..) {
                return Err(Trouble::Wrong(format!("the last {length} bytes of an object were read wrong")));
            }
        }
        Ok("the last bytes of an object were read".to_owned())
    }

    async fn check_absent(&self) -> Result<String, Trouble> {
        match self.objects.read(NEVER, Part::Whole).await {
            Err(error) if error.kind == ErrorKind::Missing => Ok("an absent object is reported as such".to_owned()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Trouble::Wrong("an object was read that was never written".to_owned())),
        }
    }

    async fn check_list(&self) -> Result<String, Trouble> {
        for_each(LISTED_AT..LISTED_AT + LISTED, |number| self.objects.create(number, 1, b"")).await?;
        let expected: Vec<ObjectName> = (LISTED_AT..LISTED_AT + LISTED).map(|number| self.objects.name(number)).collect();
        let mut listed = Vec::new();
        let mut after = Some(self.objects.name(LISTED_AT - 1));
        loop {
            let list = Operation::List { folder: ObjectFolder::Probe(self.objects.id), after, most: MOST_NAMES };
            let Answer::Names { names, more } = self.objects.patiently(list).await? else { break };
            after = names.last().copied();
            listed.extend(names);
            // a list that goes on without names would never end
            if !more || after.is_none() || listed.len() > expected.len() {
                break;
            }
        }
        if listed == expected {
            return Ok(format!("{LISTED} names in pages of {MOST_NAMES}, in order"));
        }
        let known = listed.iter().filter(|name| expected.contains(name)).count();
        Err(Trouble::Wrong(format!("a list of {LISTED} names had {} names, {known} of them right, or was not in order", listed.len())))
    }

    async fn check_delete(&self) -> Result<String, Trouble> {
        let names: Vec<ObjectName> = (LISTED_AT..LISTED_AT + LISTED).map(|number| self.objects.name(number)).collect();
        for batch in names.chunks(MOST_NAMES) {
            self.objects.delete(batch).await?;
        }
        for number in [LISTED_AT, LISTED_AT + LISTED - 1] {
            match self.objects.read(number, Part::Whole).await {
                Err(error) if error.kind == ErrorKind::Missing => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Trouble::Wrong("a deleted object was read".to_owned())),
            }
        }
        Ok(format!("{LISTED} objects were deleted, up to {MOST_NAMES} with a request"))
    }

    async fn check_delete_again(&self) -> Result<String, Trouble> {
        self.objects.delete(&[self.objects.name(LISTED_AT), self.objects.name(NEVER)]).await?;
        Ok("deleting absent objects is no error".to_owned())
    }
}
