//! The way from `tracing` through OpenTelemetry to a receiver and back.

mod receiver;
mod span;

use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use receiver::Receiver;
pub(crate) use span::{Attributes, Event, Span};

/// One for the process, as the subscriber is: spans are closed on threads that no test owns.
static PIPELINE: LazyLock<Option<Mutex<Pipeline>>> = LazyLock::new(|| match receiver::install() {
    Ok(packages) => Some(Mutex::new(Pipeline::new(Receiver::start(&packages)))),
    Err(reason) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("no OTLP receiver: {reason}"),
    Err(reason) => {
        // Past the capture of the test harness, which hides what a passing test prints.
        let mut terminal = std::io::stderr();
        writeln!(terminal, "SKIPPED, no OTLP receiver: {reason}").unwrap();
        None
    }
});

/// The pipeline, to one test at a time: they measure, so they must not disturb each other.
pub(crate) fn pipeline() -> Option<MutexGuard<'static, Pipeline>> {
    PIPELINE.as_ref().map(|pipeline| pipeline.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    receiver: Receiver,
    provider: SdkTracerProvider,
    spans: Vec<Span>,
}

impl Pipeline {
    fn new(receiver: Receiver) -> Self {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client)
            .with_endpoint(format!("http://127.0.0.1:{}/v1/traces", receiver.port))
            .build()
            .unwrap();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
        let ours = Targets::new().with_targets([("starvation", Level::TRACE), ("otlp", Level::TRACE)]);
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("interop")).with_filter(ours);
        tracing_subscriber::registry().with(layer).init();
        Self { receiver, provider, spans: Vec::new() }
    }

    /// Everything received so far, once it holds a span that `last` accepts. A span is exported when it has ended,
    /// so wait for the outermost.
    pub(crate) fn received(&mut self, last: impl Fn(&Span) -> bool) -> &[Span] {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.spans.iter().any(&last) {
            let names: Vec<_> = self.spans.iter().map(Span::name).collect();
            assert!(Instant::now() < deadline, "the span awaited has not arrived, only {names:?}");
            self.provider.force_flush().unwrap();
            while let Ok(line) = self.receiver.lines.recv_timeout(Duration::from_millis(100)) {
                self.spans.push(Span::parse(&line));
            }
        }
        &self.spans
    }
}

/// A client without Tokio: no runtime but those under test runs in this process.
#[derive(Debug)]
struct Client;

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, mut body) = ureq::run(request.map(Vec::from))?.into_parts();
        Ok(Response::from_parts(head, body.read_to_vec()?.into()))
    }
}
