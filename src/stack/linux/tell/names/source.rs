//! What the place of a source file tells: of which crate it is, and which module.
//!
//! Debug info of lines alone names functions that were inlined without where they belong, but says where their source is.

use super::kind;
use super::{demangled, is_bare, is_mark, joined};

/// The crate of a compilation unit, and where its sources are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    name: String,
    directory: String,
    /// The file that it begins with.
    file: String,
}

impl Root {
    /// `unit`: a unit's name as the compiler gives it, the first file and the crate's name with a mark in between, and the
    /// directory that the file's path may count from.
    pub(crate) fn new(unit: &str, directory: &str) -> Option<Self> {
        let (file, rest) = unit.split_once("/@/")?;
        let name = rest.split('.').next()?.to_owned();
        let path = if file.starts_with('/') { file.to_owned() } else { format!("{directory}/{file}") };
        let (directory, file) = path.rsplit_once('/')?;
        Some(Self { name, directory: directory.to_owned(), file: file.to_owned() })
    }
}

/// The path of the module that a file has, where it is one of the unit's own crate or lies where libraries are unpacked.
fn module(file: &str, root: Option<&Root>) -> Option<String> {
    let own = root.and_then(|root| {
        let inside = file.strip_prefix(&root.directory)?.strip_prefix('/')?;
        Some((root.name.clone(), if inside == root.file { "lib.rs" } else { inside }))
    });
    let (name, inside) = own.or_else(|| {
        let (_, inside) = file.rsplit_once("/src/")?;
        let name = kind::crate_of_source(file)?;
        // Rust's own library holds crates that go by no name outside of it.
        let is_known = !kind::is_std_source(file) || kind::is_std(&name);
        is_known.then_some((name, inside))
    })?;
    let inside = inside.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    let path = if matches!(inside, "lib" | "main" | "mod") { name } else { format!("{name}/{inside}") };
    let is_path = path.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '/'));
    is_path.then(|| path.replace('/', "::"))
}

/// The name of a function with the path that its source tells, where it has none. `outer` is that of the function that it was
/// inlined into.
pub(crate) fn qualified(name: &str, file: Option<&str>, root: Option<&Root>, outer: Option<&str>) -> Option<String> {
    if !is_bare(name) || is_mark(name) {
        return None;
    }
    // Whose value is dropped the caller says.
    if let ("drop", Some(outer)) = (name, outer)
        && let Some((_, of)) = outer.split_once("drop_in_place")
        && let Some(of) = of.trim_start_matches("::").strip_prefix('<').and_then(|of| of.strip_suffix('>'))
    {
        return Some(demangled(&format!("<{of} as core::ops::drop::Drop>::drop")));
    }
    let stem = name.split('<').next()?;
    Some(joined(format!("{}::{stem}", module(file?, root)?), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_source_file_tells_the_module() {
        let root = Root::new("examples/app/main.rs/@/app.696e1491f92cde62-cgu.00", "/home/me/code");
        let other = Root::new("/home/me/lib-x/src/lib.rs/@/lib_x.1234-cgu.1", "/home/me/lib-x");
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        for (file, expected) in [
            ("/home/me/code/examples/app/main.rs".to_owned(), Some("app")),
            ("/home/me/code/examples/app/cache.rs".to_owned(), Some("app::cache")),
            ("/home/me/code/examples/app/cache/mod.rs".to_owned(), Some("app::cache")),
            ("/home/me/code/examples/application/cache.rs".to_owned(), None),
            ("/home/me/lib-x/src/lib.rs".to_owned(), None),
            ("/rustc/59807616e1/library/std/src/sync/poison/mutex.rs".to_owned(), Some("std::sync::poison::mutex")),
            ("/rustc/59807616e1/library/core/src/ptr/mod.rs".to_owned(), Some("core::ptr")),
            ("/rustc/59807616e1/library/core/src/../../stdarch/crates/core_arch/src/x86/sse2.rs".to_owned(), None),
            (format!("{registry}/tokio-util-0.7.1/src/task/mod.rs"), Some("tokio_util::task")),
            (format!("{registry}/lock_api-0.4.12/src/mutex.rs"), Some("lock_api::mutex")),
            (format!("{registry}/pollster-0.4.0/src/lib.rs"), Some("pollster")),
            (
                "/home/me/.cargo/git/checkouts/tokio-1a2b3c/1234567/tokio-util/src/task.rs".to_owned(),
                Some("tokio_util::task"),
            ),
            ("/home/me/.cargo/git/checkouts/pollster-1a2b3c/1234567/src/lib.rs".to_owned(), Some("pollster")),
            ("/home/me/code/vendor/rayon-core/src/job.rs".to_owned(), Some("rayon_core::job")),
            ("src/main.rs".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(module(&file, root.as_ref()).as_deref(), expected, "{file}");
        }
        assert_eq!(module("/home/me/lib-x/src/lib.rs", other.as_ref()).as_deref(), Some("lib_x"));
        assert_eq!(Root::new("main.c", "/home/me"), None);
    }

    #[test]
    fn a_name_without_a_path_gets_that_of_its_source() {
        let mutex = Some("/rustc/59807616e1/library/std/src/sync/poison/mutex.rs");
        let name = |name, outer| qualified(name, mutex, None, outer);
        assert_eq!(name("lock<u64>", None).as_deref(), Some("std::sync::poison::mutex::lock::<u64>"));
        assert_eq!(name("lock", None).as_deref(), Some("std::sync::poison::mutex::lock"));
        assert_eq!(name("std::x::lock", None), None, "it has one");
        assert_eq!(name("{closure#0}", None), None, "a mark is no function of the module");
        assert_eq!(qualified("lock", Some("/home/me/x.rs"), None, None), None);
        for outer in ["core::ptr::drop_in_place::<app::Slow<u8>>", "core::ptr::drop_in_place<app::Slow<u8>>"] {
            assert_eq!(name("drop", Some(outer)).as_deref(), Some("<app::Slow<u8> as core::ops::drop::Drop>::drop"));
        }
        assert_eq!(name("drop", Some("app::work")).as_deref(), Some("std::sync::poison::mutex::drop"));
    }
}
