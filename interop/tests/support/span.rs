//! Spans as the receiver saw them: the protobuf JSON of `opentelemetry.proto.trace.v1.Span`.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

#[derive(Clone)]
pub(crate) struct Span(Value);

#[derive(Clone, Copy)]
pub(crate) struct Event<'a>(&'a Value);

/// Attributes keep their OTLP type: a number that arrives as text is a failure, not a conversion.
pub(crate) trait Attributes {
    fn json(&self) -> &Value;

    fn attributes(&self) -> impl Iterator<Item = (&str, &Value)> {
        list(&self.json()["attributes"]).map(|pair| (pair["key"].as_str().unwrap(), &pair["value"]))
    }

    fn attribute(&self, key: &str) -> &Value {
        let found = self.attributes().find(|(name, _)| *name == key);
        found.unwrap_or_else(|| panic!("no attribute `{key}` in {}", self.json())).1
    }

    fn int(&self, key: &str) -> i64 {
        let value = self.attribute(key);
        let int = value.get("intValue").unwrap_or_else(|| panic!("`{key}` is no intValue: {value}"));
        int.as_str().unwrap().parse().unwrap() // protobuf JSON writes 64-bit integers in quotes
    }

    fn text(&self, key: &str) -> &str {
        let value = self.attribute(key);
        value["stringValue"].as_str().unwrap_or_else(|| panic!("`{key}` is no stringValue: {value}"))
    }
}

impl Span {
    pub(crate) fn parse(line: &str) -> Self {
        Self(serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}")))
    }

    pub(crate) fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    pub(crate) fn is_child_of(&self, parent: &Self) -> bool {
        self.0["traceId"] == parent.0["traceId"] && self.0["parentSpanId"] == parent.0["spanId"]
    }

    /// Since the Unix epoch, as all times here.
    pub(crate) fn start(&self) -> Duration {
        time(&self.0["startTimeUnixNano"])
    }

    pub(crate) fn end(&self) -> Duration {
        time(&self.0["endTimeUnixNano"])
    }

    pub(crate) fn duration(&self) -> Duration {
        self.end() - self.start()
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        list(&self.0["events"]).map(Event)
    }
}

impl Event<'_> {
    pub(crate) fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    pub(crate) fn time(&self) -> Duration {
        time(&self.0["timeUnixNano"])
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Attributes for Span {
    fn json(&self) -> &Value {
        &self.0
    }
}

impl Attributes for Event<'_> {
    fn json(&self) -> &Value {
        self.0
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten() // protobuf JSON leaves an empty list out
}

fn time(value: &Value) -> Duration {
    Duration::from_nanos(value.as_str().unwrap().parse().unwrap())
}
