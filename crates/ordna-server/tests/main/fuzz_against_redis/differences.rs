//! Commands that are not generated, comparisons other than byte for byte, and differences that
//! replies may have, each with its reason.

use super::documents::Document;
use super::frame::Frame;

/// Commands and subcommands that are not generated, and the reason.
const NOT_GENERATED: &[(&str, &str)] = &[
    ("subscribe", "changes what is allowed; random_messages_against_redis"),
    ("psubscribe", "changes what is allowed; random_messages_against_redis"),
    ("ssubscribe", "changes what is allowed; random_messages_against_redis"),
    ("unsubscribe", "several replies; random_messages_against_redis"),
    ("punsubscribe", "several replies; random_messages_against_redis"),
    ("sunsubscribe", "several replies; random_messages_against_redis"),
    ("shutdown", "ends the server"),
    ("monitor", "has no end; tests of its own"),
    ("quit", "ends the connection; broken_requests_end_as_in_redis has it"),
    ("auth", "delays the connection; tests of users have it"),
    ("hello", "begins sequences; its reply has the number of the connection"),
    ("save", "Ordna needs a directory"),
    ("bgsave", "Ordna needs a directory"),
    ("bgrewriteaof", "Ordna needs a directory"),
    ("eval", "random texts are not scripts; scripts_answer_as_in_redis"),
    ("evalsha", "random texts are not scripts; scripts_answer_as_in_redis"),
    ("eval_ro", "random texts are not scripts; scripts_answer_as_in_redis"),
    ("evalsha_ro", "random texts are not scripts; scripts_answer_as_in_redis"),
    ("script|load", "random texts are not scripts; scripts_answer_as_in_redis"),
    ("acl|setuser", "compared by random rules elsewhere"),
    ("acl|deluser", "compared by random rules elsewhere"),
    ("acl|load", "no file of users here"),
    ("acl|save", "no file of users here"),
    ("acl|genpass", "random"),
    ("acl|cat", "the order of categories and commands; compared elsewhere"),
    ("acl|log", "the entries of sequences before"),
    ("config|set", "settings of memory, log and threads differ"),
    ("config|get", "settings of memory, log and threads differ"),
    ("config|rewrite", "compared elsewhere: no configuration file"),
    ("client|pause", "stops both clients"),
    ("client|kill", "ends connections"),
    ("client|reply", "has no reply to compare"),
    ("client|list", "addresses and numbers"),
    ("client|info", "addresses and numbers"),
    ("client|id", "numbers"),
    ("client|setinfo", "Redis 7.2"),
    ("client|no-touch", "Redis 7.2"),
    ("client|tracking", "Ordna does not track keys"),
    ("command|docs", "compared as a whole elsewhere"),
    ("command|info", "compared as a whole elsewhere"),
    ("command|list", "compared as a whole elsewhere"),
    ("command|count", "the number of commands"),
    ("info", "figures; tests of its own"),
    ("lastsave", "the time of the start"),
    ("time", "the time"),
    ("latency|histogram", "figures"),
    ("latency|doctor", "a text"),
    ("latency|graph", "figures"),
    ("latency|latest", "figures"),
    ("latency|history", "figures"),
    ("memory|doctor", "a text"),
    ("memory|malloc-stats", "a text"),
    ("memory|stats", "figures"),
    ("memory|usage", "figures"),
    ("slowlog|get", "times"),
    ("slowlog|len", "how much was slow"),
    ("lolwut", "a picture"),
    ("wait", "waits; the conversation has it"),
    ("role", "the conversation has it"),
    ("replicaof", "followers are started as such"),
    ("slaveof", "followers are started as such"),
    ("spop", "random; the conversation has it"),
];

/// Version of Ordna that introduced the features that Redis does not have.
pub const ORDNA: &str = "0.1.0";

/// Commands of Redis 7.4 and 8, which the Redis of the tests lacks.
pub const NEWER: [&str; 12] = [
    "hexpire",
    "hexpireat",
    "hexpiretime",
    "hgetdel",
    "hgetex",
    "hpersist",
    "hpexpire",
    "hpexpireat",
    "hpexpiretime",
    "hpttl",
    "hsetex",
    "httl",
];

/// Commands that have an additional option, and so another arity, since a later version of Redis.
pub const LONGER: [&str; 2] = ["zrank", "zrevrank"];

/// Returns whether the generator makes this command: Redis has it, and its replies can be compared.
pub fn is_generated(document: &Document) -> bool {
    let ours = ["ordna", "search"].contains(&document.group.as_str()) || document.since == ORDNA;
    // The lines of HELP describe Ordna's own subcommands.
    let is_help = document.name.ends_with("|help");
    let is_newer = NEWER.contains(&document.name.as_str());
    !ours && !is_newer && !is_help && !NOT_GENERATED.iter().any(|(name, _)| *name == document.name)
}

fn number(word: &[u8]) -> Option<i128> {
    std::str::from_utf8(word).ok()?.trim_start_matches('#').parse().ok()
}

/// Replaces the time limit of a blocking command by a short one, unless it is an error.
fn tame_timeout(name: &[u8], words: &mut [Vec<u8>]) {
    /// Time limits in seconds that a sequence may use, and the smallest one that is out of range.
    /// Redis accepts some that are just below it, although their deadline overflows.
    const ALLOWED: std::ops::Range<f64> = 0.0001..0.01;
    const TOO_MANY: f64 = 9.3e15;
    let at = match name {
        b"blpop" | b"brpop" | b"bzpopmin" | b"bzpopmax" => words.len() - 1,
        b"blmove" => 5,
        b"brpoplpush" => 3,
        b"blmpop" | b"bzmpop" => 1,
        _ => return,
    };
    let Some(word) = words.get_mut(at).filter(|_| at > 0) else { return };
    let text = String::from_utf8_lossy(word).to_ascii_lowercase();
    let is_harmless = match text.parse::<f64>() {
        Ok(seconds) => {
            seconds.is_nan()
                || seconds <= -0.001
                || seconds > TOO_MANY
                || ALLOWED.contains(&seconds)
        }
        Err(_) => !text.contains("0x"),
    };
    if !is_harmless {
        *word = b"0.001".to_vec();
    }
}

/// Replaces numbers that would make the results depend on the clock, or take much time or memory.
pub fn tame(words: &mut Vec<Vec<u8>>) {
    /// Minimum number of milliseconds, so that no deadline passes during a sequence.
    const SOON: i128 = 60_000;
    /// Position from which on a string counts as large.
    const FAR: i128 = 100_000;
    let name = words[0].to_ascii_lowercase();
    let (milliseconds, seconds): (&[&[u8]], &[&[u8]]) =
        (&[b"psetex", b"pexpire", b"restore"], &[b"setex", b"expire"]);
    tame_timeout(&name, words);
    // Since Redis 7.2, another word may follow.
    if LONGER.iter().any(|longer| longer.as_bytes() == name) {
        words.truncate(3);
    }
    // In Redis, equal texts have no defined order, so a list of them would differ.
    if name == b"sort" && has_option(words, "alpha") && has_option(words, "store") {
        for word in words.iter_mut().skip(2).filter(|word| word.eq_ignore_ascii_case(b"by")) {
            *word = b"asc".to_vec();
        }
    }
    let writes_at: &[&[u8]] = &[b"setbit", b"setrange", b"bitfield", b"bitfield_ro"];
    for at in 1..words.len() {
        // In Redis, several stars do not match an empty key, although a single one does.
        if words[at].len() > 1 && words[at].iter().all(|byte| *byte == b'*') {
            words[at].truncate(1);
        }
        let option = words[at - 1].to_ascii_lowercase();
        let Some(value) = number(&words[at]) else { continue };
        let soon = milliseconds.contains(&name.as_slice()) || option == b"px";
        let is_seconds = seconds.contains(&name.as_slice()) || option == b"ex";
        if soon && (1..SOON).contains(&value) || is_seconds && (1..SOON / 1000).contains(&value) {
            words[at] = b"100000".to_vec();
        }
        // Redis creates as many elements as requested.
        let draws: [&[u8]; 3] = [b"hrandfield", b"srandmember", b"zrandmember"];
        if draws.contains(&name.as_slice()) && (i128::from(i64::MIN) + 1..-10_000).contains(&value)
        {
            words[at] = b"-100".to_vec();
        }
        // The deadline would overflow; in Redis, the key expires at once.
        if name == b"restore" && value > 1 << 62 {
            words[at] = b"4611686018427387904".to_vec();
        }
        let is_far = writes_at.contains(&name.as_slice());
        if is_far && value.abs() >= FAR && value.abs() < 1 << 36 {
            let limit =
                name == b"setrange" && value >= 1 << 29 || name == b"setbit" && value >= 1 << 32;
            if !limit {
                words[at] =
                    if words[at].starts_with(b"#") { b"#100".to_vec() } else { b"1000".to_vec() };
            }
        }
    }
}

/// The way in which the replies to a command are compared.
enum Comparison {
    /// Byte for byte.
    Exact,
    /// The elements in any order, because in Redis neither hashes nor the keyspace have an order.
    Unordered,
    /// Pairs in any order.
    UnorderedPairs,
    /// The type and the number of elements, because the elements are random.
    Shape,
    /// Times that may differ by this much, because they advance.
    Within(i64),
}

fn comparison(name: &str) -> Comparison {
    match name {
        "keys" | "hkeys" | "hvals" | "smembers" | "sinter" | "sunion" | "sdiff" => {
            Comparison::Unordered
        }
        "hgetall" => Comparison::UnorderedPairs,
        "randomkey" | "hrandfield" | "srandmember" | "zrandmember" => Comparison::Shape,
        "ttl" | "expiretime" => Comparison::Within(1),
        "pttl" | "pexpiretime" => Comparison::Within(2_000),
        "object|idletime" => Comparison::Within(1),
        _ => Comparison::Exact,
    }
}

/// A command and its two replies, which differ.
pub struct Case<'a> {
    /// Name of the command, for example `get` or `object|encoding`.
    pub name: String,
    pub words: &'a [Vec<u8>],
    pub redis: &'a Frame,
    pub ours: &'a Frame,
}

/// A stated difference: its reason, and a function that returns whether it explains a case.
type Difference = (&'static str, fn(&Case<'_>) -> bool);

/// All stated differences.
const STATED: &[Difference] = &[
    ("DUMP of a collection has the elements in the order of the server's memory", |case| {
        let kind = |frame: &Frame| match frame.text.first() {
            Some(4 | 16) => 4,
            Some(2 | 11) => 2,
            Some(5 | 17) => 5,
            Some(18) => 18,
            _ => 0,
        };
        case.name == "dump" && kind(case.redis) > 0 && kind(case.redis) == kind(case.ours)
    }),
    ("HELLO returns the number of the connection", |case| {
        let (redis, ours) = (&case.redis.items, &case.ours.items);
        let same = |(a, b): (&Frame, &Frame)| a == b || a.kind == b':' && b.kind == b':';
        case.name == "hello" && redis.len() == ours.len() && redis.iter().zip(ours).all(same)
    }),
    ("error texts are UTF-8: other bytes of an argument are shown as U+FFFD", |case| {
        let text = |frame: &Frame| String::from_utf8_lossy(&frame.text).into_owned();
        case.redis.is_error() && case.ours.is_error() && text(case.redis) == text(case.ours)
    }),
    ("an error text shows all of an argument, and in Redis ends at a byte 0", |case| {
        let has_zero = case.words.iter().any(|word| word.contains(&0));
        let begin = |frame: &Frame| frame.text.get(..10).map(<[u8]>::to_vec);
        has_zero
            && case.redis.is_error()
            && case.ours.is_error()
            && begin(case.redis) == begin(case.ours)
    }),
    ("reads are not tracked, because a read writes nothing", |case| {
        case.name == "object|idletime" && case.redis.kind == b':' && case.ours.is_error()
    }),
    ("Redis shares values: integers below 10000, and those that a queued command holds", |case| {
        let is_count = |frame: &Frame| frame.integer().is_some_and(|count| count > 0);
        case.name == "object|refcount" && is_count(case.redis) && is_count(case.ours)
    }),
    ("Ordna lacks some commands of Redis", |case| {
        let is_unknown = case.ours.text == b"ERR Invalid command specified";
        case.name.starts_with("command|getkeys")
            && is_unknown
            && case.redis.text.ends_with(b"key arguments")
    }),
    ("ZRANK and ZREVRANK have one more argument since Redis 7.2: WITHSCORE", |case| {
        let is_rank = |word: &Vec<u8>| {
            word.eq_ignore_ascii_case(b"zrank") || word.eq_ignore_ascii_case(b"zrevrank")
        };
        case.name.starts_with("command|getkeys")
            && case.words.get(2).is_some_and(is_rank)
            && case.words.len() == 6
            && case.redis.text == b"ERR Invalid number of arguments specified for command"
    }),
    (
        "COMMAND GETKEYS of Redis reads the number of keys modulo 2^32, and as far as it is one",
        |case| {
            let is_beyond = |word: &Vec<u8>| {
                let begins = word.trim_ascii_start().first();
                let is_plain = number(word).is_some_and(|it| {
                    i32::try_from(it).is_ok() && it.to_string().as_bytes() == word.as_slice()
                });
                begins.is_some_and(|byte| byte.is_ascii_digit() || b"+-".contains(byte))
                    && !is_plain
            };
            case.name.starts_with("command|getkeys")
                && case.ours.text == b"ERR Invalid arguments specified for command"
                && case.words.iter().any(is_beyond)
        },
    ),
    (
        "DBSIZE counts expired keys until they are removed; Redis removes those that it accesses",
        |case| {
            let counts = case.redis.integer().zip(case.ours.integer());
            // Only few keys of a sequence expire.
            case.name == "dbsize" && counts.is_some_and(|(redis, ours)| redis.abs_diff(ours) <= 3)
        },
    ),
    ("the name of a connection is bounded: CLIENT LIST shows it for each", |case| {
        case.name == "client|setname"
            && case.ours.text.starts_with(b"ERR Client names have at most")
    }),
    (
        "equal times from now on are equal deadlines within a millisecond only; EXPIREAT is compared",
        |case| {
            let has =
                |wanted: &[u8]| case.words.iter().any(|word| word.eq_ignore_ascii_case(wanted));
            let is_relative = ["expire", "pexpire"].contains(&case.name.as_str());
            let is_flag = |frame: &Frame| matches!(frame.integer(), Some(0 | 1));
            is_relative && (has(b"gt") || has(b"lt")) && is_flag(case.redis) && is_flag(case.ours)
        },
    ),
    ("the time of LCS is bounded: some thousand bytes of each string", |case| {
        case.name == "lcs" && case.ours.text.starts_with(b"ERR Insufficient memory")
    }),
    (
        "the encoding of a string follows from its value, in Redis from the last command as well",
        |case| {
            let is_string =
                |frame: &Frame| [&b"int"[..], b"embstr", b"raw"].contains(&frame.text.as_slice());
            case.name == "object|encoding" && is_string(case.redis) && is_string(case.ours)
        },
    ),
    ("SORT of Redis, SORT_RO too, gives a small sorted set the encoding of a large one", |case| {
        case.name == "object|encoding"
            && case.redis.text == b"skiplist"
            && case.ours.text == b"listpack"
    }),
    (
        "SORT of Redis takes the error of a number that an earlier command read for its own",
        |case| {
            ["sort", "sort_ro"].contains(&case.name.as_str())
                && case.redis.text.starts_with(b"ERR One or more scores can't be converted")
                && !case.ours.is_error()
        },
    ),
    ("SORT: a set that is not sorted, and equal texts, have no order in Redis", |case| {
        ["sort", "sort_ro"].contains(&case.name.as_str()) && may_have_another_order(case)
    }),
    ("SELECT of one of Redis' usual databases says what to do", |case| {
        case.name == "select" && case.ours.text.starts_with(&case.redis.text)
    }),
    ("a cursor that SCAN did not return is refused, or at its end: it would skip keys", |case| {
        let of_elements = ["hscan", "sscan", "zscan"].contains(&case.name.as_str());
        let at = if of_elements { 2 } else { 1 };
        let is_made_up = case.words.get(at).is_some_and(|cursor| cursor != b"0");
        let is_unknown = case.ours.text.starts_with(b"ERR this cursor is no longer known");
        let is_scan = of_elements || case.name == "scan";
        is_scan && is_made_up && !case.redis.is_error() && (!case.ours.is_error() || is_unknown)
    }),
];

/// Returns whether a call of SORT has an option.
fn has_option(words: &[Vec<u8>], option: &str) -> bool {
    words.iter().skip(2).any(|word| word.eq_ignore_ascii_case(option.as_bytes()))
}

/// Returns whether the elements that a call of SORT returns may have another order: those of a set
/// that is not sorted, and those with equal texts, as C reads them.
fn may_have_another_order(case: &Case<'_>) -> bool {
    let by = case.words.windows(2).filter(|pair| pair[0].eq_ignore_ascii_case(b"by"));
    let keeps_order = by.clone().any(|pair| !pair[1].contains(&b'*'));
    let is_alpha = has_option(case.words, "alpha");
    let has_zero = case.redis.items.iter().any(|item| item.text.contains(&0));
    let same_count = case.redis.items.len() == case.ours.items.len();
    let is_array = case.redis.kind == b'*' && case.ours.kind == b'*';
    let is_cut = has_option(case.words, "limit") || has_option(case.words, "get");
    is_array
        && same_count
        && (keeps_order || is_alpha && (by.count() > 0 || has_zero))
        && (is_cut || case.redis.sorted(false) == case.ours.sorted(false))
}

/// Returns the name of a command with its subcommand.
pub fn name_of(words: &[Vec<u8>]) -> String {
    let lower = |word: &[u8]| String::from_utf8_lossy(word).to_ascii_lowercase();
    let name = lower(&words[0]);
    let parents = [
        "acl", "client", "command", "config", "latency", "memory", "object", "pubsub", "script",
        "slowlog",
    ];
    match words.get(1) {
        Some(sub) if parents.contains(&name.as_str()) => format!("{name}|{}", lower(sub)),
        _ => name,
    }
}

/// Returns whether the replies agree or have a stated difference.
pub fn agree(words: &[Vec<u8>], redis: &Frame, ours: &Frame) -> bool {
    let name = name_of(words);
    let agree = match comparison(&name) {
        Comparison::Exact => false,
        Comparison::Unordered => redis.sorted(false) == ours.sorted(false),
        Comparison::UnorderedPairs => redis.sorted(true) == ours.sorted(true),
        Comparison::Shape => {
            redis.kind == ours.kind && redis.items.len() == ours.items.len() && !redis.is_error()
        }
        Comparison::Within(most) => match (redis.integer(), ours.integer()) {
            (Some(redis), Some(ours)) => {
                redis >= 0 && ours >= 0 && redis.abs_diff(ours) <= most as u64
            }
            _ => false,
        },
    };
    let case = Case { name, words, redis, ours };
    redis == ours || agree || STATED.iter().any(|(_, holds)| holds(&case))
}

/// Returns whether an `EXEC` may be cancelled although Redis executes it. `BITFIELD` with `FAIL`
/// extends a string even if it sets nothing. Only in Ordna, this counts as a change for `WATCH`.
pub fn may_be_changed<'a>(commands: impl IntoIterator<Item = &'a Vec<Vec<u8>>>) -> bool {
    commands.into_iter().any(|words| {
        let has = |wanted: &[u8]| words.iter().any(|word| word.eq_ignore_ascii_case(wanted));
        words[0].eq_ignore_ascii_case(b"bitfield") && has(b"fail")
    })
}
