//! `ORDNA.INDEX`: ordered indexes over several fields of hashes.

use std::ops::Bound;
use std::time::Duration;

use ordna::tuple::{Number, Value};
use ordna_secondary::{
    Consistency, Explode, Filter, IndexDefinition, IndexState, Kind, Order, Part, Query, Range,
    Read,
};

use crate::execution::command::{
    Command, CommandOutcome, Context, DEFINE, READ_ALL, REMOVE_ALL, Result, SERVER_INFO, Task,
};
use crate::execution::index_access::{check_all, read_index, readable};
use crate::indexes::{PATIENCE, error_text, library_name, patience, read_latest};
use crate::keyspace::Keyspace;
use crate::search::plan::reply_too_large;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, NO_KEY, ReadIndexes};
use crate::wire::argument_reader::{ArgumentReader, checked, text};
use crate::wire::reply::Replies;
use crate::wire::request::{self, Arguments, number};

/// Maximum number of entries of one reply.
const MOST_ENTRIES: usize = 10_000;
/// Number of entries of one reply unless LIMIT is given.
const ENTRIES: usize = 100;
/// Maximum number of entries that an offset skips.
const MOST_PASSED: usize = 1_000_000;

pub const COMMANDS: &[Command] = &[
    Command::container(
        "ordna.index",
        "Ordered indexes over fields of hashes: CREATE, SCAN, COUNT, LIST, INFO, DROP.",
        INDEX,
    ),
    Command::new(
        "ordna.node",
        -2,
        READ_ALL,
        NO_KEY,
        "Returns the state of an index node. The nodes use it among themselves.",
        |_, arguments, _| Ok(CommandOutcome::Task(Task::new(arguments, extended))),
    ),
];

/// Executes the command through the extension, if there is one.
fn extended(
    state: &ServerState,
    _: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    let extension =
        state.config.extension.as_ref().ok_or("ERR this server is not an index node")?;
    let arguments: Vec<&[u8]> = arguments.iter_from(0).collect();
    extension.execute(&arguments)?.write(out);
    Ok(())
}

const INDEX: &[Command] = &[
    sub("ordna.index|create", DEFINE),
    reading("ordna.index|scan"),
    reading("ordna.index|count"),
    sub("ordna.index|drop", REMOVE_ALL),
    reading("ordna.index|info"),
    Command::sub("ordna.index|list", -2, READ_ALL, list).reads(ReadIndexes::Listed),
    sub("ordna.index|help", SERVER_INFO),
];

/// Returns a subcommand that reads the index named by its first argument.
const fn reading(name: &'static str) -> Command {
    Command::sub(name, -2, READ_ALL, |context, arguments, _| read_index(context, arguments, index))
        .reads(ReadIndexes::Composite(2))
}

/// `LIST`: returns the names of the indexes that the user may read.
fn list(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.state.config.extension.is_some() {
        check_all(context, arguments)?;
        return Ok(CommandOutcome::Task(Task::new(arguments, index)));
    }
    end(&ArgumentReader::new(arguments, 2))?;
    let names = readable(context, arguments, context.state.indexes.composites())?;
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(CommandOutcome::Done)
}

const fn sub(name: &'static str, flags: CommandFlags) -> Command {
    Command::sub(name, -2, flags, |_, arguments, _| {
        Ok(CommandOutcome::Task(Task::new(arguments, index)))
    })
}

fn index(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    if state.config.extension.is_some() {
        return extended(state, held, arguments, out);
    }
    let mut reader = ArgumentReader::new(arguments, 1);
    let word = reader.next().unwrap_or_default().to_ascii_lowercase();
    match word.as_slice() {
        b"create" => create(state, held, reader, out),
        b"scan" => scan(state, held, reader, out),
        b"count" => count(state, held, reader, out),
        b"drop" => {
            let name = name_of(&mut reader)?;
            end(&reader)?;
            let _exclusive = held.is_none().then(|| state.keys_exclusive());
            state.indexes.drop_index(name)?;
            out.simple("OK");
            Ok(())
        }
        b"info" => info(state, reader, out),
        b"help" => {
            const LINES: &[&str] = &[
                "CREATE <name> ON <prefix> PARTS <field> [NUMERIC|TEXT|LOWER|BOOL]",
                "    [ARRAY|SPLIT <separator>] [ASC|DESC] ... [WHERE <filter>]",
                "SCAN <name> [EQ <value> | IS TRUE|FALSE|NULL|MISSING]...",
                "    [FROM <bound>] [TO <bound>] [PREFIX <text>] [REV]",
                "    [DISTINCT <parts>] [LIMIT [<offset>] <count>] [CURSOR <cursor>] [VALUES]",
                "    [ANY | AT <vector>] [TIMEOUT <milliseconds>]",
                "COUNT <name> [EQ <value> | IS TRUE|FALSE|NULL|MISSING]...",
                "    [FROM <bound>] [TO <bound>] [PREFIX <text>] [ANY | AT <vector>]",
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
            Err(format!("ERR unknown subcommand '{shown:.100}'. Try ORDNA.INDEX HELP.").into())
        }
    }
}

fn name_of<'a>(reader: &mut ArgumentReader<'a>) -> Result<&'a str> {
    reader.text_of("the name of the index")
}

fn end(reader: &ArgumentReader<'_>) -> Result<()> {
    if reader.peek().is_some() { Err(reader.unsupported("ORDNA.INDEX")) } else { Ok(()) }
}

/// `CREATE name ON prefix PARTS field [NUMERIC|TEXT|LOWER|BOOL] [ARRAY|SPLIT separator] [ASC|DESC]
/// … [WHERE filter]`
fn create(
    state: &ServerState,
    held: Option<&Keyspace>,
    reader: ArgumentReader<'_>,
    out: &mut Replies,
) -> Result<()> {
    let definition = defined(reader)?;
    let _exclusive = held.is_none().then(|| state.keys_exclusive());
    state.indexes.create(&definition.name.clone(), definition)?;
    out.simple("OK");
    Ok(())
}

/// Parses the arguments of `ORDNA.INDEX CREATE`, beginning with the name of the index.
///
/// # Errors
/// The text of the error reply.
pub fn parse_definition(arguments: &[&[u8]]) -> std::result::Result<IndexDefinition, String> {
    let request = request::OwnedRequest::of(arguments);
    defined(ArgumentReader::new(request.arguments(), 0)).map_err(|error| error.to_string())
}

/// The arguments of `CREATE`.
fn defined(mut reader: ArgumentReader<'_>) -> Result<IndexDefinition> {
    let name = checked(name_of(&mut reader)?, "the name of the index")?;
    if !reader.take("on") {
        return Err("ERR ORDNA.INDEX CREATE lacks ON prefix".into());
    }
    let mut definition = IndexDefinition::new(name, reader.of("ON")?);
    if !reader.take("parts") {
        return Err("ERR ORDNA.INDEX CREATE lacks PARTS".into());
    }
    let mut filters = false;
    while reader.peek().is_some() {
        if reader.take("where") {
            filters = true;
            break;
        }
        let field = checked(reader.text_of("PARTS")?, "a field of PARTS")?;
        let kind = KINDS.iter().find(|(word, _)| reader.take(word));
        let kind = kind.map_or(Kind::Natural, |(_, kind)| *kind);
        let explode = if reader.take("array") {
            Explode::Array
        } else if reader.take("split") {
            let separator = reader.text_of("SPLIT")?;
            let mut letters = separator.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) => Explode::Split(letter),
                _ => {
                    return Err(
                        format!("ERR SPLIT takes one character, not '{separator:.40}'").into()
                    );
                }
            }
        } else {
            Explode::No
        };
        let part = Part::new(field).kind(kind).explode(explode);
        let part = if reader.take("desc") { part.descending() } else { part };
        if part.order == Order::Ascending {
            reader.take("asc");
        }
        definition = definition.part(part);
    }
    let mut filter = Vec::new();
    while let Some(word) = reader.next() {
        filter.push(text(word, "the filter")?);
    }
    if filters && filter.is_empty() {
        return Err("ERR WHERE lacks a filter".into());
    }
    if filters {
        definition = definition.filter(Filter::parse(&filter.join(" ")).map_err(error_text)?);
    }
    definition.check().map_err(error_text)?;
    Ok(definition)
}

/// Words of `CREATE` for the types of parts.
const KINDS: [(&str, Kind); 4] = [
    ("numeric", Kind::Number),
    ("text", Kind::Text),
    ("lower", Kind::LowerText),
    ("bool", Kind::Bool),
];

/// Parses the argument of `IS`, which names values that are no texts and no numbers.
fn literal(word: &[u8]) -> Result<Value> {
    match word.to_ascii_lowercase().as_slice() {
        b"true" => Ok(Value::Bool(true)),
        b"false" => Ok(Value::Bool(false)),
        b"null" => Ok(Value::Null),
        b"missing" => Ok(Value::Missing),
        _ => Err("ERR IS takes TRUE, FALSE, NULL or MISSING".into()),
    }
}

/// Parses a value of a part.
fn value(word: &[u8], part: &Part) -> Result<Value> {
    let is_number = |text: &str| ordna_secondary::number_of(text).is_some();
    match (std::str::from_utf8(word), part.kind) {
        (Ok(text), Kind::Number) if !is_number(text) => {
            Err(format!("ERR '{text:.40}' is not a number, as the part {} requires", part.field)
                .into())
        }
        (_, Kind::Bool) => literal(word).map_err(|_| {
            format!("ERR the part {} holds truth values: TRUE or FALSE", part.field).into()
        }),
        // The index converts the text to a number if the part holds numbers.
        (Ok(text), _) => Ok(Value::String(text.to_owned())),
        (Err(_), _) => Ok(Value::Bytes(word.to_vec())),
    }
}

fn bound(word: &[u8], part: &Part) -> Result<Bound<Value>> {
    match word {
        [b'[', rest @ ..] => value(rest, part).map(Bound::Included),
        [b'(', rest @ ..] => value(rest, part).map(Bound::Excluded),
        _ => Err("ERR a bound begins with [ (with it) or ( (without it)".into()),
    }
}

/// A parsed query: what it reads, and whether the reply has the values of the parts.
struct ParsedQuery {
    query: Query,
    read: Read,
    values: bool,
}

/// Parses the arguments of `ORDNA.INDEX SCAN` (or `COUNT`, if `counts`) after the name of the
/// index. With `VALUES` the query is covering.
///
/// # Errors
/// The text of the error reply.
pub fn parse_query(
    arguments: &[&[u8]],
    definition: &IndexDefinition,
    counts: bool,
) -> std::result::Result<(Query, Read), String> {
    let command = request::OwnedRequest::of(arguments);
    let asked = asked(&mut ArgumentReader::new(command.arguments(), 0), definition, counts, None);
    asked.map(|asked| (asked.query, asked.read)).map_err(|error| error.to_string())
}

fn asked(
    reader: &mut ArgumentReader<'_>,
    definition: &IndexDefinition,
    counts: bool,
    held: Option<&Keyspace>,
) -> Result<ParsedQuery> {
    let (mut prefix, mut lower, mut upper, mut text) =
        (Vec::new(), Bound::Unbounded, Bound::Unbounded, None);
    let mut query = Query::new().limit(ENTRIES);
    let (mut values, mut consistency, mut timeout) = (false, Consistency::RequestPlus, PATIENCE);
    let part = |at: usize| {
        let parts = definition.parts.len();
        let part = definition.parts.get(at);
        part.ok_or_else(|| format!("ERR the index has {parts} parts only"))
    };
    while reader.peek().is_some() {
        if reader.take("eq") {
            prefix.push(value(reader.of("EQ")?, part(prefix.len())?)?);
        } else if reader.take("is") {
            part(prefix.len())?;
            prefix.push(literal(reader.of("IS")?)?);
        } else if reader.take("from") {
            lower = bound(reader.of("FROM")?, part(prefix.len())?)?;
        } else if reader.take("to") {
            upper = bound(reader.of("TO")?, part(prefix.len())?)?;
        } else if reader.take("prefix") {
            part(prefix.len())?;
            text = Some(reader.text_of("PREFIX")?.to_owned());
        } else if reader.take("any") {
            consistency = Consistency::Any;
        } else if reader.take("at") {
            consistency = Consistency::AtPlus(reader.text_of("AT")?.parse().map_err(error_text)?);
        } else if reader.take("timeout") {
            let millis = reader.count_of("TIMEOUT", PATIENCE.as_millis() as usize)?;
            timeout = Duration::from_millis(millis as u64);
        } else if !counts && reader.take("rev") {
            query.reverse = true;
        } else if !counts && reader.take("values") {
            values = true;
        } else if !counts && reader.take("distinct") {
            query.distinct = Some(reader.count_of("DISTINCT", definition.parts.len())?);
        } else if !counts && reader.take("limit") {
            query.limit = reader.count_of("LIMIT", MOST_PASSED)?;
            if reader.peek().is_some_and(|word| number(word).is_some()) {
                query.offset = query.limit;
                query.limit = reader.count_of("LIMIT", MOST_PASSED)?;
            }
            query.limit = query.limit.min(MOST_ENTRIES);
        } else if !counts && reader.take("cursor") {
            let cursor = reader.text_of("CURSOR")?;
            if cursor != "0" {
                query.cursor = Some(cursor.parse().map_err(error_text)?);
            }
        } else {
            return Err(reader.unsupported("ORDNA.INDEX"));
        }
    }
    query.range = match (text, &lower, &upper) {
        (Some(text), Bound::Unbounded, Bound::Unbounded) => Range::StartsWith(text),
        (Some(_), ..) => return Err("ERR PREFIX goes without FROM and TO".into()),
        (None, Bound::Unbounded, Bound::Unbounded) => Range::All,
        (None, ..) => Range::Between(lower, upper),
    };
    query.prefix = prefix;
    query.covering = values;
    Ok(ParsedQuery {
        query,
        read: Read { consistency, ..read_latest(patience(timeout, held)) },
        values,
    })
}

/// Removes expired hashes before a query of the present state, so that it does not find them.
fn expire(state: &ServerState, held: Option<&Keyspace>, read: &Read) {
    if read.consistency == Consistency::RequestPlus {
        state.indexes.expire_now(held);
    }
}

/// `SCAN name …`: returns a cursor (0 at the end) and the keys; with VALUES, each key is followed
/// by the values of the parts.
fn scan(
    state: &ServerState,
    held: Option<&Keyspace>,
    mut reader: ArgumentReader<'_>,
    out: &mut Replies,
) -> Result<()> {
    let name = name_of(&mut reader)?;
    let definition = state.indexes.definition(name)?;
    let ParsedQuery { query, read, values } = asked(&mut reader, &definition, false, held)?;
    expire(state, held, &read);
    let service = state.indexes.service()?;
    let most = state.settings.reply_limit();
    let (limit, query) = (query.limit, query.max_bytes(most));
    let page = service.query(&library_name(name), &query, &read).map_err(error_text)?;
    if page.cursor.is_some() && page.entries.len() < limit {
        return Err(reply_too_large(most).into());
    }
    let start = out.bytes.len();
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
        if out.bytes.len() - start > most {
            return Err(reply_too_large(most).into());
        }
    }
    Ok(())
}

/// Writes a value. A value that is missing, null or of another type is written as null.
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

fn count(
    state: &ServerState,
    held: Option<&Keyspace>,
    mut reader: ArgumentReader<'_>,
    out: &mut Replies,
) -> Result<()> {
    let name = name_of(&mut reader)?;
    let definition = state.indexes.definition(name)?;
    let ParsedQuery { query, read, .. } = asked(&mut reader, &definition, true, held)?;
    expire(state, held, &read);
    let service = state.indexes.service()?;
    let count = service.count(&library_name(name), &query.prefix, &query.range, &read);
    out.count(count.map_err(error_text)?);
    Ok(())
}

fn info(state: &ServerState, mut reader: ArgumentReader<'_>, out: &mut Replies) -> Result<()> {
    let name = name_of(&mut reader)?;
    end(&reader)?;
    let definition = state.indexes.definition(name)?;
    let service = state.indexes.service()?;
    let info = service.info(&library_name(name)).map_err(error_text)?;
    let (status, error) = match &info.state {
        IndexState::Building => ("building", ""),
        IndexState::Failed(reason) => ("failed", reason.as_str()),
        _ => ("ready", ""),
    };
    let part = |part: &Part| {
        let kind = KINDS.iter().find(|(_, kind)| *kind == part.kind);
        let kind = kind.map(|(word, _)| format!(" {}", word.to_uppercase())).unwrap_or_default();
        let explode = match part.explode {
            Explode::No => String::new(),
            Explode::Array => " ARRAY".to_owned(),
            Explode::Split(separator) => format!(" SPLIT {separator}"),
        };
        let order = if part.order == Order::Descending { "DESC" } else { "ASC" };
        format!("{}{kind}{explode} {order}", part.field)
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
