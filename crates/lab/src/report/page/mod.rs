//! The report as one page of HTML that needs nothing else: charts are SVG, style and script are in it. It can be printed, read on a phone, in the
//! dark, and without the script.

mod document;
mod figures;
mod html;
mod section;
mod svg;
