//! One send of a volume: looks at both ends, sends what the target lacks, moves the hold, and thins
//! the target.

use millpond_api::Snapshot;
use millpond_api::send_target::OwnProgram;
use millpond_engine::SnapshotId;

use super::plan::{Ends, Step, part};
use super::process::SendFailure;
use super::{AtTarget, Job, process};
use crate::service::Daemon;

/// This program, also after its file was replaced by an update.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Most snapshots that one command destroys at the target, so that its arguments stay short.
const MOST_DESTROYED: usize = 100;
/// Snapshots that cannot be destroyed, after which the rest waits for the next send.
const MOST_FAILURES: usize = 3;
/// Most steps of one send: an incomplete receive that is given up is one.
const MOST_STEPS: usize = 3;

impl Daemon {
    /// Sends what the target lacks; returns the newest snapshot that it has then.
    ///
    /// # Errors
    /// The reason.
    pub(super) async fn send_volume(&self, job: &Job) -> Result<Option<AtTarget>, SendFailure> {
        let own = self.own_program();
        let volume = self.name_of(job).await?;
        match job.target.pool() {
            None => Ok(self.back_up(job, &own, &volume).await?),
            Some(pool) => self.send_to(job, &own, (&format!("{}/{volume}", job.pool), &format!("{pool}/{volume}"))).await,
        }
    }

    fn own_program(&self) -> OwnProgram {
        OwnProgram { program: OWN_PROGRAM.to_owned(), socket: self.options.socket.clone() }
    }

    /// Returns the name of the volume, without the pool's.
    async fn name_of(&self, job: &Job) -> Result<String, String> {
        let shard = self.shard(&job.pool).map_err(|error| error.message)?;
        let volumes = shard.volumes().await.map_err(|error| error.to_string())?;
        let found = volumes.into_iter().find(|volume| volume.id == job.volume);
        found.map(|volume| volume.name).ok_or_else(|| "the volume does not exist any more".to_owned())
    }

    async fn source(&self, here: &str) -> Result<Vec<Snapshot>, String> {
        let (pool, volume) = here.split_once('/').unwrap_or((here, ""));
        self.snapshots(Some(pool), Some(volume)).await.map_err(|error| error.message)
    }

    /// Looks at both ends. The pattern also finds the new volume of an incomplete receive, and none
    /// is no error.
    async fn ends(&self, job: &Job, own: &OwnProgram, (here, there): (&str, &str)) -> Result<Ends, String> {
        let pattern = there.replacen('/', "/*", 1);
        let listed = process::output(&job.target.list_command(own, &pattern)).await?;
        let listed: Vec<Snapshot> =
            serde_json::from_slice(&listed).map_err(|error| format!("the list of snapshots at the target cannot be read: {error}"))?;
        Ok(Ends::new(self.source(here).await?, there, listed))
    }

    async fn send_to(&self, job: &Job, own: &OwnProgram, (here, there): (&str, &str)) -> Result<Option<AtTarget>, SendFailure> {
        for _ in 0..MOST_STEPS {
            let ends = self.ends(job, own, (here, there)).await?;
            let step = ends.step(&job.terms);
            // the parts of a send that arrive are at both ends, also when it breaks after them
            let mut keep: Vec<SnapshotId> = ends.common().map(|common| SnapshotId(common.id)).into_iter().collect();
            if matches!(step, Ok(Step::Send { .. })) {
                keep.extend(ends.lacking(&job.terms).iter().map(|snapshot| SnapshotId(snapshot.id)));
            }
            if !keep.is_empty() {
                self.move_holds(job, &keep).await?;
            }
            match step? {
                Step::Nothing => {
                    self.thin_target(job, own, &ends).await;
                    return Ok(ends.common().map(at_target));
                }
                Step::Abandon => {
                    process::output(&job.target.command(own, &["receive", there, "--abandon"])).await?;
                }
                Step::Send { range, last, resume } => {
                    let token = resume.as_ref().map(ToString::to_string);
                    let resume: Vec<&str> = token.iter().flat_map(|token| ["--resume", token.as_str()]).collect();
                    let name = format!("{here}{range}");
                    let sender = own.here(&[&["send", name.as_str()], resume.as_slice()].concat());
                    let receiver = job.target.command(own, &[&["receive", there], resume.as_slice()].concat());
                    let limit = self.options.deadlines.send;
                    process::piped((&sender, &receiver), job.shown.clone(), limit, || self.is_wanted(job)).await?;
                    self.move_holds(job, &[SnapshotId(last.id)]).await?;
                    self.thin_target(job, own, &ends).await;
                    return Ok(Some(at_target(&last)));
                }
            }
        }
        Err("an incomplete receive at the target cannot be given up".to_owned().into())
    }

    /// Destroys the snapshots that the policy no longer needs at the target. What fails is tried
    /// again after the next send.
    async fn thin_target(&self, job: &Job, own: &OwnProgram, ends: &Ends) {
        let doomed = ends.superfluous(&job.terms);
        for batch in doomed.chunks(MOST_DESTROYED) {
            let destroy = |names: &[String]| {
                let words: Vec<&str> = ["destroy", "-y"].into_iter().chain(names.iter().map(String::as_str)).collect();
                job.target.command(own, &words)
            };
            if process::output(&destroy(batch)).await.is_ok() {
                continue;
            }
            // one of them is exported, or was held since the list; several are a target that is away
            let mut stay = 0;
            for name in batch {
                if stay >= MOST_FAILURES || !self.is_wanted(job) {
                    return;
                }
                if let Err(why) = process::output(&destroy(std::slice::from_ref(name))).await {
                    stay += 1;
                    tracing::warn!(name, why, "a snapshot stays at the target of a policy until the next send");
                }
            }
        }
    }

    /// Backs the policy's newest snapshot up.
    async fn back_up(&self, job: &Job, own: &OwnProgram, volume: &str) -> Result<Option<AtTarget>, SendFailure> {
        let here = format!("{}/{volume}", job.pool);
        let source = self.source(&here).await?;
        let newest = source.iter().rfind(|snapshot| job.terms.time_of(part(snapshot), &snapshot.description).is_some());
        let Some(newest) = newest else { return Ok(None) };
        if job.known.as_ref() == Some(&at_target(newest)) {
            return Ok(job.known.clone());
        }
        let Some(command) = job.target.backup_command(own, &newest.name, &job.keep, job.known.is_some()) else { return Ok(None) };
        // it may wait for another command that uses the target
        let limit = self.options.deadlines.send * 2;
        process::alone(&command, job.shown.clone(), limit, || self.is_wanted(job)).await?;
        self.move_holds(job, &[SnapshotId(newest.id)]).await?;
        Ok(Some(at_target(newest)))
    }
}

fn at_target(snapshot: &Snapshot) -> AtTarget {
    AtTarget { name: part(snapshot).to_owned(), taken: snapshot.created }
}
