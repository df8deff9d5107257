//! `ORDNA.INDEX`: ordered indexes over several fields of hashes.

use std::ops::Bound;
use std::time::Duration;

use ordna::tuple::{Number, Value};
use ordna_secondary::{
    Consistency, Filter, IndexDefinition, IndexState, Kind, Order, Part, Query, Range, Read,
};

use crate::execution::command::{Command, DEFINE, Outcome, READ_ALL, REMOVE_ALL, Task};
use crate::indexes::{PATIENCE, error_text, library_name, read_latest};
use crate::keyspace::Keyspace;
use crate::state::State;
use crate::state::command_spec::{CommandFlags, NO_KEY, Spec};
use crate::wire::arguments::{Words, checked, text};
use crate::wire::reply::Replies;
use crate::wire::request::{self, Arguments, number};

/// Entries of one reply at most.
const MOST_ENTRIES: usize = 10_000;
/// Entries of a reply that does not ask for a number.
const ENTRIES: usize = 100;
/// Entries that OFFSET passes over at most.
const MOST_PASSED: usize = 1_000_000;

pub const COMMANDS: &[Command] = &[
    command(READ_ALL)
        .with_subcommands(&[("create", changes(DEFINE)), ("drop", changes(REMOVE_ALL))]),
    Command::new(
        "ordna.node",
        -2,
        READ_ALL,
        NO_KEY,
        "What index nodes ask each other, and tell of themselves.",
        |_, arguments, _| Ok(Outcome::Task(Task::new(arguments, extended))),
    ),
];

/// Has the extension execute the command.
fn extended(
    state: &State,
    _: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    let extension = state.config.extension.as_ref().ok_or("ERR this server is no index node")?;
    let arguments: Vec<&[u8]> = arguments.iter_from(0).collect();
    extension.execute(&arguments)?.write(out);
    Ok(())
}

const fn command(flags: CommandFlags) -> Command {
    Command::new(
        "ordna.index",
        -2,
        flags,
        NO_KEY,
        "Ordered indexes over fields of hashes: CREATE, SCAN, COUNT, LIST, INFO, DROP.",
        |_, arguments, _| Ok(Outcome::Task(Task::new(arguments, index))),
    )
}

const fn changes(flags: CommandFlags) -> Spec {
    let mut spec = command(flags).spec;
    spec.group = "ordna";
    spec
}

type Done = Result<(), String>;

fn index(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    if state.config.extension.is_some() {
        return extended(state, held, arguments, out);
    }
    let mut words = Words::new(arguments, 1);
    let word = words.next().unwrap_or_default().to_ascii_lowercase();
    match word.as_slice() {
        b"create" => create(state, held, words, out),
        b"scan" => scan(state, held, words, out),
        b"count" => count(state, held, words, out),
        b"drop" => {
            let name = name_of(&mut words)?;
            end(&words)?;
            let _alone = held.is_none().then(|| state.keys_alone());
            state.indexes.drop_index(name)?;
            out.simple("OK");
            Ok(())
        }
        b"info" => info(state, words, out),
        b"list" => {
            end(&words)?;
            let names = state.indexes.names();
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name.as_bytes()));
            Ok(())
        }
        b"help" => {
            const LINES: &[&str] = &[
                "CREATE <name> ON <prefix> PARTS <field> [NUMERIC|TEXT] [ASC|DESC] ... [WHERE <filter>]",
                "SCAN <name> [EQ <value>]... [FROM <bound>] [TO <bound>] [PREFIX <text>] [REV]",
                "    [DISTINCT <parts>] [LIMIT [<offset>] <count>] [CURSOR <cursor>] [VALUES]",
                "    [ANY | AT <vector>] [TIMEOUT <milliseconds>]",
                "COUNT <name> [EQ <value>]... [FROM <bound>] [TO <bound>] [PREFIX <text>] [ANY | AT <vector>]",
                "LIST",
                "INFO <name>",
                "DROP <name>",
            ];
            out.array(LINES.len());
            LINES.iter().for_each(|line| out.simple(line));
            Ok(())
        }
        _ => {
            let shown = String::from_utf8_lossy(&word);
            Err(format!("ERR unknown subcommand '{shown:.100}'. Try ORDNA.INDEX HELP."))
        }
    }
}

fn name_of<'a>(words: &mut Words<'a>) -> Result<&'a str, String> {
    words.text_of("the name of the index")
}

fn end(words: &Words<'_>) -> Done {
    if words.peek().is_some() { Err(words.unsupported("ORDNA.INDEX")) } else { Ok(()) }
}

/// `CREATE name ON prefix PARTS field [NUMERIC|TEXT] [ASC|DESC] … [WHERE filter]`
fn create(state: &State, held: Option<&Keyspace>, words: Words<'_>, out: &mut Replies) -> Done {
    let definition = defined(words)?;
    let _alone = held.is_none().then(|| state.keys_alone());
    state.indexes.create(&definition.name.clone(), definition)?;
    out.simple("OK");
    Ok(())
}

/// The definition that these arguments of `ORDNA.INDEX CREATE` describe, the name of the index
/// first.
///
/// # Errors
/// The text of the reply.
pub fn parse_definition(arguments: &[&[u8]]) -> Result<IndexDefinition, String> {
    defined(Words::new(request::Command::of(arguments).arguments(), 0))
}

/// `name ON prefix PARTS field [NUMERIC|TEXT] [ASC|DESC] … [WHERE filter]`
fn defined(mut words: Words<'_>) -> Result<IndexDefinition, String> {
    let name = checked(name_of(&mut words)?, "the name of the index")?;
    if !words.take("on") {
        return Err("ERR ORDNA.INDEX CREATE lacks ON prefix".to_owned());
    }
    let mut definition = IndexDefinition::new(name, words.of("ON")?);
    if !words.take("parts") {
        return Err("ERR ORDNA.INDEX CREATE lacks PARTS".to_owned());
    }
    let mut filters = false;
    while words.peek().is_some() {
        if words.take("where") {
            filters = true;
            break;
        }
        let field = checked(words.text_of("PARTS")?, "a field of PARTS")?;
        let kind = if words.take("numeric") {
            Kind::Number
        } else if words.take("text") {
            Kind::Text
        } else {
            Kind::Natural
        };
        let part = Part::new(field).kind(kind);
        let part = if words.take("desc") { part.descending() } else { part };
        if part.order == Order::Ascending {
            words.take("asc");
        }
        definition = definition.part(part);
    }
    let mut filter = Vec::new();
    while let Some(word) = words.next() {
        filter.push(text(word, "the filter")?);
    }
    if filters && filter.is_empty() {
        return Err("ERR WHERE lacks a filter".to_owned());
    }
    if filters {
        definition = definition.filter(Filter::parse(&filter.join(" ")).map_err(error_text)?);
    }
    definition.check().map_err(error_text)?;
    Ok(definition)
}

/// A value of a part, as an argument writes it.
fn value(word: &[u8], part: &Part) -> Result<Value, String> {
    let is_number = |text: &str| ordna_secondary::number_of(text).is_some();
    match (std::str::from_utf8(word), part.kind) {
        (Ok(text), Kind::Number) if !is_number(text) => {
            Err(format!("ERR '{text:.40}' is no number, which the part {} holds", part.field))
        }
        // The index makes a number of it if the part holds numbers.
        (Ok(text), _) => Ok(Value::String(text.to_owned())),
        (Err(_), _) => Ok(Value::Bytes(word.to_vec())),
    }
}

fn bound(word: &[u8], part: &Part) -> Result<Bound<Value>, String> {
    match word {
        [b'[', rest @ ..] => value(rest, part).map(Bound::Included),
        [b'(', rest @ ..] => value(rest, part).map(Bound::Excluded),
        _ => Err("ERR a bound begins with [ (with it) or ( (without it)".to_owned()),
    }
}

/// A query, what it reads, and whether the reply has the values of the parts.
struct Asked {
    query: Query,
    read: Read,
    values: bool,
}

/// The query that the arguments of `ORDNA.INDEX SCAN` (or `COUNT`, if it `counts`) behind the name
/// of the index describe. With `VALUES` it is covering.
///
/// # Errors
/// The text of the reply.
pub fn parse_query(
    arguments: &[&[u8]],
    definition: &IndexDefinition,
    counts: bool,
) -> Result<(Query, Read), String> {
    let command = request::Command::of(arguments);
    let asked = asked(&mut Words::new(command.arguments(), 0), definition, counts)?;
    Ok((asked.query, asked.read))
}

fn asked(
    words: &mut Words<'_>,
    definition: &IndexDefinition,
    counts: bool,
) -> Result<Asked, String> {
    let (mut prefix, mut lower, mut upper, mut text) =
        (Vec::new(), Bound::Unbounded, Bound::Unbounded, None);
    let mut query = Query::new().limit(ENTRIES);
    let (mut values, mut consistency, mut timeout) = (false, Consistency::RequestPlus, PATIENCE);
    let part = |at: usize| {
        let parts = definition.parts.len();
        let part = definition.parts.get(at);
        part.ok_or_else(|| format!("ERR the index has {parts} parts only"))
    };
    while words.peek().is_some() {
        if words.take("eq") {
            prefix.push(value(words.of("EQ")?, part(prefix.len())?)?);
        } else if words.take("from") {
            lower = bound(words.of("FROM")?, part(prefix.len())?)?;
        } else if words.take("to") {
            upper = bound(words.of("TO")?, part(prefix.len())?)?;
        } else if words.take("prefix") {
            part(prefix.len())?;
            text = Some(words.text_of("PREFIX")?.to_owned());
        } else if words.take("any") {
            consistency = Consistency::Any;
        } else if words.take("at") {
            consistency = Consistency::AtPlus(words.text_of("AT")?.parse().map_err(error_text)?);
        } else if words.take("timeout") {
            let millis = words.count_of("TIMEOUT", PATIENCE.as_millis() as usize)?;
            timeout = Duration::from_millis(millis as u64);
        } else if !counts && words.take("rev") {
            query.reverse = true;
        } else if !counts && words.take("values") {
            values = true;
        } else if !counts && words.take("distinct") {
            query.distinct = Some(words.count_of("DISTINCT", definition.parts.len())?);
        } else if !counts && words.take("limit") {
            query.limit = words.count_of("LIMIT", MOST_PASSED)?;
            if words.peek().is_some_and(|word| number(word).is_some()) {
                query.offset = query.limit;
                query.limit = words.count_of("LIMIT", MOST_PASSED)?;
            }
            query.limit = query.limit.min(MOST_ENTRIES);
        } else if !counts && words.take("cursor") {
            let cursor = words.text_of("CURSOR")?;
            if cursor != "0" {
                query.cursor = Some(cursor.parse().map_err(error_text)?);
            }
        } else {
            return Err(words.unsupported("ORDNA.INDEX"));
        }
    }
    query.range = match (text, &lower, &upper) {
        (Some(text), Bound::Unbounded, Bound::Unbounded) => Range::StartsWith(text),
        (Some(_), ..) => return Err("ERR PREFIX goes without FROM and TO".to_owned()),
        (None, Bound::Unbounded, Bound::Unbounded) => Range::All,
        (None, ..) => Range::Between(lower, upper),
    };
    query.prefix = prefix;
    query.covering = values;
    Ok(Asked { query, read: Read { consistency, ..read_latest(timeout) }, values })
}

/// A query of the present state finds no hash that has expired.
fn expire(state: &State, held: Option<&Keyspace>, read: &Read) {
    if read.consistency == Consistency::RequestPlus {
        state.indexes.expire_now(held);
    }
}

/// `SCAN name …`: a cursor (0: the end) and the keys, with VALUES each with the values of the
/// parts.
fn scan(state: &State, held: Option<&Keyspace>, mut words: Words<'_>, out: &mut Replies) -> Done {
    let name = name_of(&mut words)?;
    let definition = state.indexes.definition(name)?;
    let Asked { query, read, values } = asked(&mut words, &definition, false)?;
    expire(state, held, &read);
    let service = state.indexes.service()?;
    let page = service.query(&library_name(name), &query, &read).map_err(error_text)?;
    out.array(2);
    match page.cursor {
        Some(cursor) => out.bulk(cursor.to_string().as_bytes()),
        None => out.bulk(b"0"),
    }
    out.array(page.entries.len() * if values { 2 } else { 1 });
    for entry in page.entries {
        out.bulk(&entry.id);
        if values {
            out.array(entry.parts.len());
            entry.parts.iter().for_each(|value| show(value, out));
        }
    }
    Ok(())
}

/// Writes a value: null for one that is missing, null or of another type.
fn show(value: &Value, out: &mut Replies) {
    match value {
        Value::String(text) => out.bulk(text.as_bytes()),
        Value::Bytes(bytes) => out.bulk(bytes),
        Value::Number(Number::Int(number)) => out.bulk(number.to_string().as_bytes()),
        Value::Number(number) => out.bulk(number.to_f64().to_string().as_bytes()),
        Value::Bool(value) => out.bulk(value.to_string().as_bytes()),
        _ => out.null(),
    }
}

fn count(state: &State, held: Option<&Keyspace>, mut words: Words<'_>, out: &mut Replies) -> Done {
    let name = name_of(&mut words)?;
    let definition = state.indexes.definition(name)?;
    let Asked { query, read, .. } = asked(&mut words, &definition, true)?;
    expire(state, held, &read);
    let service = state.indexes.service()?;
    let count = service.count(&library_name(name), &query.prefix, &query.range, &read);
    out.count(count.map_err(error_text)?);
    Ok(())
}

fn info(state: &State, mut words: Words<'_>, out: &mut Replies) -> Done {
    let name = name_of(&mut words)?;
    end(&words)?;
    let definition = state.indexes.definition(name)?;
    let service = state.indexes.service()?;
    let info = service.info(&library_name(name)).map_err(error_text)?;
    let (status, error) = match &info.state {
        IndexState::Building => ("building", ""),
        IndexState::Failed(reason) => ("failed", reason.as_str()),
        _ => ("ready", ""),
    };
    let part = |part: &Part| {
        let kind = match part.kind {
            Kind::Number => " NUMERIC",
            Kind::Text => " TEXT",
            _ => "",
        };
        let order = if part.order == Order::Descending { "DESC" } else { "ASC" };
        format!("{}{kind} {order}", part.field)
    };
    out.map(12);
    out.bulk(b"name");
    out.bulk(name.as_bytes());
    out.bulk(b"prefix");
    out.bulk(definition.prefixes.first().map_or(&[], Vec::as_slice));
    out.bulk(b"parts");
    out.array(definition.parts.len());
    definition.parts.iter().for_each(|one| out.bulk(part(one).as_bytes()));
    let filter = definition.filter.as_ref().map(ToString::to_string).unwrap_or_default();
    let vector = service.fed().to_string();
    for (field, text) in
        [("where", filter.as_str()), ("state", status), ("error", error), ("vector", &vector)]
    {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    for (field, count) in [
        ("entries", info.entries),
        ("bytes", info.bytes + info.reverse_bytes),
        ("built", info.built as usize),
        ("wrong-type", info.wrong_type as usize),
        ("too-large", info.too_large as usize),
    ] {
        out.bulk(field.as_bytes());
        out.count(count);
    }
    Ok(())
}
