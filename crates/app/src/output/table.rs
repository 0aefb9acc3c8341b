//! Rows as a table or as JSON, from one definition of the columns.

use std::io::{self, IsTerminal, Write};

use comfy_table::{CellAlignment, Table};
use millpond_api::failure::{Failure, Outcome};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Cell, Format, Listing};

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

impl<T> Column<T> {
    /// Heading of the column, without the unit, which is in the cell.
    fn head(&self) -> String {
        let head = HEADS.iter().find(|(name, _)| *name == self.name).map(|(_, head)| *head);
        let head = head.or_else(|| UNITS.iter().find_map(|unit| self.name.strip_suffix(unit))).unwrap_or(self.name);
        head.to_uppercase()
    }

    /// Is that its name, or what stands above it?
    pub fn is_called(&self, word: &str) -> bool {
        self.name == word.trim() || self.head().eq_ignore_ascii_case(word.trim())
    }
}

/// Ends of names that cells say themselves.
const UNITS: [&str; 4] = ["_bytes", "_nanos", "_seconds", "_millis"];
/// Names that stand for something else to people: the words of the field.
const HEADS: [(&str, &str); 8] = [
    ("missing_devices", "missing"),
    ("referenced_bytes", "refer"),
    ("unique_bytes", "used"),
    ("snapshots", "snaps"),
    ("remaining_bytes", "left"),
    ("write_bytes", "written"),
    ("lost_millis", "lost_time"),
    ("allocated", "alloc"),
];

/// Columns of paths, which are shortened in the middle where a table would be wider than a terminal.
const PATHS: [&str; 4] = ["path", "was", "address", "devices"];
/// Characters of a line that fits a wide terminal, and between two columns.
const WIDTH: usize = 120;
const GAP: usize = 2;
/// Characters of a path by which it can be distinguished from others.
const LEAST_PATH: usize = 16;

/// Where a column appears when the user did not choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// In tables and JSON.
    Always,
    /// In JSON alone.
    Json,
    /// In tables alone.
    Table,
    /// In tables with a head: what scripts read stays as it was.
    People,
    /// In JSON and in tables without a head.
    Programs,
    /// When asked for.
    OnRequest,
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
            let cells: Vec<String> = chosen.iter().map(|column| (column.cell)(row).plain().show(how.parsable)).collect();
            cells.join("\t") + "\n"
        };
        return Ok(rows.iter().map(line).collect());
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    // who asks for columns by name finds these names
    let asked = !how.columns.is_empty();
    let heads: Vec<String> = chosen.iter().map(|column| if asked { column.name.to_uppercase() } else { column.head() }).collect();
    let mut lines: Vec<Vec<(String, CellAlignment)>> = Vec::new();
    for row in rows {
        let cell = |column: &&Column<T>| {
            let cell = (column.cell)(row);
            // values of properties are of all kinds, and stand below each other
            let align = if cell.is_number() && column.name != "value" { CellAlignment::Right } else { CellAlignment::Left };
            (cell.show(how.parsable), align)
        };
        lines.push(chosen.iter().map(cell).collect());
    }
    // who asks for columns, or for exact values, gets them whole
    if !asked && !how.parsable {
        let paths: Vec<bool> = chosen.iter().map(|column| PATHS.contains(&column.name)).collect();
        fit(&heads, &mut lines, &paths);
    }
    table.set_header(heads);
    for line in lines {
        table.add_row(line.into_iter().map(|(text, align)| comfy_table::Cell::new(text).set_alignment(align)));
    }
    let mut text = String::new();
    for line in table.lines() {
        // Each cell is padded by one blank on either side.
        text.push_str(line.strip_prefix(' ').unwrap_or(&line).trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// Shortens paths as far as a table needs it to fit.
fn fit(heads: &[String], lines: &mut [Vec<(String, CellAlignment)>], paths: &[bool]) {
    let chars = |text: &str| text.chars().count();
    let longest = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|(text, _)| chars(text)).max().unwrap_or(0);
    let columns: Vec<(usize, usize, bool)> =
        heads.iter().zip(paths).enumerate().map(|(at, (head, path))| (chars(head), longest(at), *path)).collect();
    let width = |limit: usize| {
        let of = |(head, cell, path): &(usize, usize, bool)| if *path { (*cell).min(limit).max(*head) } else { (*cell).max(*head) };
        columns.iter().map(of).sum::<usize>() + GAP * columns.len().saturating_sub(1)
    };
    let most = columns.iter().filter(|(_, _, path)| *path).map(|(_, cell, _)| *cell).max().unwrap_or(0);
    let limit = (LEAST_PATH..=most).rev().find(|limit| width(*limit) <= WIDTH).unwrap_or(LEAST_PATH);
    for line in lines.iter_mut() {
        for ((text, _), _) in line.iter_mut().zip(paths).filter(|(_, path)| **path) {
            *text = shortened(text, limit);
        }
    }
}

/// A path of at most so many characters. The end says more than the beginning. Of a list, the first ones and how many there are.
fn shortened(path: &str, limit: usize) -> String {
    let length = path.chars().count();
    if length <= limit {
        return path.to_owned();
    }
    let listed = path.split(',').count();
    if listed > 1 {
        let more = format!(",… {listed} in all");
        let room = limit.saturating_sub(more.chars().count());
        let mut whole =
            path.char_indices().filter(|(at, c)| *c == ',' && path.get(..*at).is_some_and(|front| front.chars().count() <= room));
        let first = path.split(',').next().unwrap_or_default();
        let front = whole.next_back().and_then(|(at, _)| path.get(..at)).map_or_else(|| shortened(first, room), str::to_owned);
        return front + &more;
    }
    let kept = limit.saturating_sub(1);
    let (front, back) = (kept / 3, kept - kept / 3);
    path.chars().take(front).chain(std::iter::once('…')).chain(path.chars().skip(length - back)).collect()
}

/// The columns to print, in order.
fn choose<'a, T>(columns: &'a [Column<T>], how: &Listing) -> Outcome<Vec<&'a Column<T>>> {
    if how.columns.is_empty() {
        let is_wanted = |column: &&Column<T>| match column.shown {
            Shown::Always => true,
            Shown::Json => how.format == Format::Json,
            Shown::Table => how.format == Format::Table,
            Shown::People => how.format == Format::Table && !how.no_header,
            Shown::Programs => how.format == Format::Json || how.no_header,
            Shown::OnRequest => false,
        };
        return Ok(columns.iter().filter(is_wanted).collect());
    }
    how.columns
        .iter()
        .map(|name| {
            columns.iter().find(|column| column.is_called(name)).ok_or_else(|| {
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

/// Says on a terminal what was done; scripts look at the exit code.
///
/// # Errors
/// When the terminal cannot be written to.
pub fn say(text: &str) -> Outcome {
    if io::stdout().is_terminal() { write_out(&format!("{text}\n")) } else { Ok(()) }
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
