//! The command line as scripts use it: a real daemon in a temporary directory, every verb, exit
//! codes, JSON keys, error lines.

mod access;
mod again;
mod bucket;
mod claims;
mod completions;
mod copies;
mod daemon;
mod destroyed;
mod disks;
mod exports;
mod golden;
mod harness;
mod health;
mod holds;
mod hung;
mod images;
mod lab;
mod nbd;
mod overlays;
mod pipes;
mod policies;
mod pools;
mod promote;
mod rehearsal;
mod removal;
mod reports;
mod several;
mod snapshots;
mod space;
mod start;
mod trouble;
mod up;
mod usage;
mod volumes;
mod words;
