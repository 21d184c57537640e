//! Takes names apart: paths, generic arguments, and the types that functions belong to.

use std::borrow::Cow;

/// Whether an angle bracket after this begins arguments, rather than a type of its own.
fn begins_arguments(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '}'))
}

/// Where the bracket that is opened at the beginning of the text is closed.
pub(super) fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        before = c;
    }
    None
}

/// The parts between separators that are not within brackets.
pub(super) fn parts<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        if matches!(c, '<' | '(' | '[')
            && let Some(end) = closing(&text[at..])
        {
            at += end;
        } else if text[at..].starts_with(separator) {
            parts.push(&text[start..at]);
            at += separator.len();
            start = at;
            continue;
        }
        at += text[at..].chars().next().map_or(1, char::len_utf8);
    }
    parts.push(&text[start..]);
    parts
}

/// What stands in the angle brackets at the beginning, and what follows.
pub(super) fn qualified(name: &str) -> Option<(&str, &str)> {
    let inner = name.strip_prefix('<')?;
    let end = closing(name)?;
    Some((&inner[..end - 1], &name[end + 1..]))
}

/// A type and the trait that a function of it belongs to.
pub(super) fn type_and_trait(qualified: &str) -> (&str, Option<&str>) {
    let parts = parts(qualified, " as ");
    (parts.first().copied().unwrap_or_default(), parts.get(1).copied())
}

/// The closure that a name says is called, where it names the trait's own function for that.
pub(super) fn called_closure(name: &str) -> Option<&str> {
    let (inner, rest) = qualified(name)?;
    let (of, by) = type_and_trait(inner);
    let calls = by?.starts_with("core::ops::function::Fn") && rest.starts_with("::call");
    (calls && of.ends_with('}') && of.contains("{closure")).then_some(of)
}

/// A name in which arguments are only hinted at: `a::B<…>::c`. Those of functions are left out.
pub(super) fn without_arguments(name: &str) -> String {
    let name = match qualified(name) {
        // A type's own function.
        Some((inner, rest))
            if type_and_trait(inner).1.is_none() && begins_arguments(inner.get(..1).unwrap_or_default()) =>
        {
            Cow::Owned(format!("{inner}{rest}"))
        }
        _ => Cow::Borrowed(name),
    };
    let mut text = String::new();
    let mut at = 0;
    while let Some(c) = name[at..].chars().next() {
        if c == '<'
            && begins_arguments(&text)
            && let Some(end) = closing(&name[at..])
        {
            match text.strip_suffix("::").map(str::len) {
                Some(length) => text.truncate(length),
                None => text.push_str("<…>"),
            }
            at += end + 1;
        } else {
            text.push(c);
            at += c.len_utf8();
        }
    }
    text
}

/// The types that a name gives as arguments anywhere at its top level, and the type that it is of.
pub(super) fn arguments(name: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = name[at..].chars().next() {
        if matches!(c, '<' | '(' | '[')
            && let Some(end) = closing(&name[at..])
        {
            let inner = &name[at + 1..at + end];
            let comma_separated = parts(inner, ",").into_iter().map(str::trim);
            found.extend(comma_separated.flat_map(|part| parts(part, " as ")));
            at += end;
        }
        at += name[at..].chars().next().map_or(1, char::len_utf8);
    }
    found
}
