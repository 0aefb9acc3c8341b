//! The results in CrystalDiskMark's own form: `MB/s [IOPS] <us>`.

use super::{CASES, Profile};
use crate::report::{Cell, Matrix, Results, median};

/// MB/s of 10^6 bytes, requests per second, and mean microseconds of a request.
type Figures = [f64; 3];

/// Returns the medians of a target in a case.
fn figures(results: &Results, contender: &str, case: &str) -> Option<Figures> {
    let of = |metric: &str| median(&results.values(case, metric, contender));
    Some([of("mb_s")?, of("iops")?, of("mean_us")?])
}

/// Formats the text that CrystalDiskMark 8 copies to the clipboard, of a target on a place; `place`
/// is the end of the case's name, empty or a drive. `None` if nothing was measured.
pub fn text(results: &Results, contender: &str, place: &str) -> Option<String> {
    let mut text = format!("CrystalDiskMark 8 profile, by fio: {contender}{place}\n* MB/s = 1,000,000 bytes/s\n");
    let head = text.len();
    for side in ["read", "write"] {
        let lines = CASES.iter().filter_map(|profile| {
            let [mb, iops, us] = figures(results, contender, &format!("{} {side}{place}", profile.0))?;
            Some(format!("  {}: {mb:9.3} MB/s [{iops:9.1} IOPS] <{us:9.2} us>\n", test(profile)))
        });
        let lines: String = lines.collect();
        if !lines.is_empty() {
            text += &format!("\n[{}]\n{lines}", if side == "read" { "Read" } else { "Write" });
        }
    }
    (text.len() > head).then_some(text)
}

/// Formats the name of a test, such as `SEQ    1MiB (Q=  8, T= 1)`.
fn test((_, order, block, depth, ..): &Profile) -> String {
    let (kind, size) = (if order.is_empty() { "SEQ" } else { "RND" }, if *block == "1m" { "1MiB" } else { "4KiB" });
    format!("{kind} {size:>7} (Q={depth:3}, T= 1)")
}

/// Makes a table of all targets on a place.
pub fn matrix(results: &Results, contenders: &[&str], place: &str) -> Matrix {
    let head = std::iter::once("MB/s [IOPS] <us>").chain(contenders.iter().copied()).map(str::to_owned).collect();
    let tests = ["read", "write"].into_iter().flat_map(|side| CASES.iter().map(move |profile| format!("{} {side}", profile.0)));
    let rows = tests.map(|test| {
        let cell = |contender: &&str| {
            let found = figures(results, contender, &format!("{test}{place}"));
            Cell::plain(&found.map_or(String::new(), |[mb, iops, us]| format!("{mb:.3} [{iops:.1}] <{us:.2}>")))
        };
        std::iter::once(Cell::plain(&test)).chain(contenders.iter().map(cell)).collect()
    });
    Matrix { title: format!("CrystalDiskMark{place}"), head, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scene;

    #[test]
    fn lines_are_those_of_the_program() {
        let mut results = Results::new("cdm", Scene::default());
        for (metric, value) in [("mb_s", 271.152), ("iops", 258.6), ("mean_us", 30_820.149)] {
            results.add(0, "millpond", "SEQ1M Q8T1 read", metric, value);
        }
        let text = text(&results, "millpond", "").unwrap();
        assert!(text.ends_with("\n[Read]\n  SEQ    1MiB (Q=  8, T= 1):   271.152 MB/s [    258.6 IOPS] < 30820.15 us>\n"), "{text}");
        assert_eq!(super::text(&results, "peer", ""), None);
        assert_eq!(matrix(&results, &["millpond"], "").rows[0][1].text, "271.152 [258.6] <30820.15>");
    }
}
