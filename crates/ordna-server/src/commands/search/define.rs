//! `FT.CREATE`, `FT.ALTER`, `FT.DROPINDEX`, `FT.INFO`, `FT._LIST`.

use ordna::Change;
use ordna_secondary::{IndexInfo, IndexState, Query};

use crate::indexes::schema::{Field, FieldKind, MOST_FIELDS, Schema};
use crate::indexes::{PATIENCE, error_text, read_latest};
use crate::keyspace::Keyspace;
use crate::keyspace::stored_value::Kind;
use crate::state::State;
use crate::wire::arguments::{Words, checked, text};
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

type Done = Result<(), String>;

/// `FT.CREATE name [ON HASH] [PREFIX n prefix …] [options] SCHEMA field …`
pub fn create(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    let mut words = Words::new(arguments, 1);
    let what = "the name of the index";
    let name = checked(words.text_of(what)?, what)?.to_owned();
    let mut prefixes = Vec::new();
    while !words.take("schema") {
        if words.take("on") {
            if !words.take("hash") {
                return Err(words.unsupported("FT.CREATE ON"));
            }
        } else if words.take("prefix") {
            for _ in 0..words.count_of("PREFIX", MOST_FIELDS)? {
                prefixes.push(words.of("PREFIX")?.to_vec());
            }
        } else if words.take("score") {
            // All documents have this score unless another one is asked for, and nothing is scored.
            if words.text_of("SCORE")?.parse() != Ok(1.0) {
                return Err(
                    "ERR FT.CREATE: a SCORE other than 1 is not supported by Ordna".to_owned()
                );
            }
        } else if words.take("stopwords") {
            // They are of full text, which is not there.
            for _ in 0..words.count_of("STOPWORDS", 1024)? {
                words.of("STOPWORDS")?;
            }
        } else if !["nooffsets", "nohl", "nofields", "nofreqs", "maxtextfields"]
            .iter()
            .any(|option| words.take(option))
        {
            return Err(match words.peek() {
                Some(_) => words.unsupported("FT.CREATE"),
                None => "ERR FT.CREATE lacks SCHEMA".to_owned(),
            });
        }
    }
    if prefixes.is_empty() {
        prefixes.push(Vec::new());
    }
    let mut schema = Schema { name, prefixes, fields: Vec::new() };
    read_fields(&mut words, &mut schema)?;
    let _alone = held.is_none().then(|| state.keys_alone());
    state.indexes.create_schema(&schema)?;
    out.simple("OK");
    Ok(())
}

/// `FT.ALTER name SCHEMA ADD field …`
pub fn alter(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    let mut words = Words::new(arguments, 1);
    let mut schema = state.indexes.schema(words.text_of("the name of the index")?)?;
    if words.take("skipinitialscan") {
        return Err("ERR FT.ALTER: SKIPINITIALSCAN is not supported by Ordna".to_owned());
    }
    if !(words.take("schema") && words.take("add")) {
        return Err("ERR FT.ALTER lacks SCHEMA ADD".to_owned());
    }
    let before = schema.fields.len();
    read_fields(&mut words, &mut schema)?;
    let _alone = held.is_none().then(|| state.keys_alone());
    state.indexes.alter_schema(&schema, schema.fields.len() - before)?;
    out.simple("OK");
    Ok(())
}

/// Reads `field [AS name] TAG|NUMERIC [options]` to the end.
fn read_fields(words: &mut Words<'_>, schema: &mut Schema) -> Done {
    if words.peek().is_none() {
        return Err("ERR Fields arguments are missing".to_owned());
    }
    while let Some(path) = words.next() {
        let what = "the name of a field";
        let path = checked(text(path, what)?, what)?.to_owned();
        let name = match words.take("as") {
            true => checked(words.text_of("AS")?, what)?.to_owned(),
            false => path.clone(),
        };
        let kind = if words.take("tag") {
            FieldKind::Tag { separator: ',', case_sensitive: false }
        } else if words.take("numeric") {
            FieldKind::Numeric
        } else {
            return Err(match words.peek() {
                Some(_) => words.unsupported(&format!("the field '{name}'")),
                None => format!("ERR the field '{name}' lacks a type: TAG or NUMERIC"),
            });
        };
        let mut field = Field { name, path, kind, sortable: false, no_index: false };
        loop {
            if words.take("sortable") {
                field.sortable = true;
                words.take("unf");
            } else if words.take("noindex") {
                field.no_index = true;
            } else if let FieldKind::Tag { separator, .. } = &mut field.kind
                && words.take("separator")
            {
                let mut chars = words.text_of("SEPARATOR")?.chars();
                let (first, rest) = (chars.next(), chars.next());
                let only = first.filter(|c| rest.is_none() && c.is_ascii());
                *separator = only.ok_or("ERR Tag separator must be a single character")?;
            } else if let FieldKind::Tag { case_sensitive, .. } = &mut field.kind
                && words.take("casesensitive")
            {
                *case_sensitive = true;
            } else {
                break;
            }
        }
        for option in ["withsuffixtrie", "indexmissing", "indexempty", "phonetic", "weight"] {
            if words.peek().is_some_and(|word| word.eq_ignore_ascii_case(option.as_bytes())) {
                return Err(words.unsupported(&format!("the field '{}'", field.name)));
            }
        }
        if schema.field(&field.name).is_some() {
            return Err(format!("ERR Duplicate field in schema - {}", field.name));
        }
        if schema.fields.len() == MOST_FIELDS {
            return Err(format!("ERR an index has at most {MOST_FIELDS} fields"));
        }
        schema.fields.push(field);
    }
    Ok(())
}

/// `FT.DROPINDEX name [DD]`
pub fn drop_index(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    let mut words = Words::new(arguments, 1);
    let name = words.text_of("the name of the index")?;
    let documents = words.take("dd");
    if words.peek().is_some() {
        return Err(words.unsupported("FT.DROPINDEX"));
    }
    let schema = state.indexes.schema(name)?;
    let index = schema.documents();
    let view = match documents {
        true => {
            let service = state.indexes.service()?;
            service.wait_until_built(&index, PATIENCE).map_err(error_text)?;
            Some(service.view(&read_latest(PATIENCE)).map_err(error_text)?)
        }
        false => None,
    };
    {
        let _alone = held.is_none().then(|| state.keys_alone());
        state.indexes.drop_schema(name)?;
    }
    state.results.forget(name);
    if let Some(view) = view {
        let mut query = Query::new().limit(1024);
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
fn remove<'k>(state: &State, keys: &Keyspace, ids: impl Iterator<Item = &'k [u8]>) -> Done {
    for id in ids {
        let removed = keys.modify_entry::<&[u8], _>(id, |found| match found {
            Some(found) if Kind::of(found.value) == Kind::Hash => Change::Remove,
            _ => Change::Keep,
        });
        removed.map_err(crate::execution::command::refused)?;
        state.watches.written([id]);
        state.indexes.written(keys, [id]);
    }
    Ok(())
}

/// `FT._LIST`
pub fn list(state: &State, _: Option<&Keyspace>, _: Arguments<'_>, out: &mut Replies) -> Done {
    let names = state.indexes.schemas();
    out.set(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

/// `FT.INFO name`
pub fn info(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Done {
    let name = text(arguments.get(1), "the name of the index")?;
    let schema = state.indexes.schema(name)?;
    let service = state.indexes.service()?;
    state.indexes.expire_now(held);
    // So that the counts are those of now; an index under construction is not waited for.
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
    let mut words: Vec<String> = vec!["identifier".into(), field.path.clone()];
    words.extend(["attribute".into(), field.name.clone(), "type".into()]);
    match field.kind {
        FieldKind::Numeric => words.push("NUMERIC".into()),
        FieldKind::Tag { separator, case_sensitive } => {
            words.extend(["TAG".into(), "SEPARATOR".into(), separator.into()]);
            words.extend(case_sensitive.then(|| "CASESENSITIVE".into()));
        }
    }
    words.extend(field.sortable.then(|| "SORTABLE".into()));
    words.extend(field.no_index.then(|| "NOINDEX".into()));
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word.as_bytes()));
}
