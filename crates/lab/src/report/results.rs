//! Figures of a run: every sample, their medians and spread, ratios of samples taken in the same repetition, and goals.

use super::{Claim, Curve, Timeline, Verdict};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One figure of one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Repetition, from 0.
    pub rep: usize,
    /// Whose.
    pub contender: String,
    /// Of which load or step.
    pub case: String,
    /// What: `iops`, `p99_us`, …; the unit is the end of its name.
    pub metric: String,
    /// The figure.
    pub value: f64,
}

/// The machine and programs of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scene {
    /// The command that reruns it.
    pub command: String,
    /// Processor.
    pub cpu: String,
    /// Number of processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Kernel.
    pub kernel: String,
    /// Filesystem directory used.
    pub directory: String,
    /// Versions of the programs.
    pub versions: Vec<String>,
}

/// All that a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Name of the experiment.
    pub experiment: String,
    /// One line: what it shows.
    #[serde(default)]
    pub about: String,
    /// When it began, RFC 3339 in UTC.
    #[serde(default)]
    pub began: String,
    /// Seconds that it took.
    #[serde(default)]
    pub took: f64,
    /// By what counts and durations were multiplied; 1 = as specified.
    #[serde(default)]
    pub scale: f64,
    /// Why nothing was measured, if nothing was.
    #[serde(default)]
    pub absent: Option<String>,
    /// The machine.
    pub scene: Scene,
    /// Every figure.
    pub samples: Vec<Sample>,
    /// Contenders that could not run, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Goals and what became of them.
    pub verdicts: Vec<Verdict>,
    /// Remarks.
    pub notes: Vec<String>,
    /// What else went on on the machine, where that was enough to disturb.
    #[serde(default)]
    pub disturbed: Vec<String>,
    /// Loads over time.
    #[serde(default)]
    pub timelines: Vec<Timeline>,
    /// Figures against a number.
    #[serde(default)]
    pub curves: Vec<Curve>,
    /// The articles' figures.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// Files with what other programs printed, relative to the report.
    #[serde(default)]
    pub raw: Vec<String>,
    /// The report's directory.
    #[serde(skip)]
    dir: PathBuf,
    #[serde(skip, default = "Instant::now")]
    begun: Instant,
}

impl Results {
    /// None yet.
    pub fn new(experiment: &str, scene: Scene) -> Results {
        let experiment = experiment.to_owned();
        Results {
            experiment,
            about: String::new(),
            began: String::new(),
            took: 0.0,
            scale: 1.0,
            absent: None,
            scene,
            samples: Vec::new(),
            skipped: Vec::new(),
            verdicts: Vec::new(),
            notes: Vec::new(),
            disturbed: Vec::new(),
            timelines: Vec::new(),
            curves: Vec::new(),
            claims: Vec::new(),
            raw: Vec::new(),
            dir: PathBuf::new(),
            begun: Instant::now(),
        }
    }

    /// For a report in this directory.
    pub fn in_dir(mut self, dir: &Path) -> Results {
        dir.clone_into(&mut self.dir);
        self
    }

    /// Keeps what another program printed, in `raw/EXPERIMENT/NAME` of the report's directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.raw_file(name)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// A file for raw output, listed in the report; its directory is there when this returns.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn raw_file(&mut self, name: &str) -> Result<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name = format!("raw/{}/{}", self.experiment, name.chars().map(plain).collect::<String>());
        let path = self.dir.join(&name);
        let parent = path.parent().context("a file in a directory")?;
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        if !self.raw.contains(&name) {
            self.raw.push(name);
        }
        Ok(path)
    }

    /// Notes that nothing can be measured, and why.
    pub fn leave_out(&mut self, reason: &str) {
        self.say(&format!("not measured: {reason}"));
        self.absent = Some(reason.to_owned());
    }

    /// Notes a figure; what is no number is no figure.
    pub fn add(&mut self, rep: usize, contender: &str, case: &str, metric: &str, value: f64) {
        if !value.is_finite() {
            return self.say(&format!("{contender}: {case}: {metric} could not be measured"));
        }
        self.samples.push(Sample { rep, contender: contender.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value });
    }

    /// Notes that a contender could not run.
    pub fn skip(&mut self, contender: &str, reason: &str) {
        let words: Vec<&str> = reason.split_whitespace().collect(); // a program's words may come in lines
        let entry = (contender.to_owned(), words.join(" "));
        if !self.skipped.contains(&entry) {
            self.say(&format!("{contender} is left out: {reason}"));
            self.skipped.push(entry);
        }
    }

    /// Notes a remark for the report.
    pub fn note(&mut self, text: &str) {
        self.say(text);
        self.notes.push(text.to_owned());
    }

    /// Tells the person who waits.
    pub fn say(&self, text: &str) {
        eprintln!("[{:6.1} s] {}: {text}", self.begun.elapsed().as_secs_f64(), self.experiment);
    }

    /// Figures of one contender, by repetition.
    pub fn values(&self, case: &str, metric: &str, contender: &str) -> Vec<f64> {
        self.select(case, metric, contender).map(|s| s.value).collect()
    }

    /// Ratios of two contenders' figures of the same repetition.
    pub fn ratios(&self, case: &str, metric: &str, one: &str, other: &str) -> Vec<f64> {
        let others: Vec<&Sample> = self.select(case, metric, other).collect();
        let pair = |s: &Sample| others.iter().find(|o| o.rep == s.rep && o.value != 0.0).map(|o| s.value / o.value);
        self.select(case, metric, one).filter_map(pair).collect()
    }

    fn select<'a>(&'a self, case: &'a str, metric: &'a str, contender: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |s| s.case == case && s.metric == metric && s.contender == contender)
    }

    /// Seconds since this was made.
    pub fn age(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Writes `NAME.json` and `NAME.md` into its directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self) -> Result<()> {
        let dir = &self.dir;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let json = dir.join(format!("{}.json", self.experiment));
        fs::write(&json, serde_json::to_string_pretty(self)?).with_context(|| format!("writing {}", json.display()))?;
        let page = dir.join(format!("{}.md", self.experiment));
        fs::write(&page, self.markdown()).with_context(|| format!("writing {}", page.display()))
    }
}
