//! The words of a judgement: what is at fault, what it does to others, how a suspect is ruled on, what to do about it.

/// Makes an enum of words that go by one name each in spans, in JSON and in print.
macro_rules! words {
    ($(#[$meta:meta])* $words:ident { $($(#[$of:meta])* $word:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $words {
            $($(#[$of])* $word,)+
        }

        impl $words {
            /// The word as it stands in spans and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$word => $name,)+
                }
            }
        }

        impl std::fmt::Display for $words {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $words {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

words! {
    /// What is at fault.
    Cause {
        /// Nothing was over a threshold, or nobody was seen to wait for it.
        Healthy = "healthy",
        /// There are symptoms, and no evidence that decides. The detail says what is missing.
        Undetermined = "undetermined",
        /// The blocking pool's threads are all held by calls that come and go, and others wait for their turn. Detail:
        /// `io`, `cpu` or `mixed`, by what the calls do with their threads.
        PoolSaturated = "pool_saturated",
        /// Calls hold the pool's threads and wait for calls that are queued behind them. Detail: `nested` where they
        /// made those calls themselves, `circular` where somebody else did. With low confidence: it can happen, and has
        /// not yet.
        PoolDeadlock = "pool_deadlock",
        /// Threads of the blocking pool are held by calls that never end.
        PoolLeak = "pool_leak",
        /// Calls are queued and the pool does not take them. Detail: `idle_threads` or `no_thread`, where the system
        /// refuses to create one.
        PoolStalled = "pool_stalled",
        /// A flood of calls far shorter than the way to their thread and back. Information, no alarm.
        DispatchOverhead = "dispatch_overhead",
        /// One poll holds a worker for longer than the threshold. Detail: `computing`, `blocked` in a system call,
        /// `locked` behind a lock, `block_on` where it waits for another future, `unknown`.
        LongPoll = "long_poll",
        /// Polls are short, yet tasks that are ready wait: there is more to do than the workers can.
        Overloaded = "overloaded",
        /// The whole process did not run. Detail: `stopped`, `memory` or `unknown`.
        ProcessPaused = "process_paused",
        /// Threads were ready to run and had no CPU. Detail: `quota`, `steal` or `neighbours`.
        CpuContention = "cpu_contention",
        /// The runtime and its pool have room; the time goes into waiting for something that is handed out.
        DownstreamLimit = "downstream_limit",
        /// Calls get their thread at once and run long: slow, and not starved.
        SlowWork = "slow_work",
        /// Something is ready inside a healthy executor and is never taken.
        Unfair = "unfair",
    }
}

words! {
    /// What a fault does to others.
    Effect {
        /// The worker that is held was the one that watched timers and sockets: all of them are late, also those of
        /// idle workers.
        DriverHeld = "driver_held",
        /// A task that the stuck poll had woken waits on that very worker, where no other can take it.
        LifoVictim = "lifo_victim",
        /// Workers are stuck and all else on them waits.
        WorkersBlocked = "workers_blocked",
        /// `block_in_place` found no thread to hand its worker over to, because the pool is full.
        HandOffLost = "hand_off_lost",
        /// What was missed is made up for all at once.
        CatchUpBurst = "catch_up_burst",
        /// Calls run whose callers have left.
        AbandonedWork = "abandoned_work",
    }
}

words! {
    /// How a suspect came out.
    Ruling {
        /// It is the cause.
        Convicted = "convicted",
        /// It adds to the delay, and is not the main cause.
        Contributing = "contributing",
        /// A number says that it is not.
        Cleared = "cleared",
        /// What would decide it is not known.
        Unknown = "unknown",
    }
}

words! {
    /// What to do about it, as a word that a program can act on.
    Action {
        /// Give the pool more threads: its calls wait for something else than a CPU.
        RaisePool = "raise_pool",
        /// Run the calls on a pool of as many threads as there are CPUs: more would only share them out thinner.
        BoundCpuPool = "bound_cpu_pool",
        /// Give the calls that hold the threads a pool of their own.
        SeparatePool = "separate_pool",
        /// Give what never ends a thread of its own.
        DedicatedThread = "dedicated_thread",
        /// Move the work off the worker, into a blocking call.
        Offload = "offload",
        /// Let the worker go between the steps of the work.
        Yield = "yield",
        /// Use the asynchronous form of what blocks.
        GoAsync = "go_async",
        /// Do many of the small calls in one.
        Batch = "batch",
        /// Cancel the calls whose callers have left.
        CancelAbandoned = "cancel_abandoned",
        /// Do not wait for a call of the pool on a thread of the pool.
        AvoidNested = "avoid_nested",
        /// Hold the lock for a shorter time, and never across an await.
        ShortenLock = "shorten_lock",
        /// Give the runtime as many workers as the quota has CPUs.
        FitWorkersToQuota = "fit_workers_to_quota",
        /// Let timers skip or delay the ticks that were missed.
        SkipMissedTicks = "skip_missed_ticks",
        /// Look at what is waited for.
        LookDownstream = "look_downstream",
        /// Look at the machine.
        LookAtHost = "look_at_host",
        /// Look at the limits of the process: threads, memory.
        CheckLimits = "check_limits",
        /// Nothing that one word says: see the text.
        None = "none",
    }
}
