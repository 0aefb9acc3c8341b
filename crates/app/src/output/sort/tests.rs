//! Orders by value.

use super::*;
use crate::output::Shown;

struct Row(&'static str, Option<u64>);

const COLUMNS: &[Column<Row>] = &[
    Column { name: "name", cell: |r| Cell::Text(r.0.to_owned()), shown: Shown::Always },
    Column { name: "size", cell: |r| r.1.map_or(Cell::None, Cell::Bytes), shown: Shown::OnRequest },
];

#[test]
fn rows_are_in_the_order_of_the_value() {
    // as text, 900 would come after 1.00K, and 10.0K before both
    let rows = || vec![Row("c", Some(10 << 10)), Row("a", None), Row("d", Some(900)), Row("b", Some(1 << 10)), Row("e", Some(900))];
    let sorted = |by: &str, falling| {
        let mut rows = rows();
        sort(&mut rows, COLUMNS, by, falling).map(|()| rows.iter().map(|row| row.0).collect::<String>())
    };
    assert_eq!(sorted("size", false), Ok("adebc".to_owned()));
    assert_eq!(sorted("size", true), Ok("cbdea".to_owned()));
    assert_eq!(sorted("name", true), Ok("edcba".to_owned()));
    assert!(sorted("sise", false).expect_err("no column").to_string().contains("choose from name,size"));
}
