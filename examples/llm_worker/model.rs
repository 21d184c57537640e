//! What the worker needs: a language model, which is an HTTP server that takes its time, the client library that it is
//! called through, and a database that answers at once.

use axum::Router;
use axum::routing::post;
use axum::serve::ListenerExt;
use std::future::IntoFuture;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use ureq::Agent;

/// The model and the database. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<AtomicU64>,
    /// Of its own, so that nothing that the worker suffers from can slow the model down.
    runtime: Runtime,
}

impl Server {
    /// Starts a model that answers everyone after this time, however many ask.
    pub(crate) fn start(answers_after: Duration) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("model").enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let listener = listener.tap_io(|connection| {
            // Without it an answer may lie in the kernel until the last one is acknowledged. Failing that, it is late.
            let _ = connection.set_nodelay(true);
        });
        let requests = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&requests);
        let answer = async move |prompt: String| {
            // Relaxed, here and below: a count, read when all is over.
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(answers_after).await;
            format!("an answer to `{prompt}`")
        };
        let app = Router::new().route("/complete", post(answer));
        runtime.spawn(axum::serve(listener, app).into_future());
        Ok(Self { address, requests, runtime })
    }

    /// How many requests the model has been sent.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn database(&self) -> Database {
        Database { server: self.runtime.handle().clone() }
    }

    /// A client for as many calls at once as there are `threads`.
    pub(crate) fn client(&self, threads: usize) -> Client {
        // Every thread finds its connection open again. Loopback takes no proxy, whatever the environment says.
        let config = Agent::config_builder()
            .proxy(None)
            .max_idle_connections(threads)
            .max_idle_connections_per_host(threads)
            .build();
        Client { agent: config.new_agent(), url: format!("http://{}/complete", self.address) }
    }
}

/// A database that is as fast as the story's: 0 ms.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    server: Handle,
}

impl Database {
    /// The prompt of the next job. Another thread looks it up, so that it is really waited for.
    pub(crate) async fn prompt(self) -> Result<&'static str, tokio::task::JoinError> {
        starvation::instrument_wait("database", self.server.spawn(async { "Why is it slow?" })).await
    }
}

/// A client library as in the story: async from the outside, synchronous inside.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: Agent,
    url: String,
}

impl Client {
    /// Has the model complete a prompt.
    pub(crate) async fn complete(self, prompt: &'static str) -> Result<String, ureq::Error> {
        // All the instrumentation it takes: the story's library has a bare `spawn_blocking` here.
        let call = starvation::instrument_blocking("model_call", move || self.complete_blocking(prompt));
        call.await.map_err(|error| ureq::Error::Other(error.into()))?
    }

    fn complete_blocking(&self, prompt: &str) -> Result<String, ureq::Error> {
        // Read to its end, which is what frees the connection for the next call.
        self.agent.post(&self.url).send(prompt)?.body_mut().read_to_string()
    }
}
