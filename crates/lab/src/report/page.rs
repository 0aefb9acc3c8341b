//! The report as a self-contained HTML page: charts are SVG; style and script are inline. The page
//! can be printed, and works on phones, in dark mode, and without the script.

mod document;
mod figures;
mod html;
mod over_time;
mod section;
mod svg;
