//! Figures of one second, the columns of their CSV, and their means and maxima.

/// Figures of a second. Rates are per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    /// Seconds since the start.
    pub at: f64,
    /// Length in seconds; the last one may be shorter.
    pub length: f64,
    /// Use of all processors together; 100 = all busy.
    pub cpu: f64,
    /// Share of the processors that the hypervisor gave to other virtual machines, in percent.
    pub stolen: f64,
    /// Load average of the last minute.
    pub load: f64,
    /// Bytes of memory in use on the machine, and of all its memory.
    pub memory: (f64, f64),
    /// The watched process: percent of one processor, and resident bytes.
    pub server: Option<(f64, f64)>,
    /// The watched disks.
    pub disk: Option<DiskRates>,
    /// Guests of the pool, its cleaner and its allocated bytes; of Millpond only.
    pub pool: Option<PoolRates>,
}

/// Rates of the watched disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskRates {
    /// Reads per second.
    pub reads: f64,
    /// Writes per second.
    pub writes: f64,
    /// Bytes read per second.
    pub read_bytes: f64,
    /// Bytes written per second.
    pub write_bytes: f64,
    /// Mean milliseconds of a request; `None` without requests.
    pub await_millis: Option<f64>,
    /// Percent of the time in which the busiest disk had requests in flight.
    pub busy: f64,
}

/// Rates of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolRates {
    /// Reads of guests per second.
    pub reads: f64,
    /// Writes of guests per second.
    pub writes: f64,
    /// Bytes written by guests per second.
    pub write_bytes: f64,
    /// Bytes moved by the cleaner per second.
    pub cleaner_bytes: f64,
    /// Allocated bytes.
    pub allocated: f64,
}

impl DiskRates {
    /// Mean bytes of a request; `None` without requests.
    fn request_bytes(&self) -> Option<f64> {
        let requests = self.reads + self.writes;
        (requests > 0.0).then(|| (self.read_bytes + self.write_bytes) / requests)
    }
}

/// A column of the CSV.
pub struct Column {
    /// Name, with the unit at its end.
    pub name: &'static str,
    decimals: usize,
    /// Its figure; `None` if there is none, an empty field.
    pub of: fn(&Second) -> Option<f64>,
}

const fn column(name: &'static str, decimals: usize, of: fn(&Second) -> Option<f64>) -> Column {
    Column { name, decimals, of }
}

/// All columns. The last ones are Millpond's.
pub const COLUMNS: [Column; 20] = [
    column("seconds", 1, |s| Some(s.at)),
    column("cpu_percent", 1, |s| Some(s.cpu)),
    column("stolen_percent", 1, |s| Some(s.stolen)),
    column("load", 2, |s| Some(s.load)),
    column("memory_used_bytes", 0, |s| Some(s.memory.0)),
    column("memory_percent", 1, |s| (s.memory.1 > 0.0).then(|| 100.0 * s.memory.0 / s.memory.1)),
    column("server_cpu_percent", 1, |s| s.server.map(|server| server.0)),
    column("server_memory_bytes", 0, |s| s.server.map(|server| server.1)),
    column("disk_reads_s", 0, |s| s.disk.map(|disk| disk.reads)),
    column("disk_writes_s", 0, |s| s.disk.map(|disk| disk.writes)),
    column("disk_read_bytes_s", 0, |s| s.disk.map(|disk| disk.read_bytes)),
    column("disk_write_bytes_s", 0, |s| s.disk.map(|disk| disk.write_bytes)),
    column("disk_await_ms", 3, |s| s.disk.and_then(|disk| disk.await_millis)),
    column("disk_request_bytes", 0, |s| s.disk.and_then(|disk| disk.request_bytes())),
    column("disk_busy_percent", 1, |s| s.disk.map(|disk| disk.busy)),
    column("guest_reads_s", 0, |s| s.pool.map(|pool| pool.reads)),
    column("guest_writes_s", 0, |s| s.pool.map(|pool| pool.writes)),
    column("guest_write_bytes_s", 0, |s| s.pool.map(|pool| pool.write_bytes)),
    column("cleaner_bytes_s", 0, |s| s.pool.map(|pool| pool.cleaner_bytes)),
    column("pool_allocated_bytes", 0, |s| s.pool.map(|pool| pool.allocated)),
];

/// Returns the line of names.
pub fn header() -> String {
    COLUMNS.map(|column| column.name).join(",")
}

impl Second {
    /// Formats the line of this second.
    pub fn line(&self) -> String {
        let field = |column: &Column| (column.of)(self).map_or(String::new(), |value| format!("{value:.*}", column.decimals));
        COLUMNS.iter().map(field).collect::<Vec<String>>().join(",")
    }
}

/// Mean and maximum of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// Mean over the time.
    pub mean: f64,
    /// Largest second.
    pub max: f64,
}

/// Means and maxima over a measurement.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Sum of figure times seconds, seconds with a figure, and maximum, of each column.
    sums: [(f64, f64, f64); COLUMNS.len()],
    /// Length in seconds.
    pub seconds: f64,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary { sums: [(0.0, 0.0, f64::NEG_INFINITY); COLUMNS.len()], seconds: 0.0 }
    }
}

impl Summary {
    /// Adds a second.
    pub fn add(&mut self, second: &Second) {
        self.seconds += second.length;
        for (column, (sum, seconds, max)) in COLUMNS.iter().zip(&mut self.sums) {
            if let Some(value) = (column.of)(second) {
                *sum += value * second.length;
                *seconds += second.length;
                *max = max.max(value);
            }
        }
    }

    /// Returns mean and maximum of a column; `None` if it never had a figure.
    pub fn of(&self, name: &str) -> Option<Stat> {
        let index = COLUMNS.iter().position(|column| column.name == name)?;
        let (sum, seconds, max) = self.sums.get(index)?;
        (*seconds > 0.0).then(|| Stat { mean: sum / seconds, max: *max })
    }

    /// Formats a line per column that had a figure: name, mean, maximum.
    pub fn table(&self) -> String {
        let mut text = format!("{:22} {:>18} {:>18}\n", format!("{:.1} seconds", self.seconds), "mean", "max");
        for column in COLUMNS.iter().skip(1) {
            if let Some(stat) = self.of(column.name) {
                text += &format!("{:22} {:>18.3$} {:>18.3$}\n", column.name, stat.mean, stat.max, column.decimals);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_time_and_leave_out_missing_figures() {
        let mut summary = Summary::default();
        let disk = DiskRates { writes: 4.0, write_bytes: 4096.0, await_millis: Some(2.0), ..DiskRates::default() };
        summary.add(&Second { length: 1.0, cpu: 10.0, disk: Some(disk), ..Second::default() });
        summary.add(&Second { length: 0.5, cpu: 40.0, ..Second::default() });
        assert_eq!(summary.of("cpu_percent"), Some(Stat { mean: 20.0, max: 40.0 }));
        assert_eq!(summary.of("disk_request_bytes"), Some(Stat { mean: 1024.0, max: 1024.0 }));
        assert_eq!(summary.of("guest_reads_s"), None);
        assert!(summary.table().contains("disk_await_ms") && !summary.table().contains("guest_reads_s"));
    }
}
