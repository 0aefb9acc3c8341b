//! Bytes as text, for golden files: rows of 16 bytes in hex with their offset. Rows of zeroes are
//! left out; `*` repeats the row before, up to the row at its offset.

use std::fmt::Write;

const ROW: usize = 16;

/// Returns the text of `bytes`: the length in the first line, then the rows that are not zero.
pub fn dump(bytes: &[u8]) -> String {
    let mut text = format!("{:x}\n", bytes.len());
    let rows: Vec<&[u8]> = bytes.chunks(ROW).collect();
    let mut n = 0;
    while let Some(row) = rows.get(n) {
        if row.iter().any(|byte| *byte != 0) {
            let hex = row.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
            let _ = writeln!(text, "{:x} {hex}", n * ROW);
            let same = rows.iter().skip(n + 1).take_while(|other| *other == row).count();
            if same > 0 {
                n += same;
                let _ = writeln!(text, "{:x} *", n * ROW);
            }
        }
        n += 1;
    }
    text
}

/// Returns the bytes of a text; `None` when it is not the output of [`dump`].
pub fn undump(text: &str) -> Option<Vec<u8>> {
    let mut lines = text.lines();
    let length = usize::from_str_radix(lines.next()?, 16).ok()?;
    let mut bytes = vec![0; length];
    let mut last = 0;
    for line in lines {
        let (offset, hex) = line.split_once(' ')?;
        let offset = usize::from_str_radix(offset, 16).ok()?;
        if hex == "*" {
            let row: Vec<u8> = bytes.get(last..last + ROW)?.to_vec();
            for to in bytes.get_mut(last..offset + ROW)?.chunks_exact_mut(ROW) {
                to.copy_from_slice(&row);
            }
            continue;
        }
        last = offset;
        for (at, byte) in bytes.get_mut(offset..offset + hex.len() / 2)?.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()?;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
