//! One run of the worker: jobs at a steady rate of so many at once, watched by a detector.

use crate::args::Plan;
use crate::model::{Client, Database, Server};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use starvation::{Detector, Diagnosis, Incident, IncidentChange, Ledger, OpSnapshot, Subscription};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// What came out of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) plan: Plan,
    pub(crate) took: Duration,
    /// The sum over all jobs.
    pub(crate) ledger: Ledger,
    pub(crate) longest_job: Duration,
    /// The figures of `model_call` in this run.
    pub(crate) calls: OpSnapshot,
    /// Those of `database`.
    pub(crate) waits: OpSnapshot,
    /// Each as it ended.
    pub(crate) incidents: Vec<Arc<Incident>>,
    /// What the detector said when the last job had ended.
    pub(crate) diagnosis: Diagnosis,
    /// How many requests the model was sent.
    pub(crate) requests: u64,
    /// What the detector itself used, where the system tells.
    pub(crate) detector_cpu: Option<Duration>,
}

/// Sends the jobs through a worker process of the plan's shape. `tell` is given each change of an incident at once.
pub(crate) fn run(
    plan: Plan,
    tell: impl FnMut(&IncidentChange) + Send + 'static,
) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
    let server = Server::start(plan.model)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(plan.pool).thread_name("worker").enable_all();
    // So that the detector knows how large the pool is, and not only how many threads of it were seen at work.
    let runtime = starvation::hooks(&mut builder).build()?;
    let detector = Detector::builder().attach(runtime.handle()).start()?;
    let changes = detector.subscribe();
    let watcher = thread::spawn(move || watch(changes, tell));

    let before = detector.snapshot();
    let start = Instant::now();
    let ledgers = runtime.block_on(run_jobs(plan, server.client(plan.pool), server.database()))?;
    let took = start.elapsed();
    // Counted since the process began: the runs before this one are not its business.
    let figures = detector.snapshot().since(&before);
    let diagnosis = detector.diagnose();

    // The subscription ends with the detector, and the watcher with the subscription.
    drop(detector);
    let incidents = watcher.join().map_err(|_| "the watching thread panicked")?;
    let most = |name, count: fn(&OpSnapshot) -> u64| {
        figures.ops.iter().filter(|op| op.op == name).max_by_key(|op| count(op)).cloned()
    };
    let calls = most("model_call", |op| op.execution.count);
    let waits = most("database", |op| op.wait.count);
    Ok(Outcome {
        plan,
        took,
        ledger: ledgers.iter().copied().sum(),
        longest_job: ledgers.iter().map(|ledger| ledger.total).max().unwrap_or_default(),
        calls: calls.ok_or("no call was made")?,
        waits: waits.ok_or("the database was not asked")?,
        incidents,
        diagnosis,
        requests: server.requests(),
        detector_cpu: figures.observer.cpu,
    })
}

/// Keeps as many jobs in flight as the worker's cap allows, until all are through.
async fn run_jobs(plan: Plan, client: Client, database: Database) -> Result<Vec<Ledger>, Box<dyn Error + Send + Sync>> {
    let spawn_job = |_| {
        let (client, database) = (client.clone(), database.clone());
        let job = async {
            let prompt = database.prompt().await.map_err(|error| ureq::Error::Other(error.into()))?;
            client.complete(prompt).await
        };
        tokio::spawn(starvation::instrument_future("job", job).timed())
    };
    stream::iter(0..plan.jobs)
        .map(spawn_job)
        .buffer_unordered(plan.concurrency)
        .map(|joined| {
            let (answer, ledger) = joined?;
            answer?;
            Ok(ledger)
        })
        .try_collect()
        .await
}

/// Passes the changes on and keeps the latest of each incident, until the detector is gone.
fn watch(mut changes: Subscription, mut tell: impl FnMut(&IncidentChange)) -> Vec<Arc<Incident>> {
    let mut latest = BTreeMap::new();
    while let Some(change) = changes.recv_timeout(Duration::MAX) {
        tell(&change);
        latest.insert(change.incident().id, Arc::clone(change.incident()));
    }
    latest.into_values().collect()
}
