//! Recursion, told once.

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
    told
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
