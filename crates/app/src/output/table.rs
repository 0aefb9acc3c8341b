//! Rows as a table or as JSON, from one definition of the columns.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Cell, Format, Listing};
use crate::failure::{Failure, Outcome};

#[cfg(test)]
mod tests;

/// One column: its name (the JSON key as well) and where its cell comes from.
pub struct Column<T> {
    /// Name, in lower case.
    pub name: &'static str,
    /// The cell of a row.
    pub cell: fn(&T) -> Cell,
    /// Shown when no columns are asked for.
    pub shown: Shown,
}

/// Where a column appears when the user did not choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// In tables and JSON.
    Always,
    /// In JSON alone.
    Json,
    /// In tables alone.
    Table,
    /// When asked for.
    Asked,
}

/// Prints `rows`: a table, or a JSON array of objects.
///
/// # Errors
/// Wrong usage when a column does not exist; failure when stdout cannot be written.
pub fn print<T: Serialize>(rows: &[T], columns: &[Column<T>], how: &Listing) -> Outcome {
    let text = render(rows, columns, how)?;
    write_out(&text)
}

/// Prints one object: `name  value` lines, or a JSON object of everything it serialises to.
///
/// # Errors
/// Wrong usage when a column does not exist; failure when stdout cannot be written.
pub fn print_pairs<T: Serialize>(row: &T, columns: &[Column<T>], how: &Listing) -> Outcome {
    let chosen = choose(columns, how)?;
    if how.format == Format::Json {
        let mut value = serde_json::to_value(row).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
        if !how.columns.is_empty() {
            keep(&mut value, &chosen);
        }
        return write_out(&document(&value)?);
    }
    let width = chosen.iter().map(|column| column.name.len()).max().unwrap_or(0);
    let lines: Vec<String> = chosen
        .iter()
        .map(|column| {
            let value = (column.cell)(row).show(how.parsable);
            if how.no_header { format!("{}\t{value}\n", column.name) } else { format!("{:width$}  {value}\n", column.name) }
        })
        .collect();
    write_out(&lines.concat())
}

fn render<T: Serialize>(rows: &[T], columns: &[Column<T>], how: &Listing) -> Outcome<String> {
    let chosen = choose(columns, how)?;
    if how.format == Format::Json {
        let mut value = serde_json::to_value(rows).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
        for row in value.as_array_mut().into_iter().flatten() {
            keep(row, &chosen);
        }
        return document(&value);
    }
    if how.no_header {
        let line = |row: &T| {
            let cells: Vec<String> = chosen.iter().map(|column| (column.cell)(row).show(how.parsable)).collect();
            cells.join("\t") + "\n"
        };
        return Ok(rows.iter().map(line).collect());
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(chosen.iter().map(|column| column.name.to_uppercase()));
    for row in rows {
        table.add_row(chosen.iter().map(|column| {
            let cell = (column.cell)(row);
            let align = if cell.is_number() { CellAlignment::Right } else { CellAlignment::Left };
            comfy_table::Cell::new(cell.show(how.parsable)).set_alignment(align)
        }));
    }
    let mut text = String::new();
    for line in table.lines() {
        // Each cell is padded by one blank on either side.
        text.push_str(line.strip_prefix(' ').unwrap_or(&line).trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// The columns to print, in order.
fn choose<'a, T>(columns: &'a [Column<T>], how: &Listing) -> Outcome<Vec<&'a Column<T>>> {
    let unwanted = if how.format == Format::Json { Shown::Table } else { Shown::Json };
    if how.columns.is_empty() {
        return Ok(columns.iter().filter(|column| column.shown != Shown::Asked && column.shown != unwanted).collect());
    }
    how.columns
        .iter()
        .map(|name| {
            columns.iter().find(|column| column.name == name.trim()).ok_or_else(|| {
                let known: Vec<&str> = columns.iter().map(|column| column.name).collect();
                Failure::usage(format!("no column '{name}'; choose from {}", known.join(",")))
            })
        })
        .collect()
}

/// Leaves only the chosen keys of an object, in the columns' order.
fn keep<T>(value: &mut Value, chosen: &[&Column<T>]) {
    if let Value::Object(all) = value {
        let mut kept = Map::new();
        for column in chosen {
            if let Some(value) = all.remove(column.name) {
                kept.insert(column.name.to_owned(), value);
            }
        }
        *all = kept;
    }
}

fn document(value: &Value) -> Outcome<String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
    Ok(text + "\n")
}

/// Writes to stdout. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// Any other write error.
pub fn write_out(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(format!("cannot write to standard output: {e}"))),
        _ => Ok(()),
    }
}
