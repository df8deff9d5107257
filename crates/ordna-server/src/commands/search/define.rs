//! `FT.CREATE`, `FT.ALTER`, `FT.DROPINDEX`, `FT.INFO`, `FT._LIST`.

use ordna::Change;
use ordna_secondary::{IndexInfo, IndexState, Query};

use crate::execution::command::{CommandOutcome, Context};
use crate::execution::index_access::readable;
use crate::indexes::schema::{Field, FieldKind, MOST_FIELDS, Schema};
use crate::indexes::{PATIENCE, error_text, patience, read_latest};
use crate::keyspace::Keyspace;
use crate::keyspace::value_kind::ValueKind;
use crate::state::ServerState;
use crate::wire::argument_reader::{ArgumentReader, checked, text};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// `FT.CREATE name [ON HASH] [PREFIX n prefix …] [options] SCHEMA field …`
pub fn create(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let what = "the name of the index";
    let name = checked(reader.text_of(what)?, what)?.to_owned();
    let mut prefixes = Vec::new();
    while !reader.take("schema") {
        if reader.take("on") {
            if !reader.take("hash") {
                return Err(reader.unsupported("FT.CREATE ON"));
            }
        } else if reader.take("prefix") {
            for _ in 0..reader.count_of("PREFIX", MOST_FIELDS)? {
                prefixes.push(reader.of("PREFIX")?.to_vec());
            }
        } else if reader.take("score") {
            // All documents have this score unless another one is given, and documents are not
            // scored.
            if reader.text_of("SCORE")?.parse() != Ok(1.0) {
                return Err("ERR FT.CREATE: a SCORE other than 1 is not supported by Ordna".into());
            }
        } else if reader.take("stopwords") {
            // Stop words belong to full text, which is not supported.
            for _ in 0..reader.count_of("STOPWORDS", 1024)? {
                reader.of("STOPWORDS")?;
            }
        } else if !["nooffsets", "nohl", "nofields", "nofreqs", "maxtextfields"]
            .iter()
            .any(|option| reader.take(option))
        {
            return Err(match reader.peek() {
                Some(_) => reader.unsupported("FT.CREATE"),
                None => "ERR FT.CREATE lacks SCHEMA".into(),
            });
        }
    }
    if prefixes.is_empty() {
        prefixes.push(Vec::new());
    }
    let mut schema = Schema { name, prefixes, fields: Vec::new() };
    read_fields(&mut reader, &mut schema)?;
    let _exclusive = held.is_none().then(|| state.keys_exclusive());
    state.indexes.create_schema(&schema)?;
    out.simple("OK");
    Ok(())
}

/// `FT.ALTER name SCHEMA ADD field …`
pub fn alter(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let mut schema = state.indexes.schema(reader.text_of("the name of the index")?)?;
    if reader.take("skipinitialscan") {
        return Err("ERR FT.ALTER: SKIPINITIALSCAN is not supported by Ordna".into());
    }
    if !(reader.take("schema") && reader.take("add")) {
        return Err("ERR FT.ALTER lacks SCHEMA ADD".into());
    }
    let before = schema.fields.len();
    read_fields(&mut reader, &mut schema)?;
    let _exclusive = held.is_none().then(|| state.keys_exclusive());
    state.indexes.alter_schema(&schema, schema.fields.len() - before)?;
    out.simple("OK");
    Ok(())
}

/// Reads `field [AS name] TAG|NUMERIC [options]` to the end.
fn read_fields(reader: &mut ArgumentReader<'_>, schema: &mut Schema) -> Result<(), CommandError> {
    if reader.peek().is_none() {
        return Err("ERR Fields arguments are missing".into());
    }
    while let Some(path) = reader.next() {
        let what = "the name of a field";
        let path = checked(text(path, what)?, what)?.to_owned();
        let name = match reader.take("as") {
            true => checked(reader.text_of("AS")?, what)?.to_owned(),
            false => path.clone(),
        };
        let kind = if reader.take("tag") {
            FieldKind::Tag { separator: ',', case_sensitive: false }
        } else if reader.take("numeric") {
            FieldKind::Numeric
        } else {
            return Err(match reader.peek() {
                Some(_) => reader.unsupported(&format!("the field '{name}'")),
                None => format!("ERR the field '{name}' lacks a type: TAG or NUMERIC").into(),
            });
        };
        let mut field = Field { name, path, kind, sortable: false, no_index: false };
        loop {
            if reader.take("sortable") {
                field.sortable = true;
                reader.take("unf");
            } else if reader.take("noindex") {
                field.no_index = true;
            } else if let FieldKind::Tag { separator, .. } = &mut field.kind
                && reader.take("separator")
            {
                let mut chars = reader.text_of("SEPARATOR")?.chars();
                let (first, rest) = (chars.next(), chars.next());
                let only = first.filter(|c| rest.is_none() && c.is_ascii());
                *separator = only.ok_or("ERR Tag separator must be a single character")?;
            } else if let FieldKind::Tag { case_sensitive, .. } = &mut field.kind
                && reader.take("casesensitive")
            {
                *case_sensitive = true;
            } else {
                break;
            }
        }
        for option in ["withsuffixtrie", "indexmissing", "indexempty", "phonetic", "weight"] {
            if reader.peek().is_some_and(|word| word.eq_ignore_ascii_case(option.as_bytes())) {
                return Err(reader.unsupported(&format!("the field '{}'", field.name)));
            }
        }
        if schema.field(&field.name).is_some() {
            return Err(format!("ERR Duplicate field in schema - {}", field.name).into());
        }
        if schema.fields.len() == MOST_FIELDS {
            return Err(format!("ERR an index has at most {MOST_FIELDS} fields").into());
        }
        schema.fields.push(field);
    }
    Ok(())
}

/// `FT.DROPINDEX name [DD]`
pub fn drop_index(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let name = reader.text_of("the name of the index")?;
    let documents = reader.take("dd");
    if reader.peek().is_some() {
        return Err(reader.unsupported("FT.DROPINDEX"));
    }
    let schema = state.indexes.schema(name)?;
    let index = schema.documents();
    let view = match documents {
        true => {
            let service = state.indexes.service()?;
            let patience = patience(PATIENCE, held);
            service.wait_until_built(&index, patience).map_err(error_text)?;
            Some(service.view(&read_latest(patience)).map_err(error_text)?)
        }
        false => None,
    };
    {
        let _exclusive = held.is_none().then(|| state.keys_exclusive());
        state.indexes.drop_schema(name)?;
    }
    state.results.forget(name);
    if let Some(view) = view {
        let mut query = Query::new().limit(1024).max_bytes(1 << 20);
        loop {
            let page = view.query(&index, &query).map_err(error_text)?;
            match held {
                Some(keys) => remove(state, keys, page.entries.iter().map(|entry| &entry.id[..]))?,
                None => {
                    let keys = state.keys();
                    remove(state, &keys, page.entries.iter().map(|entry| &entry.id[..]))?;
                }
            }
            let Some(cursor) = page.cursor else { break };
            query = query.cursor(cursor);
        }
    }
    out.simple("OK");
    Ok(())
}

/// Removes hashes.
fn remove<'k>(
    state: &ServerState,
    keys: &Keyspace,
    ids: impl Iterator<Item = &'k [u8]>,
) -> Result<(), CommandError> {
    for id in ids {
        let removed = keys.modify_entry::<&[u8]>(id, |found| match found {
            Some(found) if ValueKind::of(found.value) == ValueKind::Hash => Change::Remove,
            _ => Change::Keep,
        });
        // Reported even if only the log has failed, because the removal may stay in memory.
        state.watches.written([id]);
        state.indexes.written(keys, [id]);
        removed?;
    }
    Ok(())
}

/// `FT._LIST`
pub fn list(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<CommandOutcome, CommandError> {
    let names = readable(context, arguments, context.state.indexes.schemas())?;
    out.set(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(CommandOutcome::Done)
}

/// `FT.INFO name`
pub fn info(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let name = text(arguments.get(1), "the name of the index")?;
    let schema = state.indexes.schema(name)?;
    let service = state.indexes.service()?;
    state.indexes.expire_now(held);
    // Waits for the current state, so that the counts are up to date, but not for an index under
    // construction.
    service.view(&read_latest(PATIENCE)).map_err(error_text)?;
    let of = |index: &str| service.info(index).map_err(error_text);
    let documents = of(&schema.documents())?;
    let fields = schema.fields.iter().map(|field| of(&schema.index_of(field)));
    let fields = fields.collect::<Result<Vec<IndexInfo>, String>>()?;
    let all = || std::iter::once(&documents).chain(&fields);
    let failed: Vec<&str> = all()
        .filter_map(|info| match &info.state {
            IndexState::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
        .collect();
    let indexing = all().any(|info| info.state == IndexState::Building);
    let entries: usize = fields.iter().map(|info| info.entries).sum();
    let bytes: usize = all().map(|info| info.bytes + info.reverse_bytes).sum();
    let failures: u64 = all().map(|info| info.wrong_type + info.too_large).sum();
    out.map(14);
    out.bulk(b"index_name");
    out.bulk(name.as_bytes());
    out.bulk(b"index_options");
    out.array(0);
    out.bulk(b"index_definition");
    out.map(3);
    out.bulk(b"key_type");
    out.bulk(b"HASH");
    out.bulk(b"prefixes");
    out.array(schema.prefixes.len());
    schema.prefixes.iter().for_each(|prefix| out.bulk(prefix));
    out.bulk(b"default_score");
    out.bulk(b"1");
    out.bulk(b"attributes");
    out.array(schema.fields.len());
    schema.fields.iter().for_each(|field| attribute(field, out));
    for (field, count) in [
        ("num_docs", documents.entries),
        ("max_doc_id", documents.entries),
        ("num_terms", 0),
        ("num_records", entries),
    ] {
        out.bulk(field.as_bytes());
        out.count(count);
    }
    out.bulk(b"inverted_sz_mb");
    out.bulk(format!("{}", bytes as f64 / f64::from(1 << 20)).as_bytes());
    out.bulk(b"hash_indexing_failures");
    out.count(failures as usize);
    out.bulk(b"indexing");
    out.integer(i64::from(indexing));
    out.bulk(b"percent_indexed");
    out.bulk(if indexing { b"0" } else { b"1" });
    out.bulk(b"ordna_error");
    out.bulk(failed.join("; ").as_bytes());
    out.bulk(b"cursor_stats");
    let (of_index, total) = state.results.count(name);
    out.map(2);
    for (field, count) in [("global_total", total), ("index_total", of_index)] {
        out.bulk(field.as_bytes());
        out.count(count);
    }
    Ok(())
}

fn attribute(field: &Field, out: &mut Replies) {
    let mut reader: Vec<String> = vec!["identifier".into(), field.path.clone()];
    reader.extend(["attribute".into(), field.name.clone(), "type".into()]);
    match field.kind {
        FieldKind::Numeric => reader.push("NUMERIC".into()),
        FieldKind::Tag { separator, case_sensitive } => {
            reader.extend(["TAG".into(), "SEPARATOR".into(), separator.into()]);
            reader.extend(case_sensitive.then(|| "CASESENSITIVE".into()));
        }
    }
    reader.extend(field.sortable.then(|| "SORTABLE".into()));
    reader.extend(field.no_index.then(|| "NOINDEX".into()));
    out.array(reader.len());
    reader.iter().for_each(|word| out.bulk(word.as_bytes()));
}
