//! How durations and places look outside: microseconds in JSON, `file:line:column` everywhere.

use std::time::Duration;

/// Whole microseconds, as the type that tracing backends keep as a number.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(feature = "serde")]
pub(crate) fn us<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(micros(*duration))
}

#[cfg(feature = "serde")]
pub(crate) fn maybe_us<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.serialize_some(&micros(*duration)),
        None => serializer.serialize_none(),
    }
}

#[cfg(feature = "serde")]
pub(crate) fn location<S: serde::Serializer>(
    location: &std::panic::Location<'_>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(location)
}

#[cfg(feature = "serde")]
pub(crate) fn maybe_location<S: serde::Serializer>(
    location: &Option<&std::panic::Location<'_>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match location {
        Some(location) => serializer.collect_str(location),
        None => serializer.serialize_none(),
    }
}
