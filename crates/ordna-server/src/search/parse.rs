//! The grammar and parser of `FT.SEARCH` queries.
//!
//! ```text
//! query    = all { "|" all }
//! all      = one { one }
//! one      = "-" one | "(" query ")" | "*" | "@" name ":" ( tags | range )
//! tags     = "{" tag { "|" tag } "}"       a tag may end in "*": a prefix
//! range    = "[" bound bound "]"           a bound may begin with "(": without it; -inf, +inf
//! ```
//! A backslash takes the special meaning from the next character of a name or tag. A tag may be in
//! double quotes. Other syntax of RediSearch is rejected by an error that names it.

use std::ops::Bound;

/// The deepest nesting of a query.
const MAX_DEPTH: usize = 64;
/// Maximum number of clauses and tags in a query, including those of its filters. Each is compared
/// with every document that the query reads.
const MAX_CLAUSES: usize = 1024;
/// Maximum length of a query in bytes. Planning takes several times this memory.
const MAX_LEN: usize = 1 << 20;

/// A query.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// All documents.
    All,
    /// Documents with one of these tags.
    Tags {
        field: String,
        tags: Vec<Tag>,
    },
    /// Documents with a number between two bounds.
    Range {
        field: String,
        lower: Bound<f64>,
        upper: Bound<f64>,
    },
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
}

impl Node {
    /// Returns the number of clauses and tags.
    fn clauses(&self) -> usize {
        match self {
            Self::All | Self::Range { .. } => 1,
            Self::Tags { tags, .. } => 1 + tags.len(),
            Self::Not(node) => 1 + node.clauses(),
            Self::And(nodes) | Self::Or(nodes) => nodes.iter().map(Self::clauses).sum(),
        }
    }

    /// Restricts the query by a clause. Clauses that are added one after the other do not nest.
    ///
    /// # Errors
    /// The query already has the maximum number of clauses.
    pub fn narrow(&mut self, clause: Self) -> Result<(), String> {
        if self.clauses() + clause.clauses() > MAX_CLAUSES {
            return Err(too_many());
        }
        match self {
            Self::And(nodes) => nodes.push(clause),
            node => {
                let query = std::mem::replace(node, Self::All);
                *node = Self::And(vec![query, clause]);
            }
        }
        Ok(())
    }
}

fn too_many() -> String {
    format!("ERR the query has more than {MAX_CLAUSES} clauses")
}

/// A tag, or the prefix of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    pub text: String,
    pub is_prefix: bool,
}

/// Parses a query.
///
/// # Errors
/// The text of the error reply.
pub fn parse(text: &str) -> Result<Node, String> {
    if text.len() > MAX_LEN {
        return Err(format!("ERR a query has at most {MAX_LEN} bytes, not {}", text.len()));
    }
    let mut parser = Parser { text, at: 0, clauses: 0 };
    let node = parser.any(MAX_DEPTH)?;
    parser.blanks();
    if parser.at < text.len() {
        return Err(parser.error("the end of the query"));
    }
    Ok(node)
}

/// Parses a bound: a number, preceded by `(` if the number itself is excluded.
pub fn bound(text: &str) -> Option<Bound<f64>> {
    let (text, excluded) = match text.strip_prefix('(') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let number: f64 = text.parse().ok().filter(|number: &f64| !number.is_nan())?;
    Some(if excluded { Bound::Excluded(number) } else { Bound::Included(number) })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    clauses: usize,
}

impl Parser<'_> {
    fn error(&self, expected: &str) -> String {
        let near: String = self.rest().chars().take(20).collect();
        format!("ERR Syntax error at offset {} near {near:?}: expected {expected}", self.at)
    }

    fn unsupported(&self, what: &str) -> String {
        format!("ERR {what} (at offset {}) is not supported by Ordna", self.at)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Consumes a character, after blanks, if it comes next.
    fn symbol(&mut self, symbol: char) -> bool {
        self.blanks();
        let found = self.peek() == Some(symbol);
        self.at += if found { symbol.len_utf8() } else { 0 };
        found
    }

    fn count(&mut self) -> Result<(), String> {
        self.clauses += 1;
        if self.clauses > MAX_CLAUSES {
            return Err(too_many());
        }
        Ok(())
    }

    fn any(&mut self, depth: usize) -> Result<Node, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("ERR the query is nested deeper than {MAX_DEPTH} times"));
        };
        let mut nodes = vec![self.all(depth)?];
        while self.symbol('|') {
            nodes.push(self.all(depth)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Or(nodes) })
    }

    fn all(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes = vec![self.one(depth)?];
        loop {
            self.blanks();
            if matches!(self.peek(), None | Some('|' | ')')) {
                break;
            }
            nodes.push(self.one(depth)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::And(nodes) })
    }

    fn one(&mut self, depth: usize) -> Result<Node, String> {
        self.count()?;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("ERR the query is nested deeper than {MAX_DEPTH} times"));
        };
        if self.symbol('-') {
            return Ok(Node::Not(Box::new(self.one(depth)?)));
        }
        if self.symbol('(') {
            let node = self.any(depth)?;
            if !self.symbol(')') {
                return Err(self.error("\")\""));
            }
            self.blanks();
            if self.rest().starts_with("=>") {
                return Err(self.unsupported("an attribute of a clause (=>)"));
            }
            return Ok(node);
        }
        if self.symbol('*') {
            return Ok(Node::All);
        }
        if self.symbol('@') {
            let field = self.name()?;
            if !self.symbol(':') {
                return Err(match self.peek() {
                    Some('|') => self.unsupported("a clause over several fields (@a|b:)"),
                    Some('=' | '!' | '<' | '>') => self
                        .unsupported("a comparison (==, !=, <, <=, >, >=); write @field:[lo hi]"),
                    _ => self.error("\":\""),
                });
            }
            return match (self.symbol('{'), self.symbol('[')) {
                (true, _) => self.tags(field),
                (_, true) => self.range(field),
                _ => {
                    Err(self.unsupported("full-text search in a field (only {tags} and [ranges])"))
                }
            };
        }
        Err(match self.peek() {
            None => self.error("a clause"),
            Some('~') => self.unsupported("an optional clause (~)"),
            Some('%') => self.unsupported("fuzzy matching (%)"),
            Some('"') => self.unsupported("a phrase"),
            Some('$') => self.unsupported("a parameter ($)"),
            Some(c) if c.is_alphanumeric() => self.unsupported("full-text search for words"),
            Some(_) => self.error("a clause"),
        })
    }

    /// Parses a name or tag up to a character of `ends`. Returns it without surrounding blanks, and
    /// whether `*` follows it.
    fn text(&mut self, ends: &[char]) -> Result<(String, bool), String> {
        self.blanks();
        let (mut text, mut is_prefix, mut kept) = (String::new(), false, 0);
        while let Some(c) = self.peek() {
            if ends.contains(&c) {
                break;
            }
            if is_prefix && !c.is_whitespace() {
                return Err(self.unsupported("\"*\" within a tag"));
            }
            self.at += c.len_utf8();
            match c {
                '\\' => {
                    let Some(c) = self.peek() else { return Err(self.error("a character")) };
                    self.at += c.len_utf8();
                    text.push(c);
                    kept = text.len();
                }
                '*' => is_prefix = true,
                '$' if text.is_empty() => return Err(self.unsupported("a parameter ($)")),
                c => text.push(c),
            }
        }
        let end = kept.max(text.trim_end().len());
        text.truncate(end);
        Ok((text, is_prefix))
    }

    fn name(&mut self) -> Result<String, String> {
        let ends = [':', '|', '=', '!', '<', '>', ' ', '{', '[', '(', ')'];
        let (name, is_prefix) = self.text(&ends)?;
        if name.is_empty() || is_prefix {
            return Err(self.error("the name of a field"));
        }
        Ok(name)
    }

    fn tags(&mut self, field: String) -> Result<Node, String> {
        let mut tags = Vec::new();
        loop {
            self.count()?;
            self.blanks();
            let (text, is_prefix) = if self.symbol('"') {
                let (text, is_prefix) = self.text(&['"'])?;
                if !self.symbol('"') {
                    return Err(self.error("'\"'"));
                }
                (text, is_prefix || self.symbol('*'))
            } else {
                self.text(&['|', '}'])?
            };
            if text.is_empty() {
                return Err(if is_prefix {
                    self.unsupported("a suffix or infix of a tag (*text)")
                } else {
                    self.error("a tag")
                });
            }
            tags.push(Tag { text, is_prefix });
            if self.symbol('}') {
                return Ok(Node::Tags { field, tags });
            }
            if !self.symbol('|') {
                return Err(self.error("\"|\" or \"}\""));
            }
        }
    }

    fn range(&mut self, field: String) -> Result<Node, String> {
        let mut bounds = [Bound::Unbounded; 2];
        for slot in &mut bounds {
            self.blanks();
            let word = self.rest();
            let end = word.find(|c: char| c.is_whitespace() || c == ',' || c == ']');
            let word = &word[..end.unwrap_or(word.len())];
            let Some(found) = bound(word) else {
                let is_parameter = word.contains('$');
                return Err(match is_parameter {
                    true => self.unsupported("a parameter ($)"),
                    false => self.error("a number"),
                });
            };
            *slot = found;
            self.at += word.len();
            self.symbol(',');
        }
        if !self.symbol(']') {
            return Err(self.error("\"]\""));
        }
        let [lower, upper] = bounds;
        Ok(Node::Range { field, lower, upper })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags(field: &str, tags: &[&str]) -> Node {
        let tag = |text: &&str| match text.strip_suffix('*') {
            Some(text) => Tag { text: text.to_owned(), is_prefix: true },
            None => Tag { text: (*text).to_owned(), is_prefix: false },
        };
        Node::Tags { field: field.to_owned(), tags: tags.iter().map(tag).collect() }
    }

    fn range(field: &str, lower: Bound<f64>, upper: Bound<f64>) -> Node {
        Node::Range { field: field.to_owned(), lower, upper }
    }

    #[test]
    fn what_clients_send_is_read() {
        use Bound::{Excluded, Included};
        let n = range("n", Included(1.0), Excluded(2.5));
        let cases = [
            ("*", Node::All),
            (" @t:{a|b c}", tags("t", &["a", "b c"])),
            ("@t:{ pre* }", tags("t", &["pre*"])),
            (
                r"@t:{a\-b\ |\*}",
                Node::Tags {
                    field: "t".into(),
                    tags: ["a-b ", "*"].map(|t| Tag { text: t.into(), is_prefix: false }).into(),
                },
            ),
            ("@t:{\"a|b\"}", tags("t", &["a|b"])),
            ("@n:[1 (2.5]", n.clone()),
            ("@n:[1,(2.5]", n.clone()),
            ("@n:[-inf +inf]", range("n", Included(f64::NEG_INFINITY), Included(f64::INFINITY))),
            ("@t:{a} @n:[1 (2.5]", Node::And(vec![tags("t", &["a"]), n.clone()])),
            ("-@t:{a}", Node::Not(Box::new(tags("t", &["a"])))),
            (
                "(@t:{a} | @t:{b}) @n:[1 (2.5]",
                Node::And(vec![Node::Or(vec![tags("t", &["a"]), tags("t", &["b"])]), n]),
            ),
        ];
        for (text, node) in cases {
            assert_eq!(parse(text), Ok(node), "{text}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let cases = [
            ("hello", "full-text search for words"),
            ("@t:hello", "full-text search in a field"),
            ("~@t:{a}", "optional clause"),
            ("%word%", "fuzzy"),
            ("\"a b\"", "phrase"),
            ("@t:{$tag}", "parameter"),
            ("@n:[$lo 5]", "parameter"),
            ("@a|b:{x}", "several fields"),
            ("@n==5", "comparison"),
            ("@t:{*fix}", "within a tag"),
            ("(@t:{a})=>{$weight:2}", "=>"),
            ("", "a clause"),
            ("@t:{}", "a tag"),
            ("@t:{a", "or \"}\""),
            ("@n:[1]", "a number"),
            ("@n:[1 2", "\"]\""),
            ("(@t:{a}", "\")\""),
            ("@t:{a})", "the end"),
            ("@:{a}", "name of a field"),
        ];
        for (text, part) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse(&"(".repeat(100_000)).unwrap_err().contains("deeper"));
        assert!(parse(&"-".repeat(100_000)).unwrap_err().contains("deeper"));
        assert!(parse(&"* ".repeat(2000)).unwrap_err().contains("clauses"));
    }

    #[test]
    fn clauses_that_are_added_count_and_do_not_nest() {
        let clause = range("n", Bound::Unbounded, Bound::Unbounded);
        let mut node = parse("@t:{a|b}|@t:{c}").unwrap();
        let before = node.clauses();
        for _ in before..MAX_CLAUSES {
            node.narrow(clause.clone()).unwrap();
        }
        let Node::And(nodes) = &node else { panic!("{node:?}") };
        assert_eq!(nodes.len(), 1 + MAX_CLAUSES - before);
        assert!(node.narrow(clause).unwrap_err().contains("1024 clauses"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = parse(&text);
        }

        #[test]
        fn any_text_of_the_grammar_is_read_or_refused(text in r#"[-@a:{}|\[\](*1 "\\$é,~%=]*"#) {
            let _ = parse(&text);
        }
    }
}
