//! The receiver: somebody else's OTLP server, from PyPI, in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const REQUIREMENTS: [&str; 3] = ["oteltap==1.0.0", "opentelemetry-proto==1.45.2", "protobuf==7.36.2"];

/// A running receiver. It ends when its standard input closes, so with this value or with this process.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) port: u16,
    pub(crate) lines: mpsc::Receiver<String>,
    _process: Child,
}

impl Receiver {
    pub(crate) fn start(packages: &Path) -> Self {
        let mut process = python(packages)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/receiver.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                if sender.send(line.unwrap()).is_err() {
                    break;
                }
            }
        });
        let port = lines.recv_timeout(Duration::from_secs(30)).expect("the receiver says its port");
        Self { port: port.parse().unwrap(), lines, _process: process }
    }
}

/// Installs the receiver once per target directory; an error says why it cannot be had here.
pub(crate) fn install() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let packages = root.join(REQUIREMENTS.join("+"));
    if packages.exists() {
        return Ok(packages);
    }
    // Renamed into place when complete: a broken or concurrent installation is never seen.
    let partial = root.join(format!("installing-{}", std::process::id()));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"];
    let installed = run(python(&partial).args(pip).arg("--target").arg(&partial).args(REQUIREMENTS))
        .and_then(|()| run(python(&partial).args(["-c", "import oteltap"]))) // its native part is not built for every platform
        .and_then(|()| std::fs::rename(&partial, &packages).map_err(|error| error.to_string()));
    let _ = std::fs::remove_dir_all(&partial);
    if packages.exists() { Ok(packages) } else { Err(installed.err().unwrap_or_default()) }
}

fn python(packages: &Path) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", packages).env("PIP_ROOT_USER_ACTION", "ignore");
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}\n{stderr}", output.status)) }
}
