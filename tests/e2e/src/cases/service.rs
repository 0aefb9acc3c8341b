//! The daemon beside its exports: console, metrics, the book, the lab, Proxmox VE.

use super::{Asks, Case};
use crate::{book, console, lab, metrics, metrics_cost, proxmox};

pub const CASES: &[Case] = &[
    Case {
        name: "proxmox",
        about: "the plugin for Proxmox VE, driven by Proxmox's own storage layer in MILLPOND_PVE",
        needs: &["$MILLPOND_PVE", "prove", "qemu-img", "qemu-io", "qemu-system-x86_64"],
        guest: false,
        asks: Asks::Everything,
        run: proxmox::plugin,
    },
    Case {
        name: "book",
        about: "every block of commands of the tutorial and the how-to pages runs as it is printed",
        needs: &["root", "fuse", "unshare", "ip", "fio", "curl", "nbdinfo", "psktool", "qemu-img", "qemu-io", "qemu-nbd"],
        guest: false,
        asks: Asks::Everything,
        run: book::commands,
    },
    Case {
        name: "metrics",
        about: "metrics of pools, volumes, snapshots and exports are as documented, agree with a client, and pass promtool",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: metrics::exposition,
    },
    Case {
        name: "console",
        about: "the web console in Chromium: create, snapshot under load, roll back, lose and replace a device; axe-core, no errors",
        needs: &["chromium"],
        guest: false,
        asks: Asks::Everything,
        run: console::run,
    },
    Case {
        name: "console-tls",
        about: "console and API with TLS, and a renewed certificate without a restart",
        needs: &["openssl", "curl"],
        guest: false,
        asks: Asks::Everything,
        run: console::tls,
    },
    Case {
        name: "console-scale",
        about: "the web console with 1,000 volumes, and with 10,000 snapshots of one",
        needs: &["chromium"],
        guest: false,
        asks: Asks::Everything,
        run: console::scale,
    },
    Case {
        name: "metrics-alerts",
        about: "the alerts for Prometheus pass their tests",
        needs: &["promtool"],
        guest: false,
        asks: Asks::Everything,
        run: metrics::alerts,
    },
    Case {
        name: "metrics-cost",
        about: "a scrape a second costs guests less than 1 %; only if MILLPOND_MEASURE is set, on a machine without other work",
        needs: &["$MILLPOND_MEASURE"],
        guest: false,
        asks: Asks::Everything,
        run: metrics_cost::run,
    },
    Case {
        name: "lab",
        about: "an experiment of the lab with a peer, its report, and wrong words",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: lab::run,
    },
];
