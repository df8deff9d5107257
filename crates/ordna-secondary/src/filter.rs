//! Filters: conditions that select the documents of an index.
//!
//! # Grammar
//! ```text
//! filter  = all { OR all }
//! all     = one { AND one }
//! one     = NOT one | ( filter ) | EXISTS field | field ( = | != | < | <= | > | >= ) literal
//! field   = letters, digits, `_`, `-`, `.`; or anything between backquotes
//! literal = number | 'text' | "text" | true | false | null
//! ```
//! Keywords are not case-sensitive. A quote within a text is written twice. A comparison is true
//! only if both values belong to the same class: numbers, texts or truth values; a text that looks
//! like a number also compares with a number. `!=` is true if the field exists and has any other
//! value.

use serde::{Deserialize, Serialize};

use ordna::tuple::{Value, encode};

use crate::document::Document;
use crate::error::Error;
use crate::values::{Kind, coerce, parse_number, same_class};

/// Maximum nesting depth of a filter.
const MAX_DEPTH: usize = 64;
/// Maximum number of conditions in a filter. Every condition is evaluated for every document that
/// is written.
const MAX_CONDITIONS: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Compare { field: String, operator: Operator, kind: Kind, literal: Vec<u8> },
    Exists(String),
    Not(Box<Test>),
    All(Vec<Test>),
    Any(Vec<Test>),
}

/// A condition that the documents of an index meet; see the [grammar](Filter::parse).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Filter {
    text: String,
    test: Test,
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.text
    }
}

impl TryFrom<String> for Filter {
    type Error = Error;

    /// Parses a stored filter. It may be older than the limit on conditions, so this limit does not
    /// apply.
    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse_up_to(usize::MAX, &text)
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Filter {
    /// Parses a filter such as `people >= 1000 AND (country = 'SE' OR NOT EXISTS country)`.
    ///
    /// Operators: `=`, `!=`, `<`, `<=`, `>`, `>=`, `EXISTS`, `NOT`, `AND`, `OR`. Literals: numbers,
    /// texts in quotes, `true`, `false`, `null`. A field name with characters other than letters,
    /// digits, `_`, `-` and `.` must be enclosed in backquotes. O(bytes).
    ///
    /// # Errors
    /// [`Error::BadFilter`] if the text is not a filter, or has more than 1,024 conditions.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::parse_up_to(MAX_CONDITIONS, text)
    }

    fn parse_up_to(conditions: usize, text: &str) -> Result<Self, Error> {
        let mut parser = Parser { text, at: 0, conditions };
        let test = parser.any(MAX_DEPTH)?;
        parser.blanks();
        if parser.at < text.len() {
            return Err(parser.error("AND, OR or the end"));
        }
        Ok(Self { text: text.to_owned(), test })
    }

    /// Returns whether a document passes the filter.
    pub fn passes(&self, document: &Document) -> bool {
        self.test.passes(document)
    }
}

impl Test {
    fn passes(&self, document: &Document) -> bool {
        match self {
            Self::Exists(field) => document.get(field).is_some(),
            Self::Not(test) => !test.passes(document),
            Self::All(tests) => tests.iter().all(|test| test.passes(document)),
            Self::Any(tests) => tests.iter().any(|test| test.passes(document)),
            Self::Compare { field, operator, kind, literal } => {
                let Some(value) = document.get(field) else { return false };
                let value =
                    encode(&*coerce(value, *kind).unwrap_or(std::borrow::Cow::Borrowed(value)));
                let same = same_class(&value, literal);
                match operator {
                    Operator::Equal => value == *literal,
                    Operator::NotEqual => value != *literal,
                    Operator::Less => same && value < *literal,
                    Operator::AtMost => same && value <= *literal,
                    Operator::Greater => same && value > *literal,
                    Operator::AtLeast => same && value >= *literal,
                }
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Number of further conditions that are allowed.
    conditions: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, expected: &'static str) -> Error {
        Error::BadFilter { at: self.at, expected }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Consumes these characters if they come next.
    fn symbol(&mut self, symbol: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(symbol);
        self.at += if found { symbol.len() } else { 0 };
        found
    }

    /// Consumes this word if it comes next.
    fn word(&mut self, word: &str) -> bool {
        self.blanks();
        let next = self.rest().split(|c| !is_of_name(c)).next().unwrap_or("");
        let found = next.eq_ignore_ascii_case(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn any(&mut self, depth: usize) -> Result<Test, Error> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error("a filter that is not nested deeper than 64 times"));
        };
        let mut alternatives = vec![self.all(depth)?];
        while self.word("OR") {
            alternatives.push(self.all(depth)?);
        }
        Ok(one_or(alternatives, Test::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Test, Error> {
        let mut tests = vec![self.one(depth)?];
        while self.word("AND") {
            tests.push(self.one(depth)?);
        }
        Ok(one_or(tests, Test::All))
    }

    fn one(&mut self, depth: usize) -> Result<Test, Error> {
        if self.word("NOT") {
            let depth = depth.checked_sub(1).ok_or_else(|| self.error("fewer negations"))?;
            return Ok(Test::Not(Box::new(self.one(depth)?)));
        }
        if self.symbol("(") {
            let test = self.any(depth)?;
            return if self.symbol(")") { Ok(test) } else { Err(self.error("\")\"")) };
        }
        self.conditions = self
            .conditions
            .checked_sub(1)
            .ok_or_else(|| self.error("the end: a filter has at most 1024 conditions"))?;
        if self.word("EXISTS") {
            return Ok(Test::Exists(self.field()?));
        }
        let field = self.field()?;
        let operators = [
            ("!=", Operator::NotEqual),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("=", Operator::Equal),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let found = operators.into_iter().find(|(symbol, _)| self.symbol(symbol));
        let (_, operator) = found.ok_or_else(|| self.error("an operator"))?;
        let literal = self.literal()?;
        let kind = match literal {
            Value::Number(_) => Kind::Number,
            Value::String(_) => Kind::Text,
            _ => Kind::Any,
        };
        Ok(Test::Compare { field, operator, kind, literal: encode(&literal) })
    }

    fn field(&mut self) -> Result<String, Error> {
        self.blanks();
        if self.rest().starts_with('`') {
            return self.quoted('`');
        }
        let name = self.rest().split(|c| !is_of_name(c)).next().unwrap_or("");
        if name.is_empty() {
            return Err(self.error("the name of a field"));
        }
        self.at += name.len();
        Ok(name.to_owned())
    }

    fn literal(&mut self) -> Result<Value, Error> {
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if self.word(word) {
                return Ok(value);
            }
        }
        if let Some(quote @ ('\'' | '"')) = self.rest().chars().next() {
            return Ok(Value::String(self.quoted(quote)?));
        }
        let end = |c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c));
        let digits = self.rest().split(end).next().unwrap_or("");
        let number = parse_number(digits).ok_or_else(|| self.error("a literal"))?;
        self.at += digits.len();
        Ok(Value::Number(number))
    }

    /// Returns the text between two quotes.
    fn quoted(&mut self, quote: char) -> Result<String, Error> {
        let mut text = String::new();
        let mut rest = self.rest().char_indices().skip(1).peekable();
        while let Some((at, c)) = rest.next() {
            if c != quote {
                text.push(c);
            } else if rest.next_if(|(_, next)| *next == quote).is_some() {
                text.push(quote);
            } else {
                self.at += at + 1;
                return Ok(text);
            }
        }
        Err(self.error("a text with an end"))
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

/// Returns the only test, or a combination of all of them.
fn one_or(mut tests: Vec<Test>, hold_snapshots: impl FnOnce(Vec<Test>) -> Test) -> Test {
    if tests.len() == 1 { tests.remove(0) } else { hold_snapshots(tests) }
}
