use super::super::thread::tests::any_text;
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// A machine's files: its mounts, the groups of the process, and what stands in the trees.
struct Machine {
    mounts: &'static str,
    groups: &'static str,
    files: HashMap<&'static str, &'static str>,
}

impl Machine {
    fn new(mounts: &'static str, groups: &'static str, files: &[(&'static str, &'static str)]) -> Self {
        Self { mounts, groups, files: files.iter().copied().collect() }
    }

    fn read(&self, path: &Path) -> Option<String> {
        Some((*self.files.get(path.to_str()?)?).to_owned())
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::from(self.mounts, self.groups, &|path| self.files.keys().any(|file| Path::new(file).starts_with(path)))
    }

    fn quota(&self) -> Option<Quota> {
        self.cgroups().quota(&|path| self.read(path))
    }

    fn threads(&self) -> Option<(u64, u64)> {
        self.cgroups().threads(&|path| self.read(path))
    }
}

fn level(cpus: f64, periods: u64, throttled_periods: u64, throttled: u64) -> QuotaLevel {
    let (periods, throttled_periods) = (Some(periods), Some(throttled_periods));
    QuotaLevel { cpus, periods, throttled_periods, throttled: Some(throttled) }
}

const V2: &str = "22 27 0:21 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn the_second_version_has_the_smallest_quota_on_the_path() {
    let machine = Machine::new(
        V2,
        "0::/work.slice/shop.service\n",
        &[
            ("/sys/fs/cgroup/work.slice/shop.service/cpu.max", "200000 100000\n"),
            (
                "/sys/fs/cgroup/work.slice/shop.service/cpu.stat",
                "usage_usec 5\nnr_periods 8\nnr_throttled 1\nthrottled_usec 7\nnr_bursts 0\n",
            ),
            ("/sys/fs/cgroup/work.slice/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/work.slice/cpu.stat", "nr_periods 90\nnr_throttled 30\nthrottled_usec 12345\n"),
            ("/sys/fs/cgroup/work.slice/shop.service/pids.max", "max\n"),
            ("/sys/fs/cgroup/work.slice/shop.service/pids.current", "7\n"),
            ("/sys/fs/cgroup/work.slice/pids.max", "100\n"),
            ("/sys/fs/cgroup/work.slice/pids.current", "98\n"),
        ],
    );
    let Some(quota) = machine.quota() else { panic!("it is told") };
    assert_eq!(quota.levels, [level(2.0, 8, 1, 7_000), level(0.5, 90, 30, 12_345_000)]);
    assert_eq!((quota.cpus(), quota.worst()), (Some(0.5), quota.levels.last()));
    assert_eq!(machine.threads(), Some((100, 98)));
    let pressure = machine.cgroups().pressure("cpu");
    assert_eq!(pressure.as_deref(), Some(Path::new("/sys/fs/cgroup/work.slice/shop.service/cpu.pressure")));
}

#[test]
fn no_quota_is_not_an_unknown_one() {
    let file = ("/sys/fs/cgroup/shop/cpu.max", "max 100000\n");
    assert_eq!(Machine::new(V2, "0::/shop\n", &[file]).quota(), Some(Quota::default()));
    assert_eq!(Machine::new(V2, "", &[file]).quota(), None);
    assert_eq!(Machine::new("", "0::/shop\n", &[file]).quota(), None);
    assert_eq!(Machine::new(V2, "0::/shop\n", &[file]).threads(), None);
}

#[test]
fn of_a_quota_without_its_figures_the_figures_are_unknown() {
    let machine = Machine::new(V2, "0::/shop\n", &[("/sys/fs/cgroup/shop/cpu.max", "150000 100000")]);
    let levels = machine.quota().map(|quota| quota.levels);
    assert_eq!(levels, Some(vec![QuotaLevel { cpus: 1.5, periods: None, throttled_periods: None, throttled: None }]));
}

const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
    32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    33 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
    39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
    40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";

const V1_FILES: [(&str, &str); 7] = [
    ("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"),
    ("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"),
    ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n"),
    ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
    ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.stat", "nr_periods 40\nnr_throttled 9\nthrottled_time 123456789\n"),
    ("/sys/fs/cgroup/pids/c/pids.max", "64\n"),
    ("/sys/fs/cgroup/pids/c/pids.current", "63\n"),
];

#[test]
fn the_first_version_has_a_tree_for_each_controller() {
    let groups = "9:name=systemd:/x\n8:pids:/c\n3:cpuset:/\n2:cpu,cpuacct:/a/b\n";
    let machine = Machine::new(V1, groups, &V1_FILES);
    assert_eq!(machine.quota(), Some(Quota { levels: vec![level(0.5, 40, 9, 123_456_789)] }));
    assert_eq!(machine.threads(), Some((64, 63)));
    assert_eq!(machine.cgroups().pressure("cpu"), None);
}

#[test]
fn in_a_mixed_setup_each_controller_is_where_it_is() {
    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let mut files = V1_FILES.to_vec();
    files.push(("/sys/fs/cgroup/unified/u/pids.max", "10\n"));
    files.push(("/sys/fs/cgroup/unified/u/pids.current", "4\n"));
    let machine = Machine::new(MOUNTS, "2:cpu,cpuacct:/a/b\n0::/u\n", &files);
    assert_eq!(machine.quota().and_then(|quota| quota.cpus()), Some(0.5));
    assert_eq!(machine.threads(), Some((10, 4)));
    let pressure = machine.cgroups().pressure("io");
    assert_eq!(pressure.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/u/io.pressure")));
}

#[test]
fn a_container_of_the_first_version_sees_its_own_group_as_the_mounts_root() {
    const MOUNTS: &str = "50 49 0:29 /docker/abc /sys/fs/cgroup/cpu\\040x ro - cgroup cgroup rw,cpu\n";
    let files = [
        ("/sys/fs/cgroup/cpu x/cpu.cfs_quota_us", "150000\n"),
        ("/sys/fs/cgroup/cpu x/cpu.cfs_period_us", "100000\n"),
        ("/sys/fs/cgroup/cpu x/inner/cpu.cfs_quota_us", "100000\n"),
        ("/sys/fs/cgroup/cpu x/inner/cpu.cfs_period_us", "100000\n"),
    ];
    let cpus = |groups| Machine::new(MOUNTS, groups, &files).quota().map(|quota| quota.cpus());
    assert_eq!(cpus("4:cpu:/docker/abc\n"), Some(Some(1.5)));
    assert_eq!(cpus("4:cpu:/docker/abc/inner\n"), Some(Some(1.0)));
    // What is not below the mount is not visible, and what only begins like it is not below it.
    for path in ["4:cpu:/docker/abcdef\n", "4:cpu:/\n", "4:cpu:/docker/abc/gone\n", "4:cpu:/docker/abc/../x\n"] {
        assert_eq!(cpus(path), Some(Some(1.5)), "{path}");
    }
}

#[test]
fn in_a_nested_container_of_kubernetes_the_limits_of_the_pod_count_where_they_are_visible() {
    const POD: &str = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope\n";
    let files = [
        ("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope/cpu.max", "max 100000\n"),
        ("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cpu.max", "70000 100000\n"),
        ("/sys/fs/cgroup/kubepods.slice/cpu.max", "max 100000\n"),
    ];
    assert_eq!(Machine::new(V2, POD, &files).quota().map(|quota| quota.cpus()), Some(Some(0.7)));
    // In a namespace of its own, the container's group is the root and nothing else is to be seen.
    let inside = [("/sys/fs/cgroup/cpu.max", "30000 100000\n")];
    assert_eq!(Machine::new(V2, "0::/\n", &inside).quota().map(|quota| quota.cpus()), Some(Some(0.3)));
    // A path from outside of the namespace is not to be followed.
    assert_eq!(Machine::new(V2, "0::/../other\n", &inside).quota().map(|quota| quota.cpus()), Some(Some(0.3)));
    assert_eq!(Machine::new(V2, POD, &inside).quota().map(|quota| quota.cpus()), Some(Some(0.3)));
}

#[test]
fn a_quota_is_two_numbers_that_are_more_than_nothing() {
    assert_eq!(parse_quota("50000\n", "100000"), Some(0.5));
    for (quota, period) in [("max", "100000"), ("-1", "100000"), ("0", "100000"), ("5", "0"), ("", ""), ("x", "y")] {
        assert_eq!(parse_quota(quota, period), None, "{quota} {period}");
    }
}

#[test]
fn paths_are_unescaped() {
    assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    assert_eq!(unescape("/a\\04"), "/a\\04");
    assert_eq!(unescape("\\999\\"), "\\999\\");
    assert_eq!(unescape("/ä\\040ö"), "/ä ö");
}

#[test]
fn this_machine_has_groups_or_tells_of_none() {
    let cgroups = Cgroups::find();
    let places = [&cgroups.cpu, &cgroups.pids, &cgroups.unified];
    for place in places.into_iter().flatten() {
        assert!(place.directories.iter().all(|directory| directory.is_dir()), "{place:?}");
    }
    assert_eq!(Cgroups::find().quota(&|path| super::super::read(path)).is_some(), cgroups.cpu.is_some());
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(
        mounts in prop_oneof![any_text(V2), any_text(V1)],
        groups in any_text("2:cpu,cpuacct:/a/b\n0::/work.slice/shop.service\n"),
        content in prop_oneof![any_text("200000 100000\n"), any_text("nr_periods 8\nthrottled_usec 7\n")],
        there in any::<bool>(),
    ) {
        let cgroups = Cgroups::from(&mounts, &groups, &|_| there);
        let read = |_: &Path| Some(content.clone());
        let _ = cgroups.quota(&read).map(|quota| (quota.cpus(), quota.worst().copied()));
        let _ = (cgroups.threads(&read), cgroups.pressure("cpu"));
        let _ = unescape(&mounts);
        prop_assert!(cgroups.cpu.is_none_or(|place| (1..=DEEPEST).contains(&place.directories.len())));
    }
}
