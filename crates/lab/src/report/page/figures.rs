//! Charts of an experiment: its curves, and for each case bars of the targets; before them, those
//! over time.

use super::svg::{self, Bar, Line, Lines, Percentiles};
use crate::report::{Curve, Results, Summary};

/// Metrics of percentiles with their labels, in the order of a row.
const PERCENTILES: [(&str, &str); 3] = [("p50_us", "p50"), ("p99_us", "p99"), ("p999_us", "p99.9")];
/// With more targets than this in a case, there is no chart.
const MOST_BARS: usize = 16;

impl Results {
    /// Draws all charts of an experiment.
    pub(super) fn charts(&self) -> String {
        let mut text = self.over_time();
        let curves: Vec<String> = self.curves.iter().filter_map(|curve| self.curve_figure(curve)).collect();
        if !curves.is_empty() {
            text += &format!("<div class=\"charts\">{}</div>\n", curves.concat());
        }
        let drawn = |case: &str| self.curves.iter().any(|curve| curve.places.iter().any(|(_, place)| place == case));
        let bars: Vec<String> = self.cases().iter().filter(|case| !drawn(case)).filter_map(|case| self.case_figure(case)).collect();
        if !bars.is_empty() {
            text += &format!("<div class=\"charts\">{}</div>\n", bars.concat());
        }
        text
    }

    /// Lists the targets, Millpond first. The index in this list is the colour.
    pub(super) fn contenders(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let of_samples = self.samples.iter().map(|s| &s.contender);
        let over_time = self.timelines.iter().map(|t| &t.contender).chain(self.series.iter().map(|s| &s.contender));
        for name in of_samples.chain(over_time) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names.sort_by_key(|name| name != "millpond"); // stable: peers keep their order
        names
    }

    pub(super) fn cases(&self) -> Vec<String> {
        let mut cases: Vec<String> = Vec::new();
        for sample in &self.samples {
            if !cases.contains(&sample.case) {
                cases.push(sample.case.clone());
            }
        }
        cases
    }

    pub(super) fn colour_of(&self, contender: &str) -> usize {
        self.contenders().iter().position(|name| name == contender).unwrap_or(0)
    }

    fn curve_figure(&self, curve: &Curve) -> Option<String> {
        // numbers are spaced evenly, because values like 0, 1, 2, 8, 10,000 fit no linear scale
        let rank = |x: f64| curve.places.iter().position(|(place, _)| *place == x).unwrap_or(0) as f64;
        let lines: Vec<Line> = self
            .lines(curve)
            .into_iter()
            .map(|(name, points)| Line {
                colour: self.colour_of(&name),
                name,
                faint: false,
                points: points.into_iter().map(|[x, median, low, high]| [rank(x), median, low, high]).collect(),
            })
            .collect();
        if lines.is_empty() {
            return None;
        }
        let legend: String = lines.iter().map(|line| self.legend_button(&line.name)).collect();
        let places = curve.places.iter().enumerate().map(|(n, (x, _))| (n as f64, svg::axis_number(*x)));
        let values = format!("{}, {}", curve.title, curve.metric);
        let span = (-0.3, curve.places.len() as f64 - 0.7);
        let chart = Lines {
            values: &values,
            places: &curve.axis,
            ticks: places.collect(),
            span,
            marks: &[],
            lines: &lines,
            wide: false,
            columns: Vec::new(),
        };
        Some(format!("<figure>{}<div class=\"legend\">{legend}</div></figure>\n", chart.draw()))
    }

    /// Draws bars of a case's first figure and, if measured, its latencies; `None` for fewer than
    /// two targets or too many.
    fn case_figure(&self, case: &str) -> Option<String> {
        let summaries: Vec<Summary> = self.summaries().into_iter().filter(|s| s.case == case).collect();
        let metric = &summaries.first()?.metric;
        let of = |metric: &str| -> Vec<Bar> {
            let here = summaries.iter().filter(|s| s.metric == metric);
            here.map(|s| (s.contender.clone(), self.colour_of(&s.contender), s.median, s.min, s.max)).collect()
        };
        let bars = of(metric);
        if bars.len() < 2 || bars.len() > MOST_BARS {
            return None;
        }
        let mut text = format!("<figure>{}", svg::bars(&format!("{case}: {metric}"), &bars));
        let rows: Vec<Percentiles> = bars
            .iter()
            .map(|(name, colour, ..)| {
                let value = |metric: &str| summaries.iter().find(|s| s.metric == metric && s.contender == *name).map(|s| s.median);
                let points = PERCENTILES.iter().filter_map(|(metric, word)| Some(((*word).to_owned(), value(metric)?)));
                (name.clone(), *colour, points.collect::<Vec<_>>())
            })
            .filter(|row| row.2.len() > 1)
            .collect();
        if !rows.is_empty() {
            let words: Vec<&str> = rows.iter().flat_map(|row| row.2.iter().map(|(word, _)| word.as_str())).take(rows[0].2.len()).collect();
            text += &svg::latencies(&format!("{case}: latency, {}", words.join(", ")), &rows);
        }
        Some(text + "</figure>\n")
    }
}
