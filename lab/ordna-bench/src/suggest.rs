//! Error texts for unknown names.

/// Returns the text `unknown WHAT "NAME"; did you mean …? known are …`.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let hint = nearest(name, &known).map(|near| format!(", did you mean {near:?}?"));
    format!(
        "unknown {what} {name:?}{} known are {}",
        hint.unwrap_or(";".to_owned()),
        known.join(", ")
    )
}

/// Returns the known name that a typing error may have meant. The part after a `:` in a known name
/// is a placeholder.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let stem = |text: &str| text.split(':').next().unwrap_or_default().to_lowercase();
    let name = stem(name);
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &stem(known));
    let near = known.iter().copied().min_by_key(|known| distance(known))?;
    let close = distance(near) <= 1 + near.len() / 4;
    let begun = || known.iter().copied().find(|known| name.len() > 2 && known.starts_with(&name));
    if close && !name.is_empty() { Some(near) } else { begun() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_understood_and_other_words_are_not() {
        let known = ["skiplist", "wormhole", "crossbeam-skiplist", "mix:PERCENT"];
        assert_eq!(nearest("skiplsit", &known), Some("skiplist"));
        assert_eq!(nearest("Wormole", &known), Some("wormhole"));
        assert_eq!(nearest("crossbeam", &known), Some("crossbeam-skiplist"));
        assert_eq!(nearest("mxi:30", &known), Some("mix:PERCENT"));
        assert_eq!(nearest("btrfs", &known), None);
        let text = unknown("index", "skiplsit", known);
        assert!(text.contains("did you mean \"skiplist\"?") && text.contains("wormhole"), "{text}");
    }
}
