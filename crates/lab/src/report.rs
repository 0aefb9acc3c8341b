//! Figures of a run: every sample, their medians and spread, ratios of samples taken in the same repetition, and goals.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
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

/// What a figure has to reach.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// Median of the ratios to this contender in the same repetition is at least this.
    TimesOf(String, f64),
    /// In every repetition the same as this contender's, up to this part of it.
    EqualTo(String, f64),
    /// Median is at most this.
    AtMost(f64),
    /// Median is at least this.
    AtLeast(f64),
    /// The largest of all repetitions is at most this.
    NeverAbove(f64),
    /// The smallest of all repetitions is at least this.
    NeverBelow(f64),
}

impl Goal {
    /// [`Goal::TimesOf`].
    pub fn times_of(other: &str, times: f64) -> Goal {
        Goal::TimesOf(other.to_owned(), times)
    }
}

/// A goal and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Of which load or step.
    pub case: String,
    /// Which figure.
    pub metric: String,
    /// The goal in words.
    pub goal: String,
    /// What was reached; `None` = nothing was measured.
    pub reached: Option<f64>,
    /// True when the goal is reached.
    pub met: bool,
}

/// Median and extremes of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Of which load or step.
    pub case: String,
    /// Which figure.
    pub metric: String,
    /// Whose.
    pub contender: String,
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Repetitions.
    pub count: usize,
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
    #[serde(skip, default = "Instant::now")]
    begun: Instant,
}

impl Results {
    /// None yet.
    pub fn new(experiment: &str, scene: Scene) -> Results {
        let experiment = experiment.to_owned();
        Results {
            experiment,
            scene,
            samples: Vec::new(),
            skipped: Vec::new(),
            verdicts: Vec::new(),
            notes: Vec::new(),
            begun: Instant::now(),
        }
    }

    /// Notes a figure.
    pub fn add(&mut self, rep: usize, contender: &str, case: &str, metric: &str, value: f64) {
        self.samples.push(Sample { rep, contender: contender.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value });
    }

    /// Notes that a contender could not run.
    pub fn skip(&mut self, contender: &str, reason: &str) {
        let entry = (contender.to_owned(), reason.to_owned());
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

    /// Judges a goal by what is measured now.
    pub fn goal(&mut self, case: &str, metric: &str, contender: &str, goal: Goal) {
        let values = self.values(case, metric, contender);
        let (reached, met, words) = match goal {
            Goal::TimesOf(other, times) => {
                let ratio = median(&self.ratios(case, metric, contender, &other));
                (ratio, ratio.is_some_and(|r| r >= times), format!("at least {times}x {other}"))
            }
            Goal::EqualTo(other, tolerance) => {
                let off = self.ratios(case, metric, contender, &other).into_iter().map(|r| (r - 1.0).abs()).reduce(f64::max);
                (off.map(|off| 1.0 + off), off.is_some_and(|off| off <= tolerance), format!("equal to {other}, off by at most {tolerance}"))
            }
            Goal::AtMost(limit) => (median(&values), median(&values).is_some_and(|v| v <= limit), format!("at most {limit}")),
            Goal::AtLeast(limit) => (median(&values), median(&values).is_some_and(|v| v >= limit), format!("at least {limit}")),
            Goal::NeverAbove(limit) => {
                let worst = values.iter().copied().reduce(f64::max);
                (worst, worst.is_some_and(|v| v <= limit), format!("never above {limit}"))
            }
            Goal::NeverBelow(limit) => {
                let worst = values.iter().copied().reduce(f64::min);
                (worst, worst.is_some_and(|v| v >= limit), format!("never below {limit}"))
            }
        };
        self.verdicts.push(Verdict { case: case.to_owned(), metric: metric.to_owned(), goal: words, reached, met });
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

    /// Medians of everything, in the order in which it was first measured.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut keys: Vec<(&str, &str, &str)> = Vec::new();
        for sample in &self.samples {
            let key = (sample.case.as_str(), sample.metric.as_str(), sample.contender.as_str());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let summary = |(case, metric, contender): (&str, &str, &str)| {
            let values = self.values(case, metric, contender);
            Some(Summary {
                case: case.to_owned(),
                metric: metric.to_owned(),
                contender: contender.to_owned(),
                median: median(&values)?,
                min: values.iter().copied().reduce(f64::min)?,
                max: values.iter().copied().reduce(f64::max)?,
                count: values.len(),
            })
        };
        keys.into_iter().filter_map(summary).collect()
    }

    /// The report as Markdown: goals, then a table per case.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.experiment);
        let scene = &self.scene;
        let _ = writeln!(
            text,
            "`{}`\n\n{} x {}, {} of memory, Linux {}, in {}\n",
            scene.command,
            scene.cpus,
            scene.cpu,
            crate::units::show_size(scene.memory),
            scene.kernel,
            scene.directory
        );
        let _ = writeln!(text, "{}\n", scene.versions.join(" · "));
        if !self.verdicts.is_empty() {
            text += "| case | figure | goal | reached | |\n|---|---|---|---|---|\n";
            for v in &self.verdicts {
                let reached = v.reached.map_or("not measured".to_owned(), show);
                let _ =
                    writeln!(text, "| {} | {} | {} | {reached} | {} |", v.case, v.metric, v.goal, if v.met { "met" } else { "**missed**" });
            }
            text.push('\n');
        }
        self.tables(&mut text);
        for (contender, reason) in &self.skipped {
            let _ = writeln!(text, "- {contender} was left out: {reason}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    fn tables(&self, text: &mut String) {
        let summaries = self.summaries();
        let mut cases: Vec<&str> = Vec::new();
        for s in &summaries {
            if !cases.contains(&s.case.as_str()) {
                cases.push(&s.case);
            }
        }
        for case in cases {
            let here: Vec<&Summary> = summaries.iter().filter(|s| s.case == case).collect();
            let mut metrics: Vec<&str> = Vec::new();
            let mut contenders: Vec<&str> = Vec::new();
            for s in &here {
                if !metrics.contains(&s.metric.as_str()) {
                    metrics.push(&s.metric);
                }
                if !contenders.contains(&s.contender.as_str()) {
                    contenders.push(&s.contender);
                }
            }
            let _ = writeln!(
                text,
                "### {case}\n\n| contender | {} | ours to it |\n|---|{}---|",
                metrics.join(" | "),
                "---|".repeat(metrics.len())
            );
            for contender in &contenders {
                let cell = |metric: &&str| {
                    here.iter().find(|s| s.metric == *metric && s.contender == *contender).map_or("".to_owned(), |s| spread(s))
                };
                let cells: Vec<String> = metrics.iter().map(cell).collect();
                let ratio = metrics.first().and_then(|metric| median(&self.ratios(case, metric, "millpond", contender)));
                let ratio = ratio.filter(|_| *contender != "millpond").map_or(String::new(), |r| format!("{r:.2}x"));
                let _ = writeln!(text, "| {contender} | {} | {ratio} |", cells.join(" | "));
            }
            text.push('\n');
        }
    }

    /// Writes `NAME.json` and `NAME.md` into a directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let json = dir.join(format!("{}.json", self.experiment));
        fs::write(&json, serde_json::to_string_pretty(self)?).with_context(|| format!("writing {}", json.display()))?;
        let page = dir.join(format!("{}.md", self.experiment));
        fs::write(&page, self.markdown()).with_context(|| format!("writing {}", page.display()))
    }
}

/// The middle one, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = sorted.get(sorted.len() / 2)?;
    let low = sorted.get((sorted.len() - 1) / 2)?;
    Some((high + low) / 2.0)
}

fn show(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

fn spread(s: &Summary) -> String {
    if s.count == 1 || s.min == s.max { show(s.median) } else { format!("{} ({}…{})", show(s.median), show(s.min), show(s.max)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_by_repetition() {
        let mut results = Results::new("x", Scene::default());
        for (rep, ours, theirs) in [(0, 10.0, 5.0), (1, 40.0, 10.0), (2, 90.0, 30.0)] {
            results.add(rep, "millpond", "c", "iops", ours);
            results.add(rep, "peer", "c", "iops", theirs);
        }
        assert_eq!(results.ratios("c", "iops", "millpond", "peer"), [2.0, 4.0, 3.0]);
        results.goal("c", "iops", "millpond", Goal::times_of("peer", 3.0));
        results.goal("c", "iops", "millpond", Goal::times_of("peer", 3.1));
        results.goal("c", "iops", "millpond", Goal::NeverBelow(11.0));
        results.goal("c", "iops", "millpond", Goal::times_of("absent", 1.0));
        let met: Vec<bool> = results.verdicts.iter().map(|v| v.met).collect();
        assert_eq!(met, [true, false, false, false], "what was not measured is not met");
        assert!(results.markdown().contains("| peer | 10.0 (5.000…30.0) | 3.00x |"), "{}", results.markdown());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
