//! What comes again and again on a stack, told once: recursion, and the build id of a module without names.

/// As many lines may repeat themselves together.
const LONGEST: usize = 8;

/// Lines in which those that come again at once, one by one or several together, are told once, with how often.
pub(super) fn folded(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let lines: Vec<String> = lines.into_iter().collect();
    let mut told = Vec::new();
    let mut rest = &lines[..];
    while !rest.is_empty() {
        let repeated = (1..=LONGEST).map(|length| (length, times(rest, length))).find(|(_, times)| *times > 1);
        let (length, times) = repeated.unwrap_or((1, 1));
        told.extend_from_slice(&rest[..length]);
        if let Some(last) = told.last_mut().filter(|_| times > 1) {
            *last += &match length {
                1 => format!(", {times} times"),
                _ => format!(", these {length} lines {times} times"),
            };
        }
        rest = &rest[length * times..];
    }
    ids_once(&mut told);
    told
}

/// Takes a build id out of each line but the first that has it.
fn ids_once(lines: &mut [String]) {
    let mut told: Vec<String> = Vec::new();
    for line in lines {
        let Some((from, to)) = id_in(line) else { continue };
        match told.iter().any(|id| *id == line[from..to]) {
            true => line.replace_range(from..to, ""),
            false => told.push(line[from..to].to_owned()),
        }
    }
}

/// Where a build id stands in brackets, with the blank before: it is twenty bytes long, or eight at least.
fn id_in(line: &str) -> Option<(usize, usize)> {
    let from = line.find(" [")?;
    let length = line[from + 2..].find(']')?;
    let id = &line[from + 2..from + 2 + length];
    (length >= 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some((from, from + 2 + length + 1))
}

/// How often the first lines, so many of them, stand there one after the other.
fn times(lines: &[String], length: usize) -> usize {
    let first = lines.get(..length);
    lines.chunks_exact(length).take_while(|piece| Some(*piece) == first).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[&str]) -> Vec<String> {
        folded(lines.iter().map(|line| (*line).to_owned()))
    }

    #[test]
    fn the_build_id_of_a_module_is_told_once() {
        let (id, other) = ("0123456789abcdef0123", "fedcba9876543210");
        let lines = [
            "read".to_owned(),
            format!("app+0x14 [{id}]"),
            format!("app+0x20 [{id}] (stripped)"),
            format!("lib+0x20 [{other}]"),
            format!("app+0x30 [{id}]"),
            format!("app+0x30 [{id}]"),
            "core::slice::<impl [u8]>::sort".to_owned(),
        ];
        let told = folded(lines);
        assert_eq!(told[1..3], [format!("app+0x14 [{id}]"), "app+0x20 (stripped)".to_owned()]);
        assert_eq!(told[3..5], [format!("lib+0x20 [{other}]"), "app+0x30, 2 times".to_owned()]);
        assert_eq!(told[5], "core::slice::<impl [u8]>::sort");
    }

    #[test]
    fn what_repeats_itself_is_told_once_with_how_often() {
        assert_eq!(told(&["a", "b", "b", "b", "c"]), ["a", "b, 3 times", "c"]);
        assert_eq!(told(&["a", "b", "c", "b", "c", "d"]), ["a", "b", "c, these 2 lines 2 times", "d"]);
        assert_eq!(told(&["a", "b", "a"]), ["a", "b", "a"]);
        assert_eq!(told(&["b", "b"]), ["b, 2 times"]);
        assert_eq!(told(&[]), [""; 0]);
        let deep: Vec<String> = (0..1_000).map(|number| format!("f{}", number % LONGEST)).collect();
        let told = folded(deep);
        assert_eq!((told.len(), told[LONGEST - 1].as_str()), (LONGEST, "f7, these 8 lines 125 times"));
    }
}
