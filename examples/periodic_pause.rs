//! A server that is stopped at an even period: the detector says that the process was paused, how often, and blames no
//! code for it; and dividing the process divides what one pause touches.
//!
//! This is what a garbage collector, a CPU quota, a hypervisor or a big fork do to a process. Here a parent process does
//! it for real, with the signals that stop and continue.
//!
//! ```text
//! cargo run --release --example periodic_pause
//! cargo run --release --example periodic_pause -- --processes 8 --period 2000 --pause 250 --pauses 6
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it found")]

#[cfg(not(unix))]
fn main() {
    eprintln!("a process is stopped with signals: that needs a Unix");
}

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    unix::main()
}

#[cfg(unix)]
mod unix {
    use std::env;
    use std::error::Error;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream as AsyncStream};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    /// A fleet, and what happens to one of its processes.
    #[derive(Debug, Clone, Copy)]
    struct Plan {
        processes: u32,
        period: Duration,
        pause: Duration,
        pauses: u32,
    }

    pub(super) fn main() -> Result<()> {
        let args: Vec<String> = env::args().skip(1).collect();
        if args.first().is_some_and(|arg| arg == "--serve") {
            return serve();
        }
        let plan = plan(&args)?;
        let one = run(plan, 1)?;
        let many = run(plan, plan.processes)?;
        println!("\none pause of {:?} in every {:?}", plan.pause, plan.period);
        println!("  {:>9}  {:>8}  {:>12}  {:>24}", "processes", "requests", "held up", "touched by one pause");
        for (processes, Traffic { requests, held_up }) in [(1, one), (plan.processes, many)] {
            let share = 100.0 / f64::from(processes);
            let held = 100.0 * held_up as f64 / requests.max(1) as f64;
            println!("  {processes:>9}  {requests:>8}  {held_up:>5} = {held:3.1} %  {share:>14.1} % of traffic");
        }
        println!(
            "as many pauses in all, each of one process: {} processes divide what one touches by {0}",
            plan.processes
        );
        Ok(())
    }

    fn plan(args: &[String]) -> Result<Plan> {
        let ms = Duration::from_millis;
        let mut plan = Plan { processes: 4, period: ms(1_000), pause: ms(250), pauses: 6 };
        for pair in args.chunks(2) {
            let [flag, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
            let number: u32 = value.parse().map_err(|_| format!("{flag} needs a whole number"))?;
            match flag.as_str() {
                "--processes" => plan.processes = number,
                "--period" => plan.period = ms(number.into()),
                "--pause" => plan.pause = ms(number.into()),
                "--pauses" => plan.pauses = number,
                _ => return Err(format!("unknown flag `{flag}`: --processes, --period, --pause, --pauses").into()),
            }
        }
        if plan.processes == 0 || plan.pauses < 3 || plan.pause.is_zero() || plan.pause * 2 > plan.period {
            return Err("at least one process, three pauses, and a pause of at most half the period".into());
        }
        Ok(plan)
    }

    /// What the clients of a fleet saw.
    #[derive(Debug, Clone, Copy, Default)]
    struct Traffic {
        requests: u64,
        /// Those that took longer than a third of a pause.
        held_up: u64,
    }

    /// A fleet of so many processes, the first of which is stopped evenly. Its diagnosis goes to our own stdout.
    fn run(plan: Plan, processes: u32) -> Result<Traffic> {
        println!("=== {processes} process{}, one of them stopped", if processes == 1 { "" } else { "es" });
        let mut fleet = (0..processes).map(|_| Server::start()).collect::<Result<Vec<_>>>()?;
        let addresses: Vec<SocketAddr> = fleet.iter().map(|server| server.address).collect();
        let length = plan.period * (plan.pauses + 1);
        // As a balancer does it: in turn, and each request on a thread that waits for nobody else's.
        let client = thread::spawn(move || send(&addresses, length, plan.pause / 3));

        let start = Instant::now();
        for round in 1..=plan.pauses {
            thread::sleep((start + plan.period * round).saturating_duration_since(Instant::now()));
            fleet[0].signal("-STOP")?;
            thread::sleep(plan.pause);
            fleet[0].signal("-CONT")?;
        }
        let traffic = client.join().map_err(|_| "the client panicked")?;
        println!("{}", fleet[0].ask()?);
        Ok(traffic)
    }

    fn send(addresses: &[SocketAddr], length: Duration, held_up: Duration) -> Traffic {
        let start = Instant::now();
        let mut requests = Vec::new();
        for address in addresses.iter().copied().cycle() {
            if start.elapsed() >= length {
                break;
            }
            requests.push(thread::spawn(move || request(address)));
            thread::sleep(Duration::from_millis(5));
        }
        let took = requests.into_iter().filter_map(|request| request.join().ok()?);
        took.fold(Traffic::default(), |traffic, took| Traffic {
            requests: traffic.requests + 1,
            held_up: traffic.held_up + u64::from(took > held_up),
        })
    }

    /// How long one request took, if it was answered.
    fn request(address: SocketAddr) -> Option<Duration> {
        let start = Instant::now();
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then(|| start.elapsed())
    }

    /// A child that serves, and is killed when dropped.
    #[derive(Debug)]
    struct Server {
        child: Child,
        address: SocketAddr,
    }

    impl Server {
        fn start() -> Result<Self> {
            let mut command = Command::new(env::current_exe()?);
            command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let mut line = String::new();
            let stdout = child.stdout.as_mut().ok_or("no stdout")?;
            while !line.ends_with('\n') {
                let mut byte = [0];
                stdout.read_exact(&mut byte)?;
                line.push(byte[0].into());
            }
            Ok(Self { child, address: line.trim().parse()? })
        }

        fn signal(&self, signal: &str) -> Result<()> {
            let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
            if sent.success() { Ok(()) } else { Err("the child is gone".into()) }
        }

        /// Its diagnosis: it gives one when its stdin is closed, and ends.
        fn ask(&mut self) -> Result<String> {
            drop(self.child.stdin.take());
            let mut diagnosis = String::new();
            self.child.stdout.as_mut().ok_or("no stdout")?.read_to_string(&mut diagnosis)?;
            Ok(diagnosis)
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            // A child that cannot be killed has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// The child: a small server of one thread, as each of the story's was, watched by a detector.
    fn serve() -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let detector = starvation::Detector::builder().attach(runtime.handle()).window(Duration::from_secs(60));
        let detector = detector.start()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        println!("{}", listener.local_addr()?);
        thread::spawn(move || {
            let mut end = Vec::new();
            // Whether it is closed or breaks: the parent wants the diagnosis.
            let _ = std::io::stdin().read_to_end(&mut end);
            println!("diagnosis: {}", detector.diagnose());
            for incident in detector.incidents() {
                println!("incident {}: {incident}", incident.id);
            }
            std::process::exit(0);
        });
        Ok(runtime.block_on(accept(listener))?)
    }

    async fn accept(listener: TcpListener) -> std::io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(starvation::instrument_future("ingest", answer(stream)));
        }
    }

    async fn answer(mut stream: AsyncStream) {
        let mut request = [0; 1_024];
        // A client that has gone does not want an answer.
        if stream.read(&mut request).await.is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    }
}
