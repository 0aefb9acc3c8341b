//! Results of a run: samples, medians and spread, ratios of samples of the same repetition, and
//! goals.

use super::{Claim, Curve, Judged, Matrix, Series, Timeline};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A figure of one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Repetition, from 0.
    pub rep: usize,
    /// Name of the target.
    pub contender: String,
    /// Load or step.
    pub case: String,
    /// Name of the figure: `iops`, `p99_us`, …; the unit is its ending.
    pub metric: String,
    /// Value of the figure.
    pub value: f64,
}

/// Machine and programs of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scene {
    /// Command to run it again.
    pub command: String,
    /// Name of the processor.
    pub cpu: String,
    /// Number of processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Directory that was used.
    pub directory: String,
    /// Versions of the programs.
    pub versions: Vec<String>,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Name of the experiment.
    pub experiment: String,
    /// Description of the experiment in one line.
    #[serde(default)]
    pub about: String,
    /// Start time, RFC 3339 in UTC.
    #[serde(default)]
    pub began: String,
    /// Duration in seconds.
    #[serde(default)]
    pub took: f64,
    /// Factor of counts and durations; 1 = as specified.
    #[serde(default)]
    pub scale: f64,
    /// Reason why nothing was measured, if so.
    #[serde(default)]
    pub absent: Option<String>,
    /// Machine and programs.
    pub scene: Scene,
    /// All samples.
    pub samples: Vec<Sample>,
    /// Targets that could not run, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Evaluated goals.
    pub verdicts: Vec<Judged>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Other activity of the machine, if it was enough to disturb.
    #[serde(default)]
    pub disturbed: Vec<String>,
    /// Loads over time.
    #[serde(default)]
    pub timelines: Vec<Timeline>,
    /// Recorded figures over time.
    #[serde(default)]
    pub series: Vec<Series>,
    /// Tables of words.
    #[serde(default)]
    pub matrices: Vec<Matrix>,
    /// Figures by a number.
    #[serde(default)]
    pub curves: Vec<Curve>,
    /// Published figures of articles.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// Files with the output of other programs, relative to the report.
    #[serde(default)]
    pub raw: Vec<String>,
    /// Directory of the report.
    #[serde(skip)]
    dir: PathBuf,
    #[serde(skip, default = "Instant::now")]
    begun: Instant,
}

impl Results {
    /// Makes empty results.
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
            series: Vec::new(),
            matrices: Vec::new(),
            curves: Vec::new(),
            claims: Vec::new(),
            raw: Vec::new(),
            dir: PathBuf::new(),
            begun: Instant::now(),
        }
    }

    /// Sets the directory of the report.
    pub fn in_dir(mut self, dir: &Path) -> Results {
        dir.clone_into(&mut self.dir);
        self
    }

    /// Keeps the output of another program, in `raw/EXPERIMENT/NAME` of the report's directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.raw_file(name)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Returns the path of a file for raw output, which is listed in the report. Its directory
    /// exists on return.
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

    /// Records that nothing can be measured, and why.
    pub fn leave_out(&mut self, reason: &str) {
        self.say(&format!("not measured: {reason}"));
        self.absent = Some(reason.to_owned());
    }

    /// Adds a figure; a value that is not finite is dropped with a message.
    pub fn add(&mut self, rep: usize, contender: &str, case: &str, metric: &str, value: f64) {
        if !value.is_finite() {
            return self.say(&format!("{contender}: {case}: {metric} could not be measured"));
        }
        self.samples.push(Sample { rep, contender: contender.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value });
    }

    /// Records that a target could not run.
    pub fn skip(&mut self, contender: &str, reason: &str) {
        // the reason may have several lines, from a program's output
        let words: Vec<&str> = reason.split_whitespace().collect();
        let entry = (contender.to_owned(), words.join(" "));
        if !self.skipped.contains(&entry) {
            self.say(&format!("{contender} is left out: {reason}"));
            self.skipped.push(entry);
        }
    }

    /// Adds a remark to the report, and prints it.
    pub fn note(&mut self, text: &str) {
        self.say(text);
        self.notes.push(text.to_owned());
    }

    /// Prints progress for the user.
    pub fn say(&self, text: &str) {
        eprintln!("[{:6.1} s] {}: {text}", self.begun.elapsed().as_secs_f64(), self.experiment);
    }

    /// Figures of a target, by repetition.
    pub fn values(&self, case: &str, metric: &str, contender: &str) -> Vec<f64> {
        self.select(case, metric, contender).map(|s| s.value).collect()
    }

    /// Adds the figure `share`: the ratio of a target's `metric` in `case` to that in `base`, in each
    /// repetition that has both.
    pub fn relate(&mut self, contender: &str, metric: &str, (case, base): (&str, &str), share: &str) {
        let bases: Vec<&Sample> = self.select(base, metric, contender).collect();
        let ratio = |s: &Sample| Some((s.rep, s.value / bases.iter().find(|b| b.rep == s.rep && b.value != 0.0)?.value));
        let ratios: Vec<(usize, f64)> = self.select(case, metric, contender).filter_map(ratio).collect();
        ratios.into_iter().for_each(|(rep, ratio)| self.add(rep, contender, case, share, ratio));
    }

    /// Ratios of the figures of two targets in the same repetition.
    pub fn ratios(&self, case: &str, metric: &str, one: &str, other: &str) -> Vec<f64> {
        let others: Vec<&Sample> = self.select(case, metric, other).collect();
        let pair = |s: &Sample| others.iter().find(|o| o.rep == s.rep && o.value != 0.0).map(|o| s.value / o.value);
        self.select(case, metric, one).filter_map(pair).collect()
    }

    fn select<'a>(&'a self, case: &'a str, metric: &'a str, contender: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |s| s.case == case && s.metric == metric && s.contender == contender)
    }

    /// Seconds since these results were made.
    pub fn age(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Writes `NAME.json` and `NAME.md` into the directory of the report.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self) -> Result<()> {
        let dir = &self.dir;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let json = dir.join(format!("{}.json", self.experiment));
        fs::write(&json, serde_json::to_string_pretty(self)?).with_context(|| format!("writing {}", json.display()))?;
        let page = dir.join(format!("{}.md", self.experiment));
        fs::write(&page, self.markdown()).with_context(|| format!("writing {}", page.display()))
    }
}
