//! Tables and JSON from one column list.

use super::*;

#[derive(Serialize)]
struct Row {
    name: &'static str,
    size: u64,
    hidden: u32,
}

const COLUMNS: &[Column<Row>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.to_owned()), shown: Shown::Always },
    Column { name: "size", cell: |row| Cell::Bytes(row.size), shown: Shown::Always },
    Column { name: "hidden", cell: |row| Cell::Count(u64::from(row.hidden)), shown: Shown::OnRequest },
];

const ROWS: [Row; 2] = [Row { name: "a", size: 1536, hidden: 7 }, Row { name: "long", size: 1 << 30, hidden: 8 }];

fn how(words: &[&str], format: Format, no_header: bool, parsable: bool) -> Listing {
    Listing { format, columns: words.iter().map(|w| (*w).to_owned()).collect(), no_header, parsable }
}

#[test]
fn a_table_has_a_header_and_aligns_numbers_right() {
    let text = render(&ROWS, COLUMNS, &how(&[], Format::Table, false, false)).expect("table");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [vec!["NAME", "SIZE"], vec!["a", "1.50K"], vec!["long", "1G"]]);
    assert!(text.lines().skip(1).all(|line| line.ends_with(['K', 'G'])));
}

#[test]
fn heads_leave_units_to_the_cells_and_are_names_too() {
    let column = |name| Column::<Row> { name, cell: |row| Cell::Millis(row.size), shown: Shown::People };
    let heads = ["unique_bytes", "read_p99_nanos", "eta_seconds", "lost_millis", "name"].map(|name| column(name).head());
    assert_eq!(heads, ["USED", "READ_P99", "ETA", "LOST_TIME", "NAME"]);
    assert!(column("unique_bytes").is_called("used") && column("unique_bytes").is_called("unique_bytes"));
    let columns = [column("lost_millis")];
    let rendered = |columns_asked: &[&str], no_header, parsable| {
        render(&ROWS[..1], &columns, &how(columns_asked, Format::Table, no_header, parsable)).expect("table")
    };
    assert_eq!(rendered(&[], false, false), "LOST_TIME\n      2 s\n");
    assert_eq!(rendered(&["lost_time"], true, false), "1536\n", "programs have numbers");
    assert_eq!(rendered(&[], true, false), "\n", "and no columns that they had not before");
}

#[test]
fn without_header_columns_are_tabs_and_exact() {
    let text = render(&ROWS, COLUMNS, &how(&["size", "name"], Format::Table, true, true)).expect("table");
    assert_eq!(text, "1536\ta\n1073741824\tlong\n");
}

#[test]
fn paths_lose_their_middle_and_lists_their_end() {
    assert_eq!(shortened("/dev/sdb", 16), "/dev/sdb");
    assert_eq!(shortened("/dev/disk/by-id/ata-WDC_WD40EFRX_WD-WCC7K4", 22), "/dev/di…EFRX_WD-WCC7K4");
    assert_eq!(shortened("/dev/sdb,/dev/sdc,/dev/sdd,/dev/sde", 32), "/dev/sdb,/dev/sdc,… 4 in all");
    assert_eq!(shortened("/srv/a/long/way/to/the/file,/b", 24), "/srv…the/file,… 2 in all");
}

#[test]
fn json_has_the_chosen_keys_alone() {
    let keys = |words: &[&str]| -> Vec<String> {
        let text = render(&ROWS, COLUMNS, &how(words, Format::Json, false, false)).expect("json");
        let value: Value = serde_json::from_str(&text).expect("parses");
        value[0].as_object().expect("object").keys().cloned().collect()
    };
    assert_eq!(keys(&[]), ["name", "size"]);
    assert_eq!(keys(&["hidden"]), ["hidden"]);
}

#[test]
fn an_unknown_column_is_wrong_usage_and_names_the_known_ones() {
    let failure = render(&ROWS, COLUMNS, &how(&["nmae"], Format::Table, false, false)).expect_err("unknown");
    assert_eq!(failure.code, millpond_api::failure::Code::Usage);
    assert!(failure.to_string().contains("name,size,hidden"));
}

#[test]
fn a_number_in_the_first_column_stands_under_its_header() {
    let text = render(&ROWS, COLUMNS, &how(&["hidden", "name"], Format::Table, false, false)).expect("table");
    let names: Vec<Option<usize>> = text.lines().zip(["NAME", "a", "long"]).map(|(line, name)| line.find(name)).collect();
    assert!(names[0].is_some() && names.iter().all(|at| *at == names[0]), "{text}");
}
