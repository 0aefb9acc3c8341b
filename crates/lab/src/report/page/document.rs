//! The complete HTML page: head, overview, and a section per experiment.

use super::html::{anchor, escaped, number, table};
use crate::report::{Book, Results};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

impl Book {
    /// Formats the page.
    pub fn page(&self) -> String {
        let sections: String = self.experiments.iter().map(Results::section).collect();
        let measured = self.experiments.iter().filter(|r| r.absent.is_none()).count();
        let runs: std::collections::BTreeSet<&str> = self.experiments.iter().map(|r| r.scene.command.as_str()).collect();
        let several = if runs.len() > 1 {
            format!(
                "<p class=\"doubt\">This page gathers {} runs. Every section is of one run; figures of different runs are not compared.</p>",
                runs.len()
            )
        } else {
            String::new()
        };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>Millpond lab</title><style>{STYLE}</style></head>\n<body><button id=\"theme\">light / dark</button><h1>Millpond lab</h1>\
             {}<p>Millpond and the servers people use today, side by side: {measured} of {} experiments measured.</p>{several}\
             <p class=\"soft\">Contenders take turns within a run and nobody is always first. A figure is the median of its repetitions, the spread their \
             smallest and largest; <span class=\"noisy\">noisy</span> = they lie more than a quarter of the median apart. \"Millpond 2x\" below a peer's figure is the \
             median of the ratios within the same repetition: more is better for IOPS and throughput, less for times. The figures published elsewhere were measured on other machines: the ratios can be compared, the \
             figures themselves cannot.</p>\n{}{sections}<script>{SCRIPT}</script></body></html>\n",
            self.smoke_banner(),
            self.experiments.len(),
            self.overview()
        )
    }

    /// Formats the warning of a page with smoke tests; empty without.
    fn smoke_banner(&self) -> String {
        let measured: Vec<&Results> = self.experiments.iter().filter(|r| r.absent.is_none()).collect();
        let smoke: Vec<&str> = measured.iter().filter(|r| r.smoke_test().is_some()).map(|r| r.experiment.as_str()).collect();
        if smoke.is_empty() {
            return String::new();
        }
        let names = if smoke.len() == measured.len() { "everything below".to_owned() } else { smoke.join(", ") };
        format!(
            "<p class=\"smoke\">Smoke test: {}. Such a run shows that the experiments work; its figures say nothing about speed, and goals of speed are not judged.</p>",
            escaped(&names)
        )
    }

    fn overview(&self) -> String {
        let mut rows = vec![["experiment", "what", "state", "articles' figures", "goals"].map(str::to_owned).to_vec()];
        for r in &self.experiments {
            let state = match &r.absent {
                Some(_) => "<span class=\"soft\">not measured</span>".to_owned(),
                None if r.notes.iter().any(|note| note.starts_with("ended early")) => "<span class=\"bad\">ended early</span>".to_owned(),
                None if r.summaries().iter().any(crate::report::Summary::is_noisy) => "<span class=\"noisy\">noisy</span>".to_owned(),
                None => "measured".to_owned(),
            };
            let goals = r.goal_counts();
            let link = format!("<a href=\"#{}\">{}</a>", anchor(&r.experiment), escaped(&r.experiment));
            rows.push(vec![link, escaped(&r.about), state, r.claim_counts(), goals]);
        }
        let took: f64 = self.experiments.iter().map(|r| r.took).sum();
        format!("{}<p class=\"soft\">{} s in all.</p>\n", table(&rows, &[]), number(took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Claim, Curve, Mark, Scene, Tick, Timeline};

    fn results() -> Results {
        let mut results = Results::new("snapshot-timeline", Scene { command: "millpond lab run x <y>".into(), ..Scene::default() });
        for (case, x) in [("0 snapshots", 10.0), ("8 snapshots", 9.0)] {
            results.add(0, "millpond", case, "iops", x);
            results.add(0, "qsd-chain", case, "iops", x / 2.0);
        }
        for contender in ["millpond", "qsd-chain"] {
            for (metric, value) in [("iops", 5.0), ("p50_us", 20.0), ("p99_us", 300.0)] {
                results.add(0, contender, "4k", metric, value);
            }
        }
        let places = vec![(0.0, "0 snapshots".to_owned()), (8.0, "8 snapshots".to_owned())];
        results.curves.push(Curve { title: "reads".into(), axis: "snapshots".into(), metric: "iops".into(), places });
        let ticks = vec![Tick { iops: 5.0, mean_us: 1.0, max_us: 2.0 }; 3];
        let marks = vec![Mark { at: 1.0, text: "10 snapshots".into() }];
        results.timelines.push(Timeline { contender: "millpond".into(), rep: 0, interval: 1.0, ticks, marks });
        results.claim(Claim::new("B", "IOPS", 62_371.0, "IOPS").by("qsd-chain", Some(5.0), 2.0).because("another machine"));
        results.skip("zfs-zvol", "no module");
        results
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_shows_everything() {
        let page = Book { version: 1, experiments: vec![results()] }.page();
        for part in [
            "62,371",
            "differs: another machine",
            "10 snapshots",
            "zfs-zvol",
            "data-toggle=\"qsd-chain\"",
            "millpond lab run x &lt;y&gt;",
            "p99: 300 us",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("Smoke test"));
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="), "it loads nothing");
        let open = page.matches("<svg").count();
        assert_eq!((open, page.matches("</svg>").count()), (5, 5), "two over time, one curve, bars and latencies of one case");
    }

    #[test]
    fn a_smoke_test_says_so_on_top() {
        let small = || {
            let mut results = results();
            results.scale = 0.01;
            results
        };
        let page = Book { version: 1, experiments: vec![small(), small()] }.page();
        assert!(page.contains("<h1>Millpond lab</h1><p class=\"smoke\">Smoke test: everything below."), "{page}");
        let page = Book { version: 1, experiments: vec![small(), Results::new("y", Scene::default())] }.page();
        assert!(page.contains("<p class=\"smoke\">Smoke test: snapshot-timeline."), "{page}");
    }
}
