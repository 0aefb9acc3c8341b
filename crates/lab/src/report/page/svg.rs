//! Charts as SVG: lines over time or by a number, bars, latencies. Colours are the classes
//! `k0`…`k7` of the style; tooltips are in `data-tip`.

use super::html::{escaped, number};
use crate::report::Mark;
use std::fmt::Write as _;

const WIDTH: f64 = 440.0;
const WIDE: f64 = 760.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 34.0;
const COLOURS: usize = 8;
/// Height of a row of labels above the plot, and number of rows: neighbours are in different rows.
const LABEL: f64 = 12.0;
const LABEL_ROWS: usize = 3;

/// A line of a chart.
pub(super) struct Line {
    /// Name of the target.
    pub name: String,
    /// Index of the colour.
    pub colour: usize,
    /// Whether the line is drawn faint, behind another repetition.
    pub faint: bool,
    /// Points: place, value, smallest, largest.
    pub points: Vec<[f64; 4]>,
}

/// A chart of lines.
pub(super) struct Lines<'a> {
    /// Label of the values.
    pub values: &'a str,
    /// Label of the places.
    pub places: &'a str,
    /// Ticks of the horizontal axis: place and text.
    pub ticks: Vec<(f64, String)>,
    /// First and last place of the horizontal axis.
    pub span: (f64, f64),
    /// Marked places: phases with their label, and events without.
    pub marks: &'a [Mark],
    /// Lines of the chart.
    pub lines: &'a [Line],
    /// Whether the chart has the width of the page.
    pub wide: bool,
    /// Tooltips: place, width and text.
    pub columns: Vec<(f64, f64, String)>,
}

pub(super) fn colour(index: usize) -> String {
    format!("k{}", index % COLOURS)
}

/// Returns round steps from 0 to at least `top`, at most six.
pub(super) fn steps(top: f64) -> Vec<f64> {
    if top <= 0.0 || !top.is_finite() {
        return vec![0.0, 1.0];
    }
    let power = 10f64.powf((top / 5.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| top / step <= 5.0).unwrap_or(power * 10.0);
    let count = (top / step).ceil() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

impl Lines<'_> {
    /// Draws the chart.
    pub fn draw(&self) -> String {
        let (width, height) = if self.wide { (WIDE, 260.0) } else { (WIDTH, 240.0) };
        let top = self.lines.iter().flat_map(|line| &line.points).map(|p| p[3].max(p[1])).fold(0.0, f64::max);
        let steps = steps(top);
        let ceiling = steps.last().copied().unwrap_or(1.0);
        let (from, to) = self.span;
        let labels = self.marks.iter().filter(|mark| !mark.text.is_empty()).count();
        let roof = TOP + if labels > 0 { LABEL * LABEL_ROWS as f64 } else { 0.0 };
        let x = |place: f64| LEFT + (place - from) / (to - from).max(1e-9) * (width - LEFT - RIGHT);
        let y = |value: f64| roof + (1.0 - value / ceiling) * (height - roof - BOTTOM);
        let mut svg = open(width, height, self.wide, self.values);
        for step in steps {
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                width - RIGHT,
                y(step),
                y(step),
                LEFT - 6.0,
                y(step) + 4.0,
                axis_number(step)
            );
        }
        for (place, text) in &self.ticks {
            let _ = write!(svg, "<text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", x(*place), height - BOTTOM + 15.0, escaped(text));
        }
        let _ = write!(svg, "<text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", width / 2.0 + 20.0, height - 4.0, escaped(self.places));
        self.draw_marks(&mut svg, &x, height - BOTTOM);
        self.lines.iter().for_each(|line| draw_line(&mut svg, line, &x, &y, self.wide));
        for (place, breadth, tip) in &self.columns {
            let (left, right) = (x(*place), x(place + breadth));
            let _ = write!(
                svg,
                "<rect class=\"hit\" x=\"{left:.1}\" width=\"{:.1}\" y=\"{roof:.1}\" height=\"{:.1}\" data-tip=\"{}\"/>",
                (right - left).max(0.5),
                height - roof - BOTTOM,
                escaped(tip)
            );
        }
        svg + "</svg>"
    }

    /// Draws a line at every marked place: with its label above the plot for a phase, short for an
    /// event.
    fn draw_marks(&self, svg: &mut String, x: &dyn Fn(f64) -> f64, bottom: f64) {
        let mut phases = 0;
        for mark in self.marks {
            let place = x(mark.at);
            if mark.text.is_empty() {
                let _ = write!(
                    svg,
                    "<line class=\"event\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>",
                    bottom - 12.0
                );
                continue;
            }
            let row = TOP + LABEL * (phases % LABEL_ROWS) as f64;
            phases += 1;
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{row:.1}\" y2=\"{bottom:.1}\"/><text class=\"m\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                place + 3.0,
                row + 9.0,
                escaped(&mark.text)
            );
        }
    }
}

fn draw_line(svg: &mut String, line: &Line, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64, wide: bool) {
    let class = colour(line.colour);
    let faint = if line.faint { " faint" } else { "" };
    let path: Vec<String> = line.points.iter().map(|p| format!("{:.1},{:.1}", x(p[0]), y(p[1]))).collect();
    let name = escaped(&line.name);
    let _ = write!(svg, "<g data-line=\"{name}\" class=\"{class}{faint}\"><polyline points=\"{}\"/>", path.join(" "));
    for point in line.points.iter().filter(|_| !wide) {
        let [place, value, low, high] = *point;
        if high > low {
            let _ = write!(svg, "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\"/>", x(place), y(low), y(high));
        }
        let spread = if high > low { format!(" ({}…{})", number(low), number(high)) } else { String::new() };
        let tip = escaped(&format!("{}: {}{spread}", line.name, number(value)));
        let _ = write!(svg, "<circle r=\"3.5\" cx=\"{:.1}\" cy=\"{:.1}\" data-tip=\"{tip}\"/>", x(place), y(value));
    }
    *svg += "</g>";
}

fn open(width: f64, height: f64, wide: bool, title: &str) -> String {
    let class = if wide { " class=\"wide\"" } else { "" };
    format!(
        "<svg{class} viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{0}\"><text class=\"t\" x=\"4\" y=\"14\">{0}</text>",
        escaped(title)
    )
}

/// A bar: name, colour, value, smallest, largest.
pub(super) type Bar = (String, usize, f64, f64, f64);

/// Draws horizontal bars.
pub(super) fn bars(title: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 21.0;
    const NAMES: f64 = 140.0;
    const FIGURES: f64 = 66.0;
    let top = bars.iter().map(|bar| bar.4.max(bar.2)).fold(0.0, f64::max).max(1e-12);
    let x = |value: f64| NAMES + value / top * (WIDTH - NAMES - FIGURES);
    let mut svg = open(WIDTH, TOP + ROW * bars.len() as f64, false, title);
    for (index, (name, kind, value, low, high)) in bars.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let spread = if high > low { format!(" ({}…{})", number(*low), number(*high)) } else { String::new() };
        let _ = write!(
            svg,
            "<g class=\"{}\" data-tip=\"{}\"><text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{}</text><rect class=\"bar\" x=\"{NAMES}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/>",
            colour(*kind),
            escaped(&format!("{name}: {}{spread}", number(*value))),
            NAMES - 6.0,
            y + 13.0,
            escaped(&shortened(name, 22)),
            y + 2.0,
            (x(*value) - NAMES).max(0.5),
            ROW - 6.0
        );
        if high > low {
            let middle = y + ROW / 2.0 - 1.0;
            let _ =
                write!(svg, "<line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>", x(*low), x(*high));
        }
        let _ = write!(svg, "<text class=\"v\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>", x(high.max(*value)) + 4.0, y + 13.0, number(*value));
    }
    svg + "</svg>"
}

/// Latencies of a target: name, colour, and percentiles as (label, microseconds).
pub(super) type Percentiles = (String, usize, Vec<(String, f64)>);

/// Draws percentiles on a logarithmic axis, a row per target.
pub(super) fn latencies(title: &str, rows: &[Percentiles]) -> String {
    const ROW: f64 = 21.0;
    const NAMES: f64 = 140.0;
    let values = || rows.iter().flat_map(|row| row.2.iter().map(|(_, us)| us.max(1e-3)));
    let low = values().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values().fold(f64::NEG_INFINITY, f64::max).log10().ceil().max(low + 1.0);
    let x = |us: f64| NAMES + (us.max(1e-3).log10() - low) / (high - low) * (WIDTH - NAMES - 24.0);
    let height = TOP + ROW * rows.len() as f64;
    let mut svg = open(WIDTH, height + 20.0, false, title);
    for power in (low as i32)..=(high as i32) {
        let (value, unit) = if power >= 3 { (10f64.powi(power - 3), "ms") } else { (10f64.powi(power), "us") };
        let (place, text) = (x(10f64.powi(power)), format!("{} {unit}", axis_number(value)));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{TOP}\" y2=\"{height:.1}\"/><text class=\"x\" x=\"{place:.1}\" y=\"{:.1}\">{text}</text>",
            height + 14.0
        );
    }
    for (index, (name, kind, points)) in rows.iter().enumerate() {
        let y = TOP + ROW * (index as f64 + 0.5);
        let _ = write!(
            svg,
            "<g class=\"{}\"><text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            colour(*kind),
            NAMES - 6.0,
            y + 4.0,
            escaped(&shortened(name, 22))
        );
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            let _ = write!(svg, "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>", x(first.1), x(last.1));
        }
        for (rank, (word, us)) in points.iter().enumerate() {
            let tip = escaped(&format!("{name} {word}: {} us", number(*us)));
            let _ = write!(svg, "<circle r=\"{:.1}\" cx=\"{:.1}\" cy=\"{y:.1}\" data-tip=\"{tip}\"/>", 3.0 + rank as f64, x(*us));
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

/// Formats a number without trailing zeroes.
pub(super) fn axis_number(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit { text.to_owned() } else { text.chars().take(limit - 1).collect::<String>() + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_reach_the_top() {
        assert_eq!(steps(62_371.0), [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]);
        assert_eq!(steps(1.0).last(), Some(&1.0));
        assert_eq!(steps(0.0), [0.0, 1.0]);
        assert!(steps(f64::NAN).len() == 2);
    }

    #[test]
    fn a_chart_holds_every_point_and_no_markup_of_names() {
        let line = Line { name: "a<b".into(), colour: 9, faint: false, points: vec![[0.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.5, 2.5]] };
        let chart = Lines {
            values: "IOPS",
            places: "snapshots",
            ticks: vec![(0.0, "0".into())],
            span: (0.0, 1.0),
            marks: &[],
            lines: &[line],
            wide: false,
            columns: Vec::new(),
        };
        let svg = chart.draw();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a&lt;b: 2.00 (1.50…2.50)") && svg.contains("class=\"k1\"") && !svg.contains("a<b"), "{svg}");
    }
}
