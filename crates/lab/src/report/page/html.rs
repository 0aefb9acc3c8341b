//! Escaping of text for HTML, and formatting of figures.

/// Replaces characters with a meaning in HTML.
pub(super) fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
        out
    })
}

/// Formats a figure with three significant digits, or whole with grouped thousands: `62,371`,
/// `0.510`, `1.2e-5`.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => grouped(value),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.001 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Makes an HTML anchor of a name.
pub(super) fn anchor(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// Formats a table; the first row is the head. Cells are HTML; `numbers` lists the columns with
/// figures. On narrow screens each row becomes a block with a line per cell, which is labelled with
/// its column's head.
pub(super) fn table(rows: &[Vec<String>], numbers: &[usize]) -> String {
    let (Some(head), Some(body)) = (rows.first(), rows.get(1..)) else { return String::new() };
    let class = |column: usize| if numbers.contains(&column) { " class=\"n\"" } else { "" };
    let heads = head.iter().enumerate().map(|(column, cell)| format!("<th{}>{cell}</th>", class(column)));
    let mut text = format!("<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>", heads.collect::<String>());
    for row in body {
        text += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let label = head.get(column).map_or("", String::as_str);
            let empty = if cell.is_empty() { " data-empty" } else { "" };
            text += &format!("<td{}{empty} data-head=\"{label}\"><span>{cell}</span></td>", class(column));
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_text_is_harmless() {
        for (value, text) in
            [(62_371.2, "62,371"), (1_000_000.0, "1,000,000"), (0.51, "0.510"), (29.5, "29.5"), (0.0, "0.000"), (-1234.0, "-1,234")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
