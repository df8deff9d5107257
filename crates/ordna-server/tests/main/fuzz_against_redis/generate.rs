//! Generates sequences of commands from their descriptions: valid, nearly valid and extreme ones.

use super::differences::{ORDNA, is_generated, tame};
use super::documents::{Argument, Document};
use crate::common::Random;

/// A command of one of the clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub client: usize,
    pub words: Vec<Vec<u8>>,
}

/// Number of connections of a sequence.
pub const CLIENTS: usize = 2;

/// Generates sequences.
pub struct Generator<'a> {
    documents: Vec<&'a Document>,
    /// Positions in `documents`, repeated by weight.
    weighted: Vec<usize>,
    /// Payloads from `DUMP`.
    payloads: &'a [Vec<u8>],
    pub random: Random,
}

const KEYS: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"e", b"f", b"", b"k\0\r\n\xFF"];
const FIELDS: [&[u8]; 8] = [b"f", b"g", b"h", b"i", b"j", b"1", b"", b"\xFF\0"];

/// Numbers at the limits of types and of commands, each with its neighbours, and texts that only
/// look like numbers.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "5",
    "7",
    "8",
    "9",
    "10",
    "15",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "65",
    "99",
    "100",
    "127",
    "128",
    "129",
    "255",
    "256",
    "257",
    "511",
    "512",
    "513",
    "1000",
    "10000",
    "65535",
    "65536",
    "-1",
    "-2",
    "-3",
    "-8",
    "-100",
    "2147483646",
    "2147483647",
    "2147483648",
    "-2147483647",
    "-2147483648",
    "-2147483649",
    "4294967294",
    "4294967295",
    "4294967296",
    "4294967297",
    "536870911",
    "536870912",
    "536870913",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775",
    "9223372036854776",
    "99999999999",
    "99999999999999",
    "340282366920938463463374607431768211456",
    "01",
    "-0",
    "+1",
    " 1",
    "1 ",
    "",
    "-",
    "1.5",
    "0x10",
    "1e3",
    "one",
    "nan",
    "inf",
];
const DOUBLES: &[&str] = &[
    "0",
    "1",
    "-1",
    "0.1",
    "-0.1",
    "10.5",
    "3.0",
    "5.0e3",
    "1e-17",
    "1e17",
    "1e30",
    "-1e30",
    "1e4932",
    "1e4933",
    "-1e4933",
    "1e5000",
    "3.3e-10",
    "0.333333333333333333333",
    "9223372036854775807",
    "-9223372036854775808",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "0x1p-3",
    "",
    " 1",
    "1 ",
    "+1",
    "1.",
    ".5",
    "1e",
    "--1",
    "infinity",
    "1,5",
    "00.5",
    "-0",
    "1e-4951",
    "1e-5000",
];
/// Patterns. None consists of several stars only, because in Redis that does not match an empty
/// key.
const PATTERNS: &[&str] = &[
    "*", "a", "?", "[ab]", "[^a]", "[a-c]", "[c-a]", "\\*", "a*", "a**", "**a", "", "[", "[a",
    "a\\", "h?", "[^", "*a*b*", "[]", "[a-]", "[\\a]",
];
/// Patterns that name a key or a field for each element.
const KEY_PATTERNS: &[&str] = &[
    "#", "nosort", "*", "*->f", "a->*", "*->", "*->1", "1*", "**", "a*->g", "*\0->f", "->*", "*-",
];
const ENCODINGS: &[&str] = &[
    "u8", "i8", "u1", "i1", "u2", "i5", "u4", "i16", "u16", "u31", "u32", "i32", "u63", "i63",
    "i64", "u64", "i65", "u0", "i0", "x8", "u", "", "U8", "u-1", "i+8", "u08", "u8x",
];
/// Words that some command accepts.
const WORDS: &[&str] = &[
    "NX",
    "XX",
    "GT",
    "LT",
    "GET",
    "SET",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "REPLACE",
    "ABSTTL",
    "IDLETIME",
    "FREQ",
    "DB",
    "MATCH",
    "COUNT",
    "TYPE",
    "BYTE",
    "BIT",
    "LEN",
    "IDX",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "WITHVALUES",
    "OVERFLOW",
    "WRAP",
    "SAT",
    "FAIL",
    "INCRBY",
    "AND",
    "OR",
    "XOR",
    "NOT",
    "ASYNC",
    "SYNC",
    "string",
    "hash",
    "list",
    "SAMPLES",
    "HELP",
    "CH",
    "INCR",
    "WITHSCORES",
    "LIMIT",
    "BYSCORE",
    "BYLEX",
    "REV",
    "WEIGHTS",
    "AGGREGATE",
    "MIN",
    "MAX",
    "LEFT",
    "RIGHT",
    "ASC",
    "DESC",
    "ALPHA",
    "BY",
    "STORE",
    "BEFORE",
    "AFTER",
    "RANK",
    "MAXLEN",
    "set",
    "zset",
];
/// Bounds of ranges of scores, members and positions.
const ENDS: &[&str] = &[
    "-", "+", "[a", "(a", "[b", "(b", "[m", "(", "[", "a", "0", "1", "-1", "-2", "(1", "(2", "(-1",
    "inf", "-inf", "+inf", "(inf", "(-inf", "5", "2.5", "(nan", "nan", "100", "(x", "-100",
];
/// Members of sets and sorted sets, and values of lists.
const MEMBERS: [&str; 14] =
    ["a", "b", "c", "m", "1", "2", "-3", "10", "", "aa", "ab", "9223372036854775807", "01", "\0x"];

impl<'a> Generator<'a> {
    pub fn new(documents: &'a [Document], payloads: &'a [Vec<u8>], seed: u64) -> Self {
        let documents: Vec<&Document> =
            documents.iter().filter(|document| is_generated(document)).collect();
        let weight = |document: &Document| match document.group.as_str() {
            "string" | "hash" | "bitmap" => 12,
            "list" | "set" | "sorted-set" => 8,
            "generic" => 9,
            "transactions" => 10,
            _ => 1,
        };
        let weighted = documents.iter().enumerate();
        let weighted = weighted.flat_map(|(at, document)| vec![at; weight(document)]).collect();
        Self { documents, weighted, payloads, random: Random::new(seed) }
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.random.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len())].clone()
    }

    /// Returns a sequence, and whether to send it as one pipeline of one client.
    pub fn sequence(&mut self) -> (Vec<Step>, bool) {
        let pipeline = self.one_in(3);
        let mut steps = Vec::new();
        if self.one_in(2) {
            for client in 0..CLIENTS {
                steps.push(Step { client, words: vec![b"HELLO".to_vec(), b"3".to_vec()] });
            }
        }
        for _ in 0..10 + self.random.below(40) {
            let client = if !pipeline && self.one_in(5) { 1 } else { 0 };
            steps.push(Step { client, words: self.command() });
            // A transaction in which another client may interfere.
            if self.one_in(25) {
                let plain =
                    |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
                if self.one_in(2) {
                    let key = self.key();
                    steps.push(Step { client: 0, words: vec![b"WATCH".to_vec(), key] });
                    if !pipeline && self.one_in(2) {
                        steps.push(Step { client: 1, words: self.command() });
                    }
                }
                steps.push(Step { client: 0, words: plain(&["MULTI"]) });
                for _ in 0..self.random.below(6) {
                    let client = if !pipeline && self.one_in(6) { 1 } else { 0 };
                    steps.push(Step { client, words: self.command() });
                }
                steps.push(Step { client: 0, words: plain(&["EXEC"]) });
            }
        }
        if pipeline {
            steps.retain(|step| step.client == 0);
        }
        (steps, pipeline)
    }

    /// Returns a command.
    fn command(&mut self) -> Vec<Vec<u8>> {
        let position = self.pick(&self.weighted.clone());
        let document = self.documents[position];
        let mut words: Vec<Vec<u8>> =
            document.name.split('|').map(|word| word.as_bytes().to_vec()).collect();
        if self.one_in(3) {
            words[0].make_ascii_uppercase();
        }
        let names = words.len();
        self.arguments(&document.arguments, &mut words);
        if document.name.starts_with("command|getkeys") {
            // Appends the words of another command.
            words.extend(self.command());
        }
        if self.one_in(5) {
            for _ in 0..1 + self.random.below(2) {
                self.mutate(&mut words, names);
            }
        }
        tame(&mut words);
        words
    }

    /// Changes a command so that it is nearly valid.
    fn mutate(&mut self, words: &mut Vec<Vec<u8>>, names: usize) {
        let at = names + self.random.below((words.len() - names).max(1));
        let is_inside = at < words.len();
        match self.random.below(8) {
            0 if is_inside => {
                words.remove(at);
            }
            1 if is_inside => {
                let word = words[at].clone();
                words.insert(at, word);
            }
            2 if at + 1 < words.len() => words.swap(at, at + 1),
            3 if is_inside => words[at] = self.any_word(),
            4 => {
                let word = self.any_word();
                words.insert(at.min(words.len()), word);
            }
            5 if is_inside => {
                let length = words[at].len();
                words[at].truncate(self.random.below(length + 1));
            }
            // Repeats the options once or many times.
            6 if is_inside => {
                let tail = words[at..].to_vec();
                let times = if self.one_in(20) { 1000 } else { 1 + self.random.below(3) };
                (0..times).for_each(|_| words.extend_from_slice(&tail));
            }
            _ => {
                let word = self.any_word();
                words.push(word);
            }
        }
    }

    fn any_word(&mut self) -> Vec<u8> {
        match self.random.below(6) {
            0 => self.key(),
            1 => self.pick(NUMBERS).into(),
            2 | 3 => self.pick(WORDS).into(),
            4 => self.pick(PATTERNS).into(),
            _ => self.value(),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        // The first keys are the most frequent, so that commands use the same ones.
        let end = if self.one_in(3) { KEYS.len() } else { 3 };
        self.pick(&KEYS[..end]).to_vec()
    }

    /// Returns a member of a set. Some members are frequent, and some are from a large range.
    fn member(&mut self) -> Vec<u8> {
        match self.one_in(4) {
            true => self.random.below(400).to_string().into(),
            false => self.pick(&MEMBERS).into(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.below(10) {
            0..3 => self.pick(NUMBERS).into(),
            3 => self.pick(DOUBLES).into(),
            4..7 => self
                .pick(&["x", "hello", "ohmytext", "mynewtext", "abc", "\u{e4}\u{f6}", "a b", "\0"])
                .into(),
            7 => Vec::new(),
            8 => (0..self.random.below(70)).map(|_| self.random.below(256) as u8).collect(),
            _ => {
                let length = self.pick(&[20, 21, 44, 45, 63, 64, 65, 100, 512, 5000]);
                vec![b'a' + self.random.below(3) as u8; length]
            }
        }
    }

    fn arguments(&mut self, all: &[Argument], words: &mut Vec<Vec<u8>>) {
        for argument in all {
            if argument.since == ORDNA || argument.optional && self.one_in(2) {
                continue;
            }
            self.argument(argument, words);
        }
    }

    fn argument(&mut self, argument: &Argument, words: &mut Vec<Vec<u8>>) {
        let times = match (argument.multiple, self.random.below(12)) {
            (true, 0..6) => 2 + self.random.below(3),
            (true, 6) => 140,
            _ => 1,
        };
        for time in 0..times {
            if let Some(token) = &argument.token
                && (time == 0 || argument.multiple_token)
            {
                let mut token = token.clone();
                if self.one_in(3) {
                    token.make_ascii_lowercase();
                }
                words.push(token);
            }
            match argument.kind.as_str() {
                "pure-token" => {}
                "oneof" => {
                    let shared: Vec<&Argument> =
                        argument.nested.iter().filter(|nested| nested.since != ORDNA).collect();
                    let chosen = self.pick(&shared);
                    self.argument(chosen, words);
                }
                "block" => self.arguments(&argument.nested, words),
                _ => {
                    let value = self.value_of(argument);
                    words.push(value);
                }
            }
        }
    }

    fn value_of(&mut self, argument: &Argument) -> Vec<u8> {
        match (argument.kind.as_str(), argument.name.as_str()) {
            ("key", _) => self.key(),
            // Usually a short time limit; `tame` replaces long ones.
            ("double", "timeout") if !self.one_in(3) => {
                self.pick(&["0.001", "0.002", ".001", "1e-3"]).into()
            }
            ("double", "score" | "weight") if !self.one_in(4) => {
                self.pick(&["0", "1", "2", "3", "-1", "1.5", "2", "1"]).into()
            }
            (_, "min" | "max") | ("string", "start" | "stop") if !self.one_in(8) => {
                self.pick(ENDS).into()
            }
            (_, "member" | "element" | "pivot") if !self.one_in(6) => self.member(),
            (_, "numkeys") if !self.one_in(6) => self.pick(&["1", "2", "3"]).into(),
            (_, "cursor") if !self.one_in(8) => b"0".to_vec(),
            (_, "destination-db" | "index") if !self.one_in(4) => b"0".to_vec(),
            (_, "bit") if !self.one_in(4) => self.pick(&["0", "1"]).into(),
            ("integer", "value") if !self.one_in(4) => self.pick(&["0", "1"]).into(),
            ("integer", "offset") if self.one_in(3) => format!("#{}", self.random.below(9)).into(),
            ("integer", "seconds" | "milliseconds" | "ttl") if !self.one_in(3) => {
                self.pick(&["100000", "200000", "300000", "9000000"]).into()
            }
            ("integer", "count") if !self.one_in(3) => {
                self.pick(&["1", "2", "-1", "-2", "5", "1000", "0"]).into()
            }
            ("integer", _) => match self.one_in(3) {
                true => self.pick(NUMBERS).into(),
                false => (self.random.below(30) as i64 - 10).to_string().into(),
            },
            ("unix-time", _) if !self.one_in(3) => self
                .pick(&["99999999999", "99999999999999", "1", "33177117420000", "4102444800"])
                .into(),
            ("unix-time", _) => self.pick(NUMBERS).into(),
            ("double", _) => self.pick(DOUBLES).into(),
            // A pattern of SORT.
            ("pattern", "pattern") if !self.one_in(4) => self.pick(KEY_PATTERNS).into(),
            ("pattern", _) => self.pick(PATTERNS).into(),
            (_, "encoding") => self.pick(ENCODINGS).into(),
            (_, "field") => self.pick(&FIELDS).to_vec(),
            (_, "operation") => self.pick(&["AND", "or", "XOR", "not", "NOT", "NAND"]).into(),
            (_, "type") => self.pick(&["string", "hash", "list", "STRING", "", "x"]).into(),
            (_, "serialized-value") => {
                let mut payload = self.pick(self.payloads);
                if self.one_in(6) && !payload.is_empty() {
                    let at = self.random.below(payload.len());
                    payload[at] ^= 1 << self.random.below(8);
                }
                payload
            }
            (_, "connection-name") => self.pick(&["me", "", "a b", "\n", "~", "\u{7f}"]).into(),
            (_, "section") => self.pick(&["server", "ALL", "nope", "everything"]).into(),
            _ => self.value(),
        }
    }
}
