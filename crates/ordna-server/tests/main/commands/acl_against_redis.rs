//! Compares permissions with those of Debian's redis-server: flags and categories of every shared
//! command, and random calls under random rules. Both servers must allow or refuse the same calls.
//!
//! `cargo test -p ordna-server --test main -- --ignored acl_against_redis`. `ORDNA_SOAK=seconds`
//! sets how long random rules are tried, and `ORDNA_SEED=number` sets the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ordna_server::Config;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use super::against_redis::Redis;
use crate::common::{Client, Random, request, show, start};
use crate::fuzz_against_redis::differences::LONGER;

/// The description of a command that a server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Described {
    arity: i64,
    flags: BTreeSet<String>,
    keys: Vec<i64>,
    categories: BTreeSet<String>,
}

fn text(frame: &OwnedFrame) -> String {
    match frame {
        OwnedFrame::SimpleString(bytes) | OwnedFrame::BulkString(bytes) => {
            String::from_utf8(bytes.clone()).unwrap()
        }
        other => panic!("no text: {other:?}"),
    }
}

fn items(frame: &OwnedFrame) -> &[OwnedFrame] {
    match frame {
        OwnedFrame::Array(items) => items,
        other => panic!("no array: {other:?}"),
    }
}

fn integer(frame: &OwnedFrame) -> i64 {
    match frame {
        OwnedFrame::Integer(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}

fn frame(bytes: &[u8]) -> OwnedFrame {
    decode(bytes).unwrap().unwrap().0
}

/// Returns the commands and subcommands of a server, by name.
fn described(client: &mut Client) -> BTreeMap<String, Described> {
    fn add(command: &OwnedFrame, all: &mut BTreeMap<String, Described>) {
        let parts = items(command);
        let texts = |at: usize| items(&parts[at]).iter().map(text).collect();
        let described = Described {
            arity: integer(&parts[1]),
            flags: texts(2),
            keys: parts[3..6].iter().map(integer).collect(),
            categories: texts(6),
        };
        all.insert(text(&parts[0]), described);
        items(&parts[9]).iter().for_each(|sub| add(sub, all));
    }
    client.send(&request(&[b"COMMAND"]));
    let mut all = BTreeMap::new();
    items(&frame(&client.reply())).iter().for_each(|command| add(command, &mut all));
    all
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn flags_and_categories_are_those_of_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let [mut theirs, own] = pair.each_mut().map(described);
    for name in LONGER {
        theirs.get_mut(name).expect("Redis has it").arity *= -1;
    }
    let mut differences = Vec::new();
    let mut shared = BTreeSet::new();
    for (name, of_redis) in &theirs {
        let Some(described) = own.get(name) else { continue };
        shared.insert(name.clone());
        if described != of_redis {
            differences.push(format!("{name}\n  Redis: {of_redis:?}\n  Ordna: {described:?}"));
        }
    }
    assert!(shared.len() > 150, "{shared:?}");
    // Subcommands that only one of the servers has must be listed here.
    let only = |a: &BTreeMap<String, Described>, b: &BTreeMap<String, Described>| {
        let is_only = |name: &&String| {
            let command = name.split_once('|').map(|(command, _)| command);
            !b.contains_key(*name) && command.is_some_and(|command| b.contains_key(command))
        };
        a.keys().filter(is_only).cloned().collect::<Vec<_>>()
    };
    for name in only(&theirs, &own) {
        // Ordna lacks CLIENT TRACKING, debuggers and graphs.
        let known = ["client|caching", "command|getkeysandflags", "latency|graph", "script|debug"];
        assert!(known.contains(&name.as_str()), "{name}");
    }
    for name in only(&own, &theirs) {
        // These are commands of Redis 7.2.
        assert!(["client|setinfo", "client|no-touch"].contains(&name.as_str()), "{name}");
    }
    let categories = pair[0].ask(&[b"ACL", b"CAT"]);
    let of_ours = pair[1].ask(&[b"ACL", b"CAT"]);
    let with_ordna = categories.replacen("*21", "*22", 1) + r"$5\r\nordna\r\n";
    assert_eq!(with_ordna, of_ours);
    let categories = items(&frame(categories.replace(r"\r\n", "\r\n").as_bytes()))
        .iter()
        .map(text)
        .collect::<Vec<_>>();
    for category in categories {
        let [redis, ours] = pair.each_mut().map(|client| {
            client.send(&request(&[b"ACL", b"CAT", category.as_bytes()]));
            let names = items(&frame(&client.reply())).iter().map(text).collect::<BTreeSet<_>>();
            names.intersection(&shared).cloned().collect::<BTreeSet<_>>()
        });
        if redis != ours {
            let (missing, extra) = (redis.difference(&ours), ours.difference(&redis));
            let (missing, extra): (Vec<_>, Vec<_>) = (missing.collect(), extra.collect());
            differences.push(format!("@{category} lacks {missing:?}, and has {extra:?}"));
        }
    }
    // A rule may name every command of Redis.
    for name in theirs.keys() {
        let rule = format!("-{name}");
        let reply = pair[1].ask(&[b"ACL", b"SETUSER", b"u", rule.as_bytes()]);
        if reply != r"+OK\r\n" {
            differences.push(format!("{rule}: {reply}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns whether a reason explains the different replies to a step: step, Redis' reply, Ordna's
/// reply.
type Explains = fn(&Step, &str, &str) -> bool;

/// The reasons why a reply may differ from that of Redis.
const STATED: [(&str, Explains); 2] = [
    (
        "a user with key patterns may not read, list or remove keys that a command does not name",
        |step, redis, ours| {
            let every = ["keys", "scan", "randomkey", "flushall", "flushdb"];
            let Step::Try(call) = step else { return false };
            let name = String::from_utf8_lossy(&call[0]).to_ascii_lowercase();
            every.contains(&name.as_str())
                && redis == r"+OK\r\n"
                && ours.ends_with(r"This user has no permissions to access the '*' key\r\n")
        },
    ),
    (
        "a pattern of asterisks matches the empty key as any other, which it does not in Redis",
        |step, redis, _| {
            let Step::Try(call) = step else { return false };
            call.contains(&Vec::new())
                && redis.ends_with(r"This user has no permissions to access the '' key\r\n")
        },
    ),
];

type Words = Vec<Vec<u8>>;

/// A request to both servers.
#[derive(Clone)]
enum Step {
    /// `ACL SETUSER u` with these rules.
    Set(Words),
    /// `ACL DRYRUN u` with this call.
    Try(Words),
}

impl Step {
    fn request(&self, user: &str) -> Vec<u8> {
        let (verb, words) = match self {
            Self::Set(rules) => ("SETUSER", rules),
            Self::Try(call) => ("DRYRUN", call),
        };
        let mut all: Vec<&[u8]> = vec![b"ACL", verb.as_bytes(), user.as_bytes()];
        all.extend(words.iter().map(Vec::as_slice));
        request(&all)
    }

    fn shown(&self) -> String {
        show(&self.request("u"))
    }

    /// Returns whether a difference between the replies is a defect.
    fn is_defect(&self, redis: &str, ours: &str) -> bool {
        redis != ours && !STATED.iter().any(|(_, explains)| explains(self, redis, ours))
    }
}

/// Generates rules and calls.
struct Generator {
    random: Random,
    /// Names and arities of the commands and subcommands that both servers have.
    shared: Vec<(String, i64)>,
    /// The ones among them that have keys as arguments.
    keyed: Vec<(String, i64)>,
    /// Commands that only Redis has.
    foreign: Vec<String>,
    categories: Vec<String>,
}

impl Generator {
    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.random.below(of.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    /// Returns a rule about commands, keys or channels.
    fn rule(&mut self) -> Vec<u8> {
        const PATTERNS: [&str; 18] = [
            "a*", "b*", "*", "?", "a", "b", "ax", "[ab]x", "[^a]*", "", "\\*", "a?", "*x", "c",
            "%", "A*", "[", "a b",
        ];
        let sign = *self.pick(&["+", "-"]);
        let mut rule = match self.random.below(24) {
            0 => (*self.pick(&["+@all", "-@all", "allcommands", "nocommands"])).to_owned(),
            1 => (*self.pick(&["allkeys", "~*", "resetkeys", "resetkeys", "resetkeys"])).to_owned(),
            2..5 => {
                let pattern = *self.pick(&PATTERNS);
                format!("~{pattern}")
            }
            5..9 => {
                let kinds = *self
                    .pick(&["R", "W", "RW", "WR", "R", "W", "R", "W", "r", "w", "", "RR", "X"]);
                let pattern = *self.pick(&PATTERNS);
                format!("%{kinds}~{pattern}")
            }
            9..13 => {
                let categories = self.categories.clone();
                let category = self.pick(&categories).clone();
                format!("{sign}@{category}")
            }
            13..20 => {
                let shared = self.shared.clone();
                let name = self.pick(&shared).0.clone();
                format!("{sign}{name}")
            }
            20 => {
                let foreign = self.foreign.clone();
                let name = self.pick(&foreign).clone();
                format!("{sign}{name}")
            }
            21 => {
                // First arguments, and words that cannot be one.
                let shared = self.shared.clone();
                let name = self.pick(&shared).0.clone();
                let argument = *self.pick(&["0", "a", "get", "set", "", "x|y", "help"]);
                format!("{sign}{name}|{argument}")
            }
            22 => {
                let wrong =
                    ["nope", "@nope", "@", "", "config|sett", "get|", "|", "|get", "config|"];
                let name = *self.pick(&wrong);
                format!("{sign}{name}")
            }
            _ => {
                let channels = ["&a*", "&*", "allchannels", "resetchannels", "&a b", "&"];
                (*self.pick(&channels)).to_owned()
            }
        };
        if self.one_in(8) {
            rule = rule.to_ascii_uppercase();
        }
        rule.into_bytes()
    }

    /// Returns the rules of one `ACL SETUSER`.
    fn rules(&mut self) -> Words {
        let mut rules = Vec::new();
        for _ in 0..1 + self.random.below(5) {
            match self.random.below(30) {
                0 => rules.push(b"reset".to_vec()),
                1 => rules.push(b"clearselectors".to_vec()),
                2 => {
                    let words = [
                        "on",
                        "off",
                        "nopass",
                        "resetpass",
                        ">a",
                        "<a",
                        ">b",
                        "#ab",
                        "!ab",
                        "",
                        "x",
                        "~",
                    ];
                    rules.push(self.pick(&words).as_bytes().to_vec());
                }
                3 | 4 => {
                    let inner = (0..self.random.below(5)).map(|_| self.rule()).collect::<Vec<_>>();
                    let mut text = b"(".to_vec();
                    text.extend(inner.join(&b' '));
                    text.push(b')');
                    // As one argument or as several. Sometimes the closing bracket is missing;
                    // Redis would drop such a selector at the next one, and Ordna refuses it.
                    let is_open = self.one_in(16);
                    if is_open {
                        text.pop();
                    }
                    if self.one_in(2) {
                        rules.push(text);
                    } else {
                        rules.extend(text.split(|byte| *byte == b' ').map(<[u8]>::to_vec));
                    }
                    if is_open {
                        return rules;
                    }
                }
                _ => rules.push(self.rule()),
            }
        }
        rules
    }

    /// Returns a call, which in most cases has a valid number of arguments.
    fn call(&mut self) -> Words {
        // Without the empty key, which `*` matches only in Ordna.
        const ARGUMENTS: [&str; 24] = [
            "a", "b", "ax", "bx", "c", "abc", "d", "*", "0", "1", "2", "3", "-1", "GET", "get",
            "SET", "INCRBY", "OVERFLOW", "u8", "NX", "EX", "KEEPTTL", "x", "help",
        ];
        // Commands with keys are more frequent, because the permissions that they need depend on
        // their arguments.
        let keyed = if self.one_in(3) { &self.shared } else { &self.keyed };
        let (name, arity) = keyed[self.random.below(keyed.len())].clone();
        let mut words: Vec<String> = name.split('|').map(str::to_owned).collect();
        let wanted = match arity {
            fixed @ 0.. => fixed as usize,
            least => (-least) as usize + self.random.below(5),
        };
        let wanted = if self.one_in(40) { self.random.below(6) } else { wanted };
        while words.len() < wanted {
            let argument = *self.pick(&ARGUMENTS);
            words.push(argument.to_owned());
        }
        if self.one_in(8) {
            words[0] = words[0].to_ascii_uppercase();
        }
        if self.one_in(60) {
            let at = self.random.below(words.len());
            words[at] = "nope".to_owned();
        }
        words.into_iter().map(String::into_bytes).collect()
    }
}

/// Removes the user, sends the steps to both servers, and returns the replies.
fn replies(pair: &mut [Client; 2], steps: &[Step]) -> [Vec<String>; 2] {
    let mut bytes = request(&[b"ACL", b"DELUSER", b"u"]);
    bytes.extend(request(&[b"ACL", b"SETUSER", b"u"]));
    steps.iter().for_each(|step| bytes.extend(step.request("u")));
    pair.each_mut().map(|client| {
        client.send(&bytes);
        client.reply();
        client.reply();
        steps.iter().map(|_| show(&client.reply())).collect()
    })
}

/// Returns the first step whose replies show a defect.
fn defect(pair: &mut [Client; 2], steps: &[Step]) -> Option<(usize, String, String)> {
    let [redis, ours] = replies(pair, steps);
    let all = redis.into_iter().zip(ours).enumerate();
    let mut defects = all.filter(|(at, (redis, ours))| steps[*at].is_defect(redis, ours));
    defects.next().map(|(at, (redis, ours))| (at, redis, ours))
}

/// Removes steps and rules as long as a defect remains.
fn shrink(pair: &mut [Client; 2], mut steps: Vec<Step>) -> Vec<Step> {
    loop {
        let Some((at, ..)) = defect(pair, &steps) else { return steps };
        steps.truncate(at + 1);
        let without = |at: usize, rule: Option<usize>| {
            let mut fewer = steps.clone();
            match (rule, &mut fewer[at]) {
                (Some(rule), Step::Set(rules)) => drop(rules.remove(rule)),
                _ => drop(fewer.remove(at)),
            }
            fewer
        };
        let mut candidates = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            candidates.push(without(at, None));
            if let Step::Set(rules) = step {
                candidates.extend((0..rules.len()).map(|rule| without(at, Some(rule))));
            }
        }
        match candidates.into_iter().find(|fewer| defect(pair, fewer).is_some()) {
            Some(fewer) => steps = fewer,
            None => return steps,
        }
    }
}

/// Returns the part of `ACL GETUSER` that must be the same on both servers: all except the rules
/// for commands, which Redis sorts. Redis shows `%RW~*` as `~*`, after which it would refuse the
/// patterns that follow.
fn user(client: &mut Client) -> String {
    fn permissions(frame: &OwnedFrame, shown: &mut Vec<String>) {
        for pair in items(frame).chunks(2) {
            match text(&pair[0]).as_str() {
                "commands" => {}
                "selectors" => items(&pair[1]).iter().for_each(|each| permissions(each, shown)),
                name @ ("keys" | "channels") => shown.push(format!("{name}: {}", text(&pair[1]))),
                name => {
                    let all: Vec<String> = items(&pair[1]).iter().map(text).collect();
                    shown.push(format!("{name}: {all:?}"));
                }
            }
        }
    }
    client.send(&request(&[b"ACL", b"GETUSER", b"u"]));
    let mut shown = Vec::new();
    permissions(&frame(&client.reply()), &mut shown);
    shown.join("\n").replace("%RW~*", "~*")
}

/// Returns the rules of user `u` as `ACL LIST` shows them.
fn listed(client: &mut Client) -> Words {
    client.send(&request(&[b"ACL", b"LIST"]));
    let lines = frame(&client.reply());
    let line = items(&lines).iter().map(text).find(|line| line.starts_with("user u "));
    let line = line.expect("the user is there");
    line.split(' ').skip(2).map(|word| word.as_bytes().to_vec()).collect()
}

/// Checks that the server acts as `ACL DRYRUN` predicts: it refuses calls that are denied, alone
/// and in a transaction, and no others. Of the allowed calls, only those with keys are made.
fn obeys(subject: &mut Client, calls: &[Words], verdicts: &[String], keyed: &[(String, i64)]) {
    let words = |call: &Words| request(&call.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut ask = |call: &Words| {
        subject.send(&words(call));
        show(&subject.reply())
    };
    let (denied, allowed): (Vec<_>, Vec<_>) = calls
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| !verdict.starts_with('-'))
        .partition(|(_, verdict)| !verdict.starts_with('+'));
    for (call, verdict) in &denied {
        let reply = ask(call);
        // A refused EXEC is `-EXECABORT … NOPERM`.
        assert!(reply.contains("NOPERM"), "{}: {reply} {verdict}", show(&words(call)));
    }
    for (call, _) in allowed {
        let name = String::from_utf8_lossy(&call[0]).to_ascii_lowercase();
        // A script may be allowed while a command that it calls is not, and a subscription changes
        // what is allowed.
        let is_keyed = keyed.iter().any(|(known, _)| *known == name);
        // A command that waits sends no reply.
        let waits = ["blpop", "brpop", "blm", "bzpop", "bzm"].iter().any(|it| name.starts_with(it));
        if is_keyed && !waits && !name.starts_with("eval") && !name.ends_with("subscribe") {
            let reply = ask(call);
            assert!(!reply.starts_with("-NOPERM"), "{}: {reply}", show(&words(call)));
        }
    }
    // If the user may not start a transaction, the commands are refused one by one, too.
    ask(&vec![b"MULTI".to_vec()]);
    for (call, _) in &denied {
        let reply = ask(call);
        let refused = ["NOPERM", "-ERR Command not allowed inside a transaction"];
        assert!(refused.iter().any(|part| reply.contains(part)), "in MULTI: {reply}");
    }
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn random_rules_allow_what_they_allow_in_redis() {
    /// Number of rule sets in a run without `ORDNA_SOAK`.
    const RULES: usize = 10_000;
    /// Number of rule sets that are applied to the same user, one after the other.
    const HISTORY: usize = 8;
    /// Number of calls after each rule set.
    const CALLS: usize = 6;
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let soak = asked("ORDNA_SOAK").map(Duration::from_secs);
    let seed = asked("ORDNA_SEED").unwrap_or(30);
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let [theirs, own] = pair.each_mut().map(described);
    let is_shared = |(name, _): &(&String, &Described)| {
        own.contains_key(*name) && !LONGER.contains(&name.as_str())
    };
    let shared = theirs.iter().filter(is_shared);
    let (mut all, mut keyed) = (Vec::new(), Vec::new());
    for (name, told) in shared {
        all.push((name.clone(), told.arity));
        if told.keys[0] > 0 || told.flags.contains("movablekeys") {
            keyed.push((name.clone(), told.arity));
        }
    }
    let shared = all;
    let foreign = theirs.keys().filter(|name| !own.contains_key(*name)).cloned().collect();
    let all: BTreeSet<String> = theirs.values().flat_map(|told| told.categories.clone()).collect();
    let categories = all.iter().map(|name| name[1..].to_owned()).collect();
    let random = Random::new(seed);
    let mut generator = Generator { random, shared, keyed, foreign, categories };
    let begin = Instant::now();
    let (mut sets, mut tries, mut allowed) = (0, 0, 0);
    while soak.map_or(sets < RULES, |soak| begin.elapsed() < soak) {
        let mut steps = Vec::new();
        // At first, half of the users may execute all commands, so that the rules for keys matter.
        if generator.one_in(2) {
            steps.push(Step::Set(vec![b"+@all".to_vec()]));
        }
        for _ in 0..HISTORY {
            steps.push(Step::Set(generator.rules()));
            steps.extend((0..CALLS).map(|_| Step::Try(generator.call())));
        }
        if let Some((at, redis, ours)) = defect(&mut pair, &steps) {
            steps.truncate(at + 1);
            let steps = shrink(&mut pair, steps);
            let [mut all, mut own] = replies(&mut pair, &steps);
            let last = (all.pop().unwrap_or(redis), own.pop().unwrap_or(ours));
            let shown: Vec<String> = steps.iter().map(Step::shown).collect();
            panic!(
                "seed {seed}, after {sets} rule sets:\n{}\n  Redis: {}\n  Ordna: {}",
                shown.join("\n"),
                last.0,
                last.1
            );
        }
        let [redis, own] = pair.each_mut().map(user);
        assert_eq!(redis, own, "left Redis, right Ordna: {}", show(&steps[0].request("u")));
        // The form that would be stored in the file describes the same user.
        let last = pair[1].say("ACL GETUSER u");
        let calls: Vec<_> = (0..CALLS * 4).map(|_| generator.call()).collect();
        let verdicts = |client: &mut Client| -> Vec<String> {
            let tried = calls.iter().map(|call| {
                client.send(&Step::Try(call.clone()).request("u"));
                show(&client.reply())
            });
            tried.collect()
        };
        let before = verdicts(&mut pair[1]);
        let mut subject = Client::new(ours.address);
        pair[1].say("ACL SETUSER u on nopass");
        assert_eq!(subject.say("AUTH u x"), r"+OK\r\n");
        obeys(&mut subject, &calls, &before, &generator.keyed);
        let mut rules = listed(&mut pair[1]);
        rules.insert(0, b"reset".to_vec());
        pair[1].send(&Step::Set(rules).request("u"));
        assert_eq!(show(&pair[1].reply()), r"+OK\r\n", "{last}");
        assert_eq!(verdicts(&mut pair[1]), before, "seed {seed}: saved as {last}");
        sets += HISTORY;
        tries += HISTORY * CALLS;
        allowed += before.iter().filter(|reply| reply.starts_with("+OK")).count();
    }
    println!(
        "{sets} rule sets, {tries} calls, {allowed} of {} sampled calls allowed",
        sets / 8 * 24
    );
    assert!(allowed > sets / 4, "the rules allow too little to tell anything: {allowed}");
}
