//! Charts over time: one chart per figure with a line per target on one scale, so that targets can
//! be compared. The first repetition is in front, further ones are faint behind it.

use super::html::{escaped, number};
use super::svg::{self, Line, Lines, colour};
use crate::report::{Mark, Results, Series, Tick};

/// Figure of an interval.
type Figure = fn(&Tick) -> f64;

/// A line over time.
struct Run<'a> {
    contender: &'a str,
    rep: usize,
    interval: f64,
    values: Vec<f64>,
}

impl Results {
    /// Draws IOPS and mean latency of all loads over time, then every recorded series.
    pub(super) fn over_time(&self) -> String {
        let marks = self.timelines.first().map_or(&[][..], |timeline| &timeline.marks);
        let figures: [(&str, Figure); 2] = [("IOPS", |tick| tick.iops), ("mean latency, us", |tick| tick.mean_us)];
        let mut charts: Vec<String> = Vec::new();
        for (title, of) in figures.into_iter().filter(|_| !self.timelines.is_empty()) {
            let values = self.timelines.iter().map(|t| (t, t.ticks.iter().map(of).collect()));
            let runs = values.map(|(t, values)| Run { contender: &t.contender, rep: t.rep, interval: t.interval, values });
            charts.push(self.chart_over_time(title, &runs.collect::<Vec<Run>>(), marks));
        }
        let mut titles: Vec<&str> = Vec::new();
        for series in self.series.iter().filter(|series| series.values.iter().any(|value| value.is_finite())) {
            if !titles.contains(&series.chart.as_str()) {
                titles.push(&series.chart);
            }
        }
        for title in titles {
            let of: Vec<&Series> = self.series.iter().filter(|series| series.chart == title).collect();
            let marks = of.first().map_or(&[][..], |series| &series.marks);
            let runs = of.iter().map(|s| Run { contender: &s.contender, rep: s.rep, interval: s.interval, values: s.values.clone() });
            charts.push(self.chart_over_time(title, &runs.collect::<Vec<Run>>(), marks));
        }
        charts.concat()
    }

    fn chart_over_time(&self, title: &str, runs: &[Run], marks: &[Mark]) -> String {
        let end = runs.iter().map(|run| run.values.len() as f64 * run.interval).fold(1.0, f64::max);
        let names: Vec<String> = self.contenders().into_iter().filter(|name| runs.iter().any(|run| run.contender == *name)).collect();
        // the first target is drawn last, so that it is in front; behind all are further repetitions
        let mut order: Vec<&Run> = runs.iter().collect();
        order.sort_by_key(|run| (run.rep == 0, std::cmp::Reverse(names.iter().position(|name| name == run.contender))));
        let lines: Vec<Line> = order.iter().map(|run| self.line_over_time(run)).collect();
        let ticks = svg::steps(end).into_iter().filter(|at| *at <= end).map(|at| (at, svg::axis_number(at)));
        let chart = Lines {
            values: title,
            places: "seconds",
            ticks: ticks.collect(),
            span: (0.0, end),
            marks,
            lines: &lines,
            wide: true,
            columns: tips(runs, &names),
        };
        let legend = names.iter().map(|name| self.legend_button(name)).collect::<String>();
        format!(
            "<figure><div class=\"legend\">{legend}</div><p class=\"hint\">The chart is wider than the screen: move it sideways.</p>\
             <div class=\"scroll\">{}</div></figure>\n",
            chart.draw()
        )
    }

    /// Formats a button that hides and shows the line of a target.
    pub(super) fn legend_button(&self, name: &str) -> String {
        let class = colour(self.colour_of(name));
        let name = escaped(name);
        format!("<button class=\"{class}\" data-toggle=\"{name}\" aria-pressed=\"true\">{name}</button>")
    }

    fn line_over_time(&self, run: &Run) -> Line {
        let point = |(n, value): (usize, &f64)| [(n as f64 + 0.5) * run.interval, *value, *value, *value];
        let points = run.values.iter().enumerate().filter(|(_, value)| value.is_finite()).map(point);
        Line { name: run.contender.to_owned(), colour: self.colour_of(run.contender), faint: run.rep > 0, points: points.collect() }
    }
}

/// Returns the tooltip of every interval: the figures of all targets in their first repetition.
fn tips(runs: &[Run], names: &[String]) -> Vec<(f64, f64, String)> {
    let first: Vec<&Run> =
        names.iter().filter_map(|name| runs.iter().filter(|run| run.contender == *name).min_by_key(|run| run.rep)).collect();
    let Some(longest) = first.iter().max_by_key(|run| run.values.len()) else { return Vec::new() };
    let tip = |n: usize| {
        let at = n as f64 * longest.interval;
        let each = first.iter().filter_map(|run| Some(format!("\n{}: {}", run.contender, number(*run.values.get(n)?))));
        (at, longest.interval, format!("{} s{}", number(at), each.collect::<String>()))
    };
    (0..longest.values.len()).map(tip).collect()
}
