//! Generates commands from a grammar: valid, nearly valid, and extreme ones.
//!
//! Each line of [`FOR_ALL`] and [`FOR_ADMINS`] describes a command. Capital letters stand for
//! themselves, and a small letter for an argument (see [`Generator::argument`]). `[a|b]` is one of
//! the alternatives or nothing, `<a|b>` is one of them, and `{a}` repeats its content.

use crate::common::Random;

/// Commands that any user may execute.
pub const FOR_ALL: &[&str] = &[
    "APPEND k v",
    "BITCOUNT k [n n [BYTE|BIT]]",
    "BITFIELD k {<GET t n|SET t n n|INCRBY t n n|OVERFLOW <WRAP|SAT|FAIL>>}",
    "BITFIELD_RO k {GET t n}",
    "BITOP <AND|OR|XOR|NOT> k {k}",
    "BITPOS k <0|1> [n [n [BYTE|BIT]]]",
    "CLIENT <ID|GETNAME|INFO|LIST|TRACKINGINFO|GETREDIR|HELP>",
    "CLIENT KILL <n|ID n|TYPE NORMAL SKIPME YES>",
    "CLIENT LIST <TYPE NORMAL|ID {n}>",
    "CLIENT NO-EVICT <ON|OFF>",
    "CLIENT PAUSE n [WRITE|ALL]",
    "CLIENT SETINFO <LIB-NAME|LIB-VER> v",
    "CLIENT SETNAME v",
    "CLIENT UNBLOCK n [TIMEOUT|ERROR]",
    "COMMAND",
    "COMMAND <COUNT|HELP|LIST|DOCS>",
    "COMMAND <DOCS|INFO> {w}",
    "COMMAND GETKEYS {w}",
    "COMMAND LIST FILTERBY <MODULE w|ACLCAT w|PATTERN p>",
    "COPY k k [DB n] [REPLACE]",
    "DBSIZE",
    "DECR k",
    "DECRBY k n",
    "DEL {k}",
    "DELIFEQ k v",
    "DUMP k",
    "ECHO v",
    "EVAL v n {k}",
    "EVALSHA v n {k}",
    "EXISTS {k}",
    "EXPIRE k n [NX|XX|GT|LT]",
    "EXPIREAT k n [NX|XX|GT|LT]",
    "EXPIRETIME k",
    "FT._LIST",
    "FT.AGGREGATE i q [LOAD <*|2 @n t>] [GROUPBY n {f} {REDUCE <COUNT 0|SUM 1 @n> [AS w]}] [SORTBY n {f}] [LIMIT n n] [WITHCURSOR [COUNT n] [MAXIDLE n]] [TIMEOUT n]",
    "FT.ALTER i SCHEMA ADD {f <TAG|NUMERIC>}",
    "FT.CREATE w ON HASH PREFIX 1 doc: SCHEMA {f <TAG|NUMERIC>}",
    "FT.CURSOR <READ|DEL> i n [COUNT n]",
    "FT.EXPLAIN i q",
    "FT.INFO i",
    "FT.SEARCH i q {FILTER <@n|@n|f> n n}",
    "FT.SEARCH found * {FILTER @n n n}",
    "FT.SEARCH i q [NOCONTENT] [RETURN n {f}] [SORTBY n [DESC]] [LIMIT n n] [TIMEOUT n] [DIALECT n]",
    "GET k",
    "GETBIT k n",
    "GETDEL k",
    "GETEX k [EX n|PX n|EXAT n|PXAT n|PERSIST]",
    "GETRANGE k n n",
    "GETSET k v",
    "HDEL h {f}",
    "HEXISTS h f",
    "HEXPIRE h n [NX|XX|GT|LT] FIELDS n {f}",
    "HEXPIREAT h n FIELDS 1 f",
    "HEXPIRETIME h FIELDS n {f}",
    "HGET h f",
    "HGETALL h",
    "HGETDEL h FIELDS n {f}",
    "HGETEX h [EX n|PX n|EXAT n|PXAT n|PERSIST] FIELDS n {f}",
    "HINCRBY h f n",
    "HINCRBYFLOAT h f n",
    "HKEYS h",
    "HLEN h",
    "HMGET h {f}",
    "HMSET h {f v}",
    "HPERSIST h FIELDS n {f}",
    "HPEXPIRE h n [NX|XX|GT|LT] FIELDS 1 f",
    "HPEXPIREAT h n FIELDS 2 f f",
    "HPEXPIRETIME h FIELDS 1 f",
    "HPTTL h FIELDS n {f}",
    "HRANDFIELD h [n [WITHVALUES]]",
    "HSCAN h n [MATCH p] [COUNT n]",
    "HSET h {f v}",
    "HSETEX h [FNX|FXX] [EX n|PX n|EXAT n|PXAT n|KEEPTTL] FIELDS 1 f v",
    "HSETEX h FIELDS n {f v}",
    "HSETNX h f v",
    "HSTRLEN h f",
    "HTTL h FIELDS n {f}",
    "HVALS h",
    "INCR k",
    "INCRBY k n",
    "INCRBYFLOAT k n",
    "INFO {w}",
    "LASTSAVE",
    "LCS k k [LEN] [IDX] [MINMATCHLEN n] [WITHMATCHLEN]",
    "LOLWUT [VERSION n]",
    "MEMORY USAGE k [SAMPLES n]",
    "MGET {k}",
    "MSET {k v}",
    "MSETNX {k v}",
    "OBJECT <ENCODING|FREQ|IDLETIME|REFCOUNT> k",
    "ORDNA.AT n",
    "ORDNA.CEIL k",
    "ORDNA.COUNT r r",
    "ORDNA.DELRANGE [gone: (gone;",
    "ORDNA.FIRST",
    "ORDNA.FLOOR k",
    "ORDNA.INDEX COUNT i [EQ v] [FROM r] [TO r] [PREFIX w]",
    "ORDNA.INDEX CREATE w ON doc: PARTS {f} [WHERE x {<OR|AND> x}]",
    "ORDNA.INDEX <DROP w|INFO i|LIST>",
    "ORDNA.INDEX SCAN i {EQ v} [FROM r] [TO r] [REV] [DISTINCT n] [LIMIT n [n]] [CURSOR n] [VALUES] [TIMEOUT n]",
    "ORDNA.LAST",
    "ORDNA.PREFIX k [REV] [LIMIT n n] [KEYS]",
    "ORDNA.RANGE r r [REV] [LIMIT [n] n] [KEYS|WITHVALUES]",
    "ORDNA.RANK k",
    "ORDNA.SCAN n [START r] [END r] [COUNT n] [MATCH p]",
    "ORDNA.SNAPSHOT CREATE [EX n] [KEEP]",
    "ORDNA.SNAPSHOT <DROP w|LIST|HELP>",
    "ORDNA.SNAPSHOT GET s <k|h>",
    "ORDNA.SNAPSHOT RANGE s r r [REV] [LIMIT n n] [KEYS]",
    "PERSIST k",
    "PEXPIRE k n [NX|XX|GT|LT]",
    "PEXPIREAT k n",
    "PING [v]",
    "PSETEX k n v",
    "PTTL k",
    "RANDOMKEY",
    "RENAME k k",
    "RENAMENX k k",
    "RESTORE k n v [REPLACE] [ABSTTL] [IDLETIME n] [FREQ n]",
    "SCAN c [MATCH p] [COUNT n] [TYPE w] [STABLE]",
    "SCRIPT <LOAD v|EXISTS {w}|FLUSH|HELP>",
    "SELECT n",
    "SET k v [NX|XX|IFEQ v] [GET] [EX n|PX n|EXAT n|PXAT n|KEEPTTL]",
    "SETBIT k n <0|1>",
    "SETEX k n v",
    "SETNX k v",
    "SETRANGE k n v",
    "STRLEN k",
    "SUBSTR k n n",
    "TIME",
    "TOUCH {k}",
    "TTL k",
    "TYPE k",
    "UNLINK {k}",
    "UNWATCH",
    "WAIT n n",
    "WATCH {k}",
    "WATCH {l}",
    "w {v}",
];

/// Commands of administrators that do not disturb the checks.
pub const FOR_ADMINS: &[&str] = &[
    "ACL CAT [w]",
    "ACL DELUSER {other}",
    "ACL DRYRUN app {w}",
    "ACL GENPASS [n]",
    "ACL GETUSER w",
    "ACL <LIST|USERS|WHOAMI|HELP>",
    "ACL LOG [n|RESET]",
    "ACL SETUSER other {w}",
    "CONFIG GET {p}",
    "CONFIG RESETSTAT",
    "FLUSHDB w",
    "KEYS p",
    "LATENCY <DOCTOR|LATEST|HELP|RESET [w]|HISTORY w|HISTOGRAM {w}>",
    "MEMORY <DOCTOR|STATS|PURGE|MALLOC-STATS>",
    "ROLE",
    "SLOWLOG <GET [n]|LEN|RESET|HELP>",
];

/// Numbers at limits, and one below and one above each of them.
const LIMITS: &[i128] = &[
    0,
    7,
    63,
    64,
    512,
    1024,
    10_000,
    65_535,
    1_000_000,
    1 << 24,
    1 << 26,
    (1 << 29) - 12,
    1 << 29,
    1 << 31,
    1 << 32,
    8 << 29,
    (8 << 29) - 16,
    1 << 53,
    1 << 62,
    1 << 63,
    1 << 64,
];

/// Maximum size in bytes of a long argument, and of a whole command.
const LONG: usize = 4 << 20;
const WHOLE: usize = 8 << 20;

/// The unusual property of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Usual,
    /// Numbers at limits, long strings, and queries with many clauses.
    Extreme,
    /// Repeatable parts are repeated up to 100,000 times.
    Repeated,
    /// An argument is missing, doubled or replaced by another one.
    Mutated,
}

/// Generates commands from a seed.
pub struct Generator {
    random: Random,
    /// Size of the command so far in bytes.
    size: usize,
    mode: Mode,
    extreme: bool,
    /// The number of an existing snapshot.
    pub snapshot: Vec<u8>,
    /// The lines and modes of this round that have not been used yet.
    round: Vec<(&'static str, bool, Mode)>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        let (random, round) = (Random::new(seed), Vec::new());
        Self { random, size: 0, mode: Mode::Usual, extreme: false, snapshot: Vec::new(), round }
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }

    fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }

    /// Returns the next command, and whether it is a command of administrators. Each round has
    /// every line in every mode once, in random order.
    pub fn command(&mut self) -> (Vec<Vec<u8>>, bool) {
        if self.round.is_empty() {
            for mode in [Mode::Usual, Mode::Extreme, Mode::Repeated, Mode::Mutated] {
                let repeats = |line: &&&str| mode != Mode::Repeated || line.contains('{');
                self.round.extend(FOR_ALL.iter().filter(repeats).map(|line| (*line, false, mode)));
                self.round
                    .extend(FOR_ADMINS.iter().filter(repeats).map(|line| (*line, true, mode)));
            }
        }
        let (line, is_admin, mode) = self.round.swap_remove(self.random.below(self.round.len()));
        (self.size, self.mode) = (0, mode);
        self.extreme = mode == Mode::Extreme || mode == Mode::Mutated && self.one_in(2);
        let mut words = Vec::new();
        self.sequence(&mut line.as_bytes(), &mut words);
        if mode == Mode::Mutated {
            self.mutate(&mut words);
        }
        (words, is_admin)
    }

    /// Reads a sequence up to `|` or a closing bracket, and appends its words.
    fn sequence(&mut self, rest: &mut &[u8], words: &mut Vec<Vec<u8>>) {
        loop {
            match rest {
                [] | [b'|' | b']' | b'>' | b'}', ..] => return,
                [b' ', tail @ ..] => *rest = tail,
                [open @ (b'[' | b'<' | b'{'), tail @ ..] if is_group(*open, tail) => {
                    let (content, after) = tail.split_at(end_of(tail));
                    *rest = &after[1..];
                    match open {
                        b'[' => {
                            if !self.one_in(2) {
                                self.alternative(content, words);
                            }
                        }
                        b'<' => self.alternative(content, words),
                        _ => self.repeat(content, words),
                    }
                }
                _ => {
                    let end = rest.iter().position(|byte| b" |]>}".contains(byte));
                    let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                    *rest = after;
                    let word = match word {
                        [letter] if letter.is_ascii_lowercase() => self.argument(*letter),
                        word => word.to_vec(),
                    };
                    self.size += word.len() + 16;
                    words.push(word);
                }
            }
        }
    }

    fn alternative(&mut self, content: &[u8], words: &mut Vec<Vec<u8>>) {
        let mut parts = vec![content];
        loop {
            let last = parts.pop().unwrap_or_default();
            let mut depth = 0;
            let bar = last.iter().position(|byte| {
                match byte {
                    b'[' | b'<' | b'{' => depth += 1,
                    b']' | b'>' | b'}' => depth -= 1,
                    _ => {}
                }
                *byte == b'|' && depth == 0
            });
            let Some(bar) = bar else {
                parts.push(last);
                break;
            };
            parts.extend([&last[..bar], &last[bar + 1..]]);
        }
        let mut chosen = parts[self.below(parts.len())];
        self.sequence(&mut chosen, words);
    }

    fn repeat(&mut self, content: &[u8], words: &mut Vec<Vec<u8>>) {
        let times = match (self.mode, self.below(4)) {
            (Mode::Repeated, 0) => 100_000,
            (Mode::Repeated, 1) => 1 + self.below(60_000),
            (Mode::Repeated, _) => 1 + self.below(3000),
            _ => 1 + self.below(4),
        };
        for _ in 0..times {
            self.alternative(content, words);
            if self.size > WHOLE {
                break;
            }
        }
    }

    /// Omits an argument, doubles it, or replaces it.
    fn mutate(&mut self, words: &mut Vec<Vec<u8>>) {
        let at = self.below(words.len());
        match self.below(5) {
            0 if words.len() > 1 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 => words.push(self.argument(b'w')),
            _ => {
                let letter = b"kvnfprqiwh"[self.below(10)];
                let other = self.argument(letter);
                // The name of the command is kept.
                if at > 0 {
                    words[at] = other;
                }
            }
        }
    }

    fn number(&mut self) -> Vec<u8> {
        if !self.extreme {
            return self.below(12).to_string().into_bytes();
        }
        if self.one_in(12) {
            let words: [&[u8]; 9] =
                [b"", b"-", b"x", b"1.5", b"nan", b"-inf", b"1e308", b"0x10", b"00"];
            return words[self.below(9)].to_vec();
        }
        let limit = LIMITS[self.below(LIMITS.len())] + self.below(3) as i128 - 1;
        let sign = if self.one_in(3) { -1 } else { 1 };
        (sign * limit).to_string().into_bytes()
    }

    /// Returns bytes that do not begin like the stored form of a hash.
    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.below(if self.extreme { 14 } else { 60 }) {
            0 => LONG,
            1 => 65_535,
            2 => 1 << 16,
            3 => 1 << 20,
            4 | 5 => 0,
            6..9 => 1000,
            _ => 1 + self.below(30),
        };
        let length = length.min(WHOLE.saturating_sub(self.size));
        let byte = [b'x', b'7', 0, b'*', 0xFF, b'['][self.below(6)];
        vec![byte; length]
    }

    /// Returns an argument for a letter: `k` key, `h` key of a hash, `l` long key, `f` field, `v`
    /// value, `n` number, `s` snapshot, `c` cursor, `t` type of a bit field, `p` pattern, `r`
    /// bound, `i` index, `q` query, `x` condition, `w` any word.
    fn argument(&mut self, letter: u8) -> Vec<u8> {
        let some = |words: &[&str], at: usize| words[at % words.len()].as_bytes().to_vec();
        let at = self.below(1 << 20);
        match letter {
            b'k' if self.one_in(24) => self.bytes(),
            b'k' if self.one_in(6) => format!("gone:{}", at % 50).into_bytes(),
            b'k' => {
                some(&["big", "a", "b", "int", "hash", "table", "doc:7", "absent", "bulk:77"], at)
            }
            b'h' if self.one_in(8) => self.argument(b'k'),
            b'h' => some(&["hash", "table", "doc:1", "doc:2", "absent"], at),
            b'l' => [&at.to_be_bytes()[..], &[b'l'; 60_000]].concat(),
            b'f' if self.one_in(20) => self.bytes(),
            b'f' if self.one_in(3) => format!("field:{}", at % 5000).into_bytes(),
            b'f' => some(&["n", "t", "@n", "f"], at),
            b'v' if self.one_in(4) => self.number(),
            b'v' => self.bytes(),
            b'n' => self.number(),
            b's' if self.one_in(4) => self.number(),
            b's' => self.snapshot.clone(),
            b'c' => some(&["0", "0", "0", "1", "18446744073709551615"], at),
            b't' => some(&["u8", "i64", "u63", "i1", "u1", "u64", "i0", "x"], at),
            b'p' if self.extreme => {
                let piece = some(&["*", "?", "[a-z]", "*a", "x", "\\x", "[^", "a*"], at);
                let times = [1, 30, 70_000, 1 << 20][self.below(4)];
                piece.repeat(times)
            }
            b'p' => some(&["*", "bulk:7*", "*9", "[a-h]*", "nothing", "*:*"], at),
            b'r' if self.one_in(6) => [b"[", &self.argument(b'k')[..]].concat(),
            b'r' => some(&["-", "+", "[bulk:1", "(bulk:2", "[a", "(z", "x"], at),
            b'i' => some(&["found", "found", "parts", "absent"], at),
            b'q' if self.extreme => {
                let (piece, join) = match self.below(8) {
                    0 => ("@n:[-inf +inf]", " "),
                    1 => ("@n:[-inf +inf]", "|"),
                    2 => ("@t:{a|b*}", " "),
                    3 => ("-", ""),
                    4 => ("(", ""),
                    5 => ("@t:{", ""),
                    6 => ("*", "|"),
                    _ => ("(@n:[1 2]|@t:{a})", " "),
                };
                let times = [10, 1000, 1024, 1025, 30_000][self.below(5)];
                let pieces = vec![piece; times];
                pieces.join(join).into_bytes()
            }
            b'q' => some(&["*", "@n:[1 50]", "@t:{a}", "-@t:{b}", "@n:[-inf +inf]", "(", "x"], at),
            b'x' => some(&["n = 1", "t != 'a'", "NOT n < 5", "EXISTS t", "((n = 2))", "n"], at),
            _ if self.one_in(16) => self.bytes(),
            _ => some(
                &[
                    "GET",
                    "all",
                    "string",
                    "keyspace",
                    "commandstats",
                    "*",
                    "COUNT",
                    "LIMIT",
                    "-1",
                    "@read",
                    "+@all",
                    "allkeys",
                    "other",
                    "second",
                    "~x*",
                    "get",
                    "config|get",
                    "REV",
                    "MATCH",
                    "STABLE",
                    "1",
                    "AND",
                    "doc:",
                ],
                at,
            ),
        }
    }
}

/// Returns whether a bracket opens a group. A bound such as `[gone:` or `(gone;` is a word.
fn is_group(open: u8, tail: &[u8]) -> bool {
    let close = match open {
        b'[' => b']',
        b'<' => b'>',
        _ => b'}',
    };
    tail.contains(&close)
}

/// Returns the position of the bracket that closes the group with this content.
fn end_of(content: &[u8]) -> usize {
    let mut depth = 0;
    let end = content.iter().position(|byte| {
        match byte {
            b'[' | b'<' | b'{' => depth += 1,
            b']' | b'>' | b'}' => depth -= 1,
            _ => {}
        }
        depth < 0
    });
    end.unwrap_or(content.len())
}
