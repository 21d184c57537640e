//! Finds the examples' programs beside the tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds an example as the tests themselves are built, if it has changed, and returns its path. The features must be
/// those of the tests, or the tests would be built again.
pub(crate) fn built(name: &str, features: &str) -> PathBuf {
    // This test is <target>/<profile>/deps/<name>, the examples are <target>/<profile>/examples/<name>.
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let profile_name = match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        named => named,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--profile", profile_name, "--features", features, "--example", name]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().unwrap().success(), "the example `{name}` does not build");
    executable(&profile.join("examples"), name)
}

fn executable(examples: &Path, name: &str) -> PathBuf {
    examples.join(format!("{name}{}", env::consts::EXE_SUFFIX))
}
