//! A layer that writes down all that a subscriber gets to see, in order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// A field's value, by the type that it was recorded as.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    I64(i64),
    Str(String),
    /// `Display` and `Debug` alike.
    Text(String),
    /// Any type that the crate should not use.
    Wrong(String),
}

pub(crate) type Fields = BTreeMap<&'static str, Value>;

/// All that is known of one span. `made`, `closed` and an event's `at` are places in one order of all that happened.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    pub(crate) level: Level,
    /// The place of its parent in the list of spans.
    pub(crate) parent: Option<usize>,
    /// The fields that it has, whether recorded or not.
    pub(crate) declared: Vec<&'static str>,
    pub(crate) fields: Fields,
    /// Who entered it, each time.
    pub(crate) entered: Vec<ThreadId>,
    pub(crate) made: usize,
    pub(crate) closed: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) target: &'static str,
    pub(crate) level: Level,
    /// The place of the span around it.
    pub(crate) span: Option<usize>,
    pub(crate) fields: Fields,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) spans: Vec<Span>,
    pub(crate) events: Vec<Event>,
    happened: usize,
}

/// What was captured so far; shared with the layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Log>>);

impl Captured {
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of all spans of a name.
    pub(crate) fn all(&self, name: &str) -> Vec<usize> {
        let log = self.log();
        (0..log.spans.len()).filter(|&place| log.spans[place].name == name).collect()
    }

    /// The only span of a name, and its place.
    #[track_caller]
    pub(crate) fn only(&self, name: &str) -> (usize, Span) {
        let places = self.all(name);
        assert_eq!(places.len(), 1, "spans named `{name}` in {:#?}", self.log());
        (places[0], self.log().spans[places[0]].clone())
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.log().events.clone()
    }
}

/// A subscriber that captures what is at `level` or above, and what it captures.
pub(crate) fn subscriber(level: Level) -> (impl Subscriber + Send + Sync, Captured) {
    let captured = Captured::default();
    let filter = tracing::level_filters::LevelFilter::from_level(level);
    (tracing_subscriber::registry().with(filter).with(Capture(captured.clone())), captured)
}

struct Capture(Captured);

/// The place of a span in the list, kept with the span itself: a registry gives ids again.
struct Place(usize);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Place>().map(|place| place.0));
        let mut fields = Fields::new();
        attributes.record(&mut Recorder(&mut fields));
        let metadata = attributes.metadata();
        let mut log = self.0.log();
        let made = log.happens();
        span.extensions_mut().insert(Place(log.spans.len()));
        log.spans.push(Span {
            name: metadata.name(),
            target: metadata.target(),
            level: *metadata.level(),
            parent,
            declared: metadata.fields().iter().map(|field| field.name()).collect(),
            fields,
            entered: Vec::new(),
            made,
            closed: None,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.change(id, &context, |span, _| values.record(&mut Recorder(&mut span.fields)));
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.change(id, &context, |span, _| span.entered.push(thread::current().id()));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.change(&id, &context, |span, now| span.closed = Some(now));
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let span = context.event_span(event).and_then(|span| span.extensions().get::<Place>().map(|place| place.0));
        let mut fields = Fields::new();
        event.record(&mut Recorder(&mut fields));
        let metadata = event.metadata();
        let mut log = self.0.log();
        log.happens();
        log.events.push(Event { target: metadata.target(), level: *metadata.level(), span, fields });
    }
}

impl Capture {
    fn change<S>(&self, id: &Id, context: &Context<'_, S>, change: impl FnOnce(&mut Span, usize))
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let place = context.span(id).and_then(|span| span.extensions().get::<Place>().map(|place| place.0));
        let mut log = self.0.log();
        let now = log.happens();
        change(&mut log.spans[place.unwrap()], now);
    }
}

impl Log {
    fn happens(&mut self) -> usize {
        self.happened += 1;
        self.happened
    }
}

struct Recorder<'a>(&'a mut Fields);

impl Visit for Recorder<'_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), Value::I64(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), Value::Str(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), Value::Text(format!("{value:?}")));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), Value::Wrong(format!("{value} as u64")));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), Value::Wrong(format!("{value} as f64")));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), Value::Wrong(format!("{value} as bool")));
    }
}
