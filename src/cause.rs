//! The words of a judgement: what is at fault, and what to do about it.

/// What is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Cause {
    /// Nothing was over a threshold.
    Healthy,
    /// There are symptoms, and no evidence that decides. The incident says what is missing.
    Undetermined,
    /// The blocking pool's threads are all held by calls that come and go, and others wait for their turn.
    PoolSaturated,
    /// One poll holds a worker for longer than the threshold.
    LongPoll,
    /// The runtime and its pool have room; the time goes into waiting for something that is handed out.
    DownstreamLimit,
}

impl Cause {
    /// The cause in a word, as it stands in spans and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Undetermined => "undetermined",
            Self::PoolSaturated => "pool_saturated",
            Self::LongPoll => "long_poll",
            Self::DownstreamLimit => "downstream_limit",
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What to do about it, as a word that a program can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Action {
    /// Give the pool more threads: its calls wait for something else than a CPU.
    RaisePool,
    /// Run the calls on a pool of as many threads as there are CPUs: more would only share them out thinner.
    BoundCpuPool,
    /// Give the calls that hold the threads a pool of their own.
    SeparatePool,
    /// Move the work off the worker, into a blocking call.
    Offload,
    /// Look at what is waited for.
    LookDownstream,
    /// Look at the machine: its CPUs are short.
    LookAtHost,
    /// Nothing, until more is known.
    None,
}

impl Action {
    /// The action in a word, as it stands in spans and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RaisePool => "raise_pool",
            Self::BoundCpuPool => "bound_cpu_pool",
            Self::SeparatePool => "separate_pool",
            Self::Offload => "offload",
            Self::LookDownstream => "look_downstream",
            Self::LookAtHost => "look_at_host",
            Self::None => "none",
        }
    }
}
