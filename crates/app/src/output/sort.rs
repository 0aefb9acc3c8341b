//! Rows in the order of a column.

use std::cmp::Ordering;

use millpond_api::failure::{Failure, Outcome};

use super::{Cell, Column};

#[cfg(test)]
mod tests;

/// Sorts rows by the value of a column, not by how it is shown; rows without one come first. Equal rows stay in their order.
///
/// # Errors
/// Wrong usage when there is no such column.
pub fn sort<T>(rows: &mut [T], columns: &[Column<T>], by: &str, falling: bool) -> Outcome {
    let Some(column) = columns.iter().find(|column| column.is_called(by)) else {
        let known: Vec<&str> = columns.iter().map(|column| column.name).collect();
        return Err(Failure::usage(format!("no column '{by}' to sort by; choose from {}", known.join(","))));
    };
    rows.sort_by(|a, b| {
        let order = order(&(column.cell)(a), &(column.cell)(b));
        if falling { order.reverse() } else { order }
    });
    Ok(())
}

/// Nothing, then numbers, then times, then words.
fn order(a: &Cell, b: &Cell) -> Ordering {
    let rank = |cell: &Cell| match cell {
        Cell::None | Cell::Nanos(None) => 0,
        Cell::Count(_) | Cell::Bytes(_) | Cell::Seconds(_) | Cell::Millis(_) | Cell::Rate(_) | Cell::Per(_) | Cell::Nanos(Some(_)) => 1,
        Cell::Time(_) => 2,
        Cell::Text(_) => 3,
    };
    match (a, b) {
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        (Cell::Time(a), Cell::Time(b)) => a.cmp(b),
        (Cell::Count(a) | Cell::Bytes(a), Cell::Count(b) | Cell::Bytes(b)) => a.cmp(b),
        _ => rank(a).cmp(&rank(b)).then_with(|| number(a).total_cmp(&number(b))),
    }
}

fn number(cell: &Cell) -> f64 {
    match cell {
        Cell::Count(n) | Cell::Bytes(n) | Cell::Seconds(n) | Cell::Millis(n) => *n as f64,
        Cell::Rate(n) | Cell::Per(n) | Cell::Nanos(Some(n)) => *n,
        Cell::Text(_) | Cell::Time(_) | Cell::Nanos(None) | Cell::None => 0.0,
    }
}
