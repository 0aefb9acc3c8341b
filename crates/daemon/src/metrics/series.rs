//! Tables of series: name, type, meaning and value of each, and their encoding.
//!
//! Each kind of object (pool, device, volume, ...) has one table. `docs/metrics.md` lists them all;
//! a test compares both.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Type of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Labels with the value 1.
    Info,
}

/// Series of one name: a value, or several with labels of their own, for each object.
pub(super) struct Series<T: 'static> {
    /// Name with its unit and without the ending of its type (`_total`, `_info`).
    pub name: &'static str,
    pub kind: Kind,
    /// Meaning in one sentence without a full stop.
    pub help: &'static str,
    /// Labels beyond those of the object.
    pub labels: &'static [&'static str],
    /// Hands over the values of an object; none if it has none now.
    pub read: fn(&T, &mut Samples<'_, '_>),
}

/// An object that series are about.
pub(super) trait Subject {
    /// Names of the labels that identify it.
    const LABELS: &'static [&'static str];

    /// Returns their values.
    fn values(&self) -> Vec<&str>;
}

/// Value of a gauge or counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        Number::Whole(value)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Real(value)
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Number {
        Number::Whole(u64::from(value))
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

/// Takes the values of one object for one name.
pub(super) struct Samples<'a, 'e> {
    encoder: &'a mut MetricEncoder<'e>,
    kind: Kind,
    subject: &'a [(&'static str, &'a str)],
    labels: &'static [&'static str],
    result: fmt::Result,
}

impl Samples<'_, '_> {
    fn encode(&mut self, values: &[&str], encode: impl FnOnce(MetricEncoder<'_>, Kind) -> fmt::Result) {
        if self.result.is_err() {
            return;
        }
        let own = self.labels.iter().copied().zip(values.iter().copied());
        let labels: Vec<(&str, &str)> = self.subject.iter().copied().chain(own).collect();
        let kind = self.kind;
        self.result = self.encoder.encode_family(&labels).and_then(|encoder| encode(encoder, kind));
    }

    /// Takes the value of a gauge, a counter or an info (1); `values` are those of the labels.
    pub fn put(&mut self, values: &[&str], number: impl Into<Number>) {
        let number = number.into();
        self.encode(values, |mut encoder, kind| match (kind, number) {
            (Kind::Counter, Number::Whole(number)) => encoder.encode_counter::<NoLabelSet, u64, f64>(&number, None),
            (Kind::Counter, Number::Real(number)) => encoder.encode_counter::<NoLabelSet, f64, f64>(&number, None),
            (Kind::Info, _) => encoder.encode_info(&NO_LABELS),
            (_, Number::Whole(number)) => encoder.encode_gauge(&number),
            (_, Number::Real(number)) => encoder.encode_gauge(&number),
        });
    }

    /// Takes a state as one value for each of `words`: 1 for the one in force.
    pub fn put_state(&mut self, words: &[&str], state: &str) {
        words.iter().for_each(|word| self.put(&[word], *word == state));
    }

    /// Takes a histogram: its sum in nanoseconds, and the count of each bucket with the bucket's
    /// upper end in seconds; the last end is infinite.
    pub fn put_histogram(&mut self, values: &[&str], nanos: u64, buckets: &[(f64, u64)]) {
        let count = buckets.iter().map(|(_, count)| count).sum();
        self.encode(values, |mut encoder, _| encoder.encode_histogram::<NoLabelSet>(seconds(nanos), count, buckets, None));
    }
}

/// Converts nanoseconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl<T> Series<T> {
    /// Returns the name of its values, or the beginning of the names of a histogram's values.
    #[cfg(test)]
    pub fn full_name(&self) -> String {
        let ending = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{ending}", self.name)
    }
}

/// Encodes a table for all objects.
pub(super) fn encode<T: Subject>(encoder: &mut DescriptorEncoder<'_>, table: &[Series<T>], objects: &[T]) -> fmt::Result {
    let values: Vec<Vec<&str>> = objects.iter().map(Subject::values).collect();
    for series in table {
        let (name, unit) = name_and_unit(series.name);
        let kind = match series.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        let mut encoder = encoder.encode_descriptor(name, series.help, unit.as_ref(), kind)?;
        for (object, values) in objects.iter().zip(&values) {
            let subject: Vec<(&str, &str)> = T::LABELS.iter().copied().zip(values.iter().copied()).collect();
            let (subject, labels, kind) = (subject.as_slice(), series.labels, series.kind);
            let mut samples = Samples { encoder: &mut encoder, kind, subject, labels, result: Ok(()) };
            (series.read)(object, &mut samples);
            samples.result?;
        }
    }
    Ok(())
}

/// Splits the unit off a name.
fn name_and_unit(name: &str) -> (&str, Option<Unit>) {
    for (ending, unit) in [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)] {
        if let Some(name) = name.strip_suffix(ending) {
            return (name, Some(unit));
        }
    }
    (name, None)
}
