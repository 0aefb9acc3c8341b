//! Section of an experiment on the page: description, articles' figures, charts, tables, goals,
//! omissions, and the command to run it again.

use super::html::{anchor, escaped, number, table};
use crate::report::{Cell, Judged, Matrix, Outcome, Results, Summary, Tone, Verdict, median};
use crate::units::show_size;

const OURS: &str = "millpond";
/// With more goals than this, those that were met are folded.
const MOST_GOALS: usize = 12;

fn words(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn goal_table<'a>(goals: impl Iterator<Item = &'a Judged>) -> String {
    let row = |v: &Judged| {
        let class = match v.verdict {
            Verdict::Met => "good",
            Verdict::Missed => "bad",
            Verdict::NotAtThisScale | Verdict::NotMeasured => "soft",
        };
        let word = format!("<span class=\"{class}\">{}</span>", v.verdict.words());
        let reached = v.reached.map_or("&ndash;".to_owned(), number);
        vec![escaped(&v.case), escaped(&v.metric), escaped(&v.contender), escaped(&v.goal), reached, word]
    };
    let head = words(&["case", "figure", "of", "goal", "result", "verdict"]);
    table(&std::iter::once(head).chain(goals.map(row)).collect::<Vec<Vec<String>>>(), &[4])
}

fn matrix_html(matrix: &Matrix) -> String {
    let cell = |cell: &Cell| {
        let class = match cell.tone {
            Tone::Plain => "",
            Tone::Good => "good",
            Tone::Warning => "noisy",
            Tone::Bad => "bad",
        };
        format!("<span class=\"{class}\">{}</span>", escaped(&cell.text).replace('\n', "<br>"))
    };
    let head = matrix.head.iter().map(|head| escaped(head)).collect();
    let rows = matrix.rows.iter().map(|row| row.iter().map(cell).collect());
    format!("<h3>{}</h3>{}", escaped(&matrix.title), table(&std::iter::once(head).chain(rows).collect::<Vec<Vec<String>>>(), &[]))
}

impl Results {
    /// Formats the section.
    pub(super) fn section(&self) -> String {
        let name = escaped(&self.experiment);
        let mut text = format!(
            "<section id=\"{}\"><h2>{name}</h2><p>{}</p><p class=\"soft\">{}, {} s, scale {} &middot; again: <code>{}</code></p>\n",
            anchor(&self.experiment),
            escaped(&self.about),
            escaped(&self.began),
            number(self.took),
            self.scale,
            escaped(&self.scene.command)
        );
        if let Some(warning) = self.smoke_test() {
            text += &format!("<p class=\"smoke\">{}</p>\n", escaped(&warning));
        }
        if let Some(reason) = &self.absent {
            text += &format!("<p class=\"doubt\">Not measured: {}</p>\n", escaped(reason));
        }
        for doubt in self.doubts() {
            text += &format!("<p class=\"doubt\">{}</p>\n", escaped(&doubt));
        }
        text += &self.claims_html();
        text += &self.matrices.iter().map(matrix_html).collect::<String>();
        text += &self.charts();
        text += &self.figures_html();
        text += &self.goals_html();
        text += &self.remarks_html();
        text + "</section>\n"
    }

    fn claims_html(&self) -> String {
        if self.claims.is_empty() {
            return String::new();
        }
        let mut rows = vec![words(&["article", "measurement", "published", "same kind of server here", "Millpond", "result"])];
        for c in &self.claims {
            let class = match c.outcome {
                Outcome::Reproduced => "good",
                Outcome::Differs => "noisy",
                Outcome::Modelled | Outcome::NotComparable | Outcome::NotMeasured => "soft",
            };
            rows.push(vec![
                escaped(&c.source),
                format!("<span class=\"what\">{}</span>", escaped(&c.says)),
                format!("{} {}", number(c.figure), escaped(&c.unit)),
                c.theirs
                    .as_ref()
                    .map_or("&ndash;".to_owned(), |(who, value)| format!("{} <small>{}</small>", number(*value), escaped(who))),
                c.ours.map_or("&ndash;".to_owned(), number),
                format!("<span class=\"why {class}\">{}</span>", escaped(&c.verdict())),
            ]);
        }
        format!("<h3>What the articles say</h3>{}", table(&rows, &[2, 3, 4]))
    }

    fn row(&self, s: &Summary) -> Vec<String> {
        let ratio = median(&self.ratios(&s.case, &s.metric, OURS, &s.contender)).filter(|_| s.contender != OURS);
        let class = if s.contender == OURS { " class=\"ours\"" } else { "" };
        vec![
            escaped(&s.case),
            escaped(&s.metric),
            format!("<span{class}>{}</span>", escaped(&s.contender)),
            format!("<span{class}>{}</span>", number(s.median)),
            if s.count > 1 { format!("{}&hellip;{}", number(s.min), number(s.max)) } else { String::new() },
            s.count.to_string(),
            ratio.map_or(String::new(), |r| format!("{}x", number(r))),
            if s.is_noisy() { "<span class=\"noisy\">noisy</span>".to_owned() } else { String::new() },
        ]
    }

    /// Formats the first figure of each case, and all figures in a folded part.
    fn figures_html(&self) -> String {
        let summaries = self.summaries();
        if summaries.is_empty() {
            return String::new();
        }
        let head = words(&["case", "figure", "contender", "median", "spread", "reps", "ratio", ""]);
        let first_of = |case: &str| summaries.iter().find(|s| s.case == case).map(|s| s.metric.clone());
        let of = |wanted: &dyn Fn(&Summary) -> bool| {
            let rows: Vec<Vec<String>> = summaries.iter().filter(|s| wanted(s)).map(|s| self.row(s)).collect();
            let count = rows.len();
            (table(&[vec![head.clone()], rows].concat(), &[3, 4, 5, 6]), count)
        };
        let (all, many) = of(&|_| true);
        let more = format!("<details><summary>All {many} figures</summary>{all}</details>\n");
        let firsts: Vec<&Summary> = summaries.iter().filter(|s| first_of(&s.case).as_deref() == Some(s.metric.as_str())).collect();
        // an experiment with tables of words shows its figures in these
        let overview = if self.matrices.is_empty() { self.side_by_side(&firsts) } else { String::new() };
        format!("<h3>Figures</h3>{overview}{more}")
    }

    /// Formats a row per case with a column per target; below a peer's figure is Millpond's ratio
    /// to it.
    fn side_by_side(&self, firsts: &[&Summary]) -> String {
        let contenders: Vec<String> = self.contenders().into_iter().filter(|name| firsts.iter().any(|s| s.contender == *name)).collect();
        let head = ["case", "figure"].map(str::to_owned).into_iter().chain(contenders.iter().map(|name| escaped(name)));
        let mut rows = vec![head.collect::<Vec<String>>()];
        let mut done: Vec<&str> = Vec::new();
        for first in firsts {
            if done.contains(&first.case.as_str()) {
                continue;
            }
            done.push(&first.case);
            let cell = |name: &String| {
                let found = firsts.iter().find(|s| s.case == first.case && s.contender == *name);
                found.map_or(String::new(), |s| self.cell(s))
            };
            rows.push([escaped(&first.case), escaped(&first.metric)].into_iter().chain(contenders.iter().map(cell)).collect());
        }
        let numbers: Vec<usize> = (2..contenders.len() + 2).collect();
        table(&rows, &numbers)
    }

    fn cell(&self, s: &Summary) -> String {
        let ratio = median(&self.ratios(&s.case, &s.metric, OURS, &s.contender)).filter(|_| s.contender != OURS);
        let class = if s.contender == OURS { " class=\"ours\"" } else { "" };
        let mut text = format!("<span{class}>{}</span>", number(s.median));
        if let Some(ratio) = ratio {
            text += &format!("<br><small>Millpond {}x</small>", number(ratio));
        }
        if s.count > 1 {
            text += &format!("<br><small>{}&hellip;{}</small>", number(s.min), number(s.max));
        }
        if s.is_noisy() {
            text += " <small class=\"noisy\">noisy</small>";
        }
        text
    }

    /// Formats the goals; of many, those that were met are folded.
    fn goals_html(&self) -> String {
        if self.verdicts.is_empty() {
            return String::new();
        }
        let counts = escaped(&self.goal_counts());
        let (met, others): (Vec<&Judged>, Vec<&Judged>) = self.verdicts.iter().partition(|v| v.verdict == Verdict::Met);
        if self.verdicts.len() <= MOST_GOALS {
            return format!("<h3>Goals: {counts}</h3>{}", goal_table(self.verdicts.iter()));
        }
        let shown = if others.is_empty() { String::new() } else { goal_table(others.into_iter()) };
        let folded =
            format!("<details><summary>{} goals that were met</summary>{}</details>\n", met.len(), goal_table(met.iter().copied()));
        format!("<h3>Goals: {counts}</h3>{shown}{}", if met.is_empty() { String::new() } else { folded })
    }

    fn remarks_html(&self) -> String {
        let mut text = String::new();
        if !self.skipped.is_empty() {
            let items = self.skipped.iter().map(|(name, reason)| format!("<li><b>{}</b>: {}</li>", escaped(name), escaped(reason)));
            text += &format!("<h3>Left out</h3><ul>{}</ul>\n", items.collect::<String>());
        }
        let notes: String = self.notes.iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
        let raw: String = self.raw.iter().map(|file| format!("<li><a href=\"{0}\">{0}</a></li>", escaped(file))).collect();
        let scene = &self.scene;
        text += &format!(
            "<details><summary>Machine, versions, remarks</summary><p>{} x {}, {} of memory, Linux {}, in <code>{}</code></p><p>{}</p><ul>{notes}</ul>",
            scene.cpus,
            escaped(&scene.cpu),
            show_size(scene.memory),
            escaped(&scene.kernel),
            escaped(&scene.directory),
            escaped(&scene.versions.join(" · "))
        );
        if !raw.is_empty() {
            text += &format!("<p>What other programs printed:</p><ul>{raw}</ul>");
        }
        text + "</details>\n"
    }
}
