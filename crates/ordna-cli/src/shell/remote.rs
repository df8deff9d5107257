//! The commands of the shell for a server.

use redis_protocol::resp2::types::{BytesFrame, Resp2Frame};

use anyhow::bail;

use super::target::{Description, Screen, Target};
use crate::client::{Client, ServerAddress, Unreachable};
use crate::text::readable;

/// Commands that the shell refuses, because they do not send exactly one reply to each request.
const REFUSED: [&str; 8] =
    ["subscribe", "psubscribe", "ssubscribe", "monitor", "sync", "psync", "hello", "client reply"];
/// Maximum nesting of arrays that are printed.
const MOST_NESTED: usize = 16;

/// A connection to a server, and what the server says about its commands.
pub struct Remote {
    address: ServerAddress,
    /// `None` if the connection was lost.
    client: Option<Client>,
    commands: Vec<Description>,
}

impl Remote {
    /// Connects to a server, and reads the descriptions of all commands.
    pub fn connect(address: &ServerAddress) -> anyhow::Result<Self> {
        let mut client = address.connect()?;
        // Without descriptions, or without the right to read them, the shell has no help.
        let commands = client.call(&[b"COMMAND", b"DOCS"]).map(|docs| descriptions(&docs, ""));
        let commands = match commands {
            Err(error) if error.downcast_ref::<Unreachable>().is_some() => return Err(error),
            commands => commands.unwrap_or_default(),
        };
        Ok(Self { address: address.clone(), client: Some(client), commands })
    }
}

impl Target for Remote {
    fn name(&self) -> String {
        let (host, port) = self.address.place();
        format!("{host}:{port}")
    }

    fn commands(&self) -> &[Description] {
        &self.commands
    }

    fn run(&mut self, words: &[Vec<u8>], screen: &mut Screen<'_>) -> anyhow::Result<()> {
        let lower: Vec<String> =
            words.iter().map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
        let two = lower.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
        if REFUSED.contains(&lower[0].as_str()) || REFUSED.contains(&two.as_str()) {
            bail!("`{}` needs a client that reads more than one reply: use redis-cli", lower[0]);
        }
        let client = match &mut self.client {
            Some(client) => client,
            lost => lost.insert(self.address.connect()?),
        };
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut reply = match client.request(&words) {
            Ok(BytesFrame::Error(text)) => match hint(&text, &lower, &self.commands) {
                Some(hint) => bail!("{}\n{hint}", readable(text.as_bytes(), false)),
                None => bail!("{}", readable(text.as_bytes(), false)),
            },
            Ok(reply) => reply,
            Err(error) => {
                self.client = None;
                return Err(error);
            }
        };
        let columns = columns(&lower);
        // The size of a collection is the present one: a snapshot may have another.
        if columns == Some(KEYS_AND_VALUES) && lower[0] != "ordna.snapshot" {
            reply = with_collections(client, reply)?;
        }
        print(&reply, columns, screen)
    }
}

/// Returns a reply of keys and values with the type and size of each collection in place of its value.
fn with_collections(client: &mut Client, reply: BytesFrame) -> anyhow::Result<BytesFrame> {
    let BytesFrame::Array(mut items) = reply else { return Ok(reply) };
    let is_collection = |pair: &&[BytesFrame]| matches!(pair, [_, BytesFrame::Null]);
    let keys = items.chunks(2).filter(is_collection).filter_map(|pair| pair[0].as_bytes());
    let mut described = client.describe(&keys.collect::<Vec<_>>())?.into_iter();
    for pair in items.chunks_mut(2) {
        if let [_, value @ BytesFrame::Null] = pair
            && let Some(what) = described.next()
        {
            *value = BytesFrame::SimpleString(format!("({what})").into());
        }
    }
    Ok(BytesFrame::Array(items))
}

/// Returns advice for an error, if there is any.
fn hint(error: &str, words: &[String], commands: &[Description]) -> Option<String> {
    let code = error.split(' ').next().unwrap_or_default();
    let described = |name: &str| commands.iter().find(|command| command.name == name);
    let command = described(&words.iter().take(2).cloned().collect::<Vec<_>>().join(" "))
        .or_else(|| described(&words[0]));
    match code {
        "NOAUTH" | "WRONGPASS" => {
            Some("log in with `auth PASSWORD`, or set ORDNA_PASSWORD before the start".into())
        }
        "NOPERM" => Some("`acl whoami` names the user; another one may have the right".into()),
        "WRONGTYPE" => words.get(1).map(|key| format!("`type {key}` says what the key holds")),
        "OOM" => Some("remove keys, or raise the limit with `config set maxmemory`".into()),
        _ if error.contains("unknown command") => {
            let near = |name: &str| name.starts_with(words[0].get(..3).unwrap_or(&words[0]));
            let near: Vec<_> =
                commands.iter().map(|c| c.name.as_str()).filter(|n| near(n)).collect();
            Some(match near.as_slice() {
                [] => "`help` lists the commands".into(),
                near => {
                    format!("there are {}; `help` lists all", near[..near.len().min(8)].join(", "))
                }
            })
        }
        _ if error.contains("wrong number of arguments") || error.contains("syntax error") => {
            command.map(|command| format!("usage: {} {}", command.name, command.arguments))
        }
        _ => None,
    }
}

/// Names of the columns of entries.
const KEYS_AND_VALUES: [&str; 2] = ["key", "value"];

/// Returns the names of the columns for commands whose reply is a list of pairs.
fn columns(words: &[String]) -> Option<[&'static str; 2]> {
    let has = |option: &str| words.iter().any(|word| word == option);
    let second = words.get(1).map(String::as_str);
    match words[0].as_str() {
        "hgetall" => Some(["field", "value"]),
        "config" if second == Some("get") => Some(["parameter", "value"]),
        "ordna.range" | "ordna.prefix" | "ordna.first" | "ordna.last" | "ordna.floor"
        | "ordna.ceil" | "ordna.at"
            if !has("keys") =>
        {
            Some(KEYS_AND_VALUES)
        }
        "ordna.snapshot" if second == Some("range") && !has("keys") => Some(KEYS_AND_VALUES),
        "hrandfield" if has("withvalues") => Some(["field", "value"]),
        name if name.starts_with('z') && has("withscores") => Some(["member", "score"]),
        "zpopmin" | "zpopmax" => Some(["member", "score"]),
        _ => None,
    }
}

/// Returns the text of a reply that is not an array. Text of several lines stays unchanged; other
/// replies take one line.
fn scalar(reply: &BytesFrame) -> String {
    match reply {
        BytesFrame::Integer(number) => number.to_string(),
        BytesFrame::Null => "(absent)".into(),
        BytesFrame::BulkString(bytes) | BytesFrame::SimpleString(bytes) => readable(bytes, false),
        BytesFrame::Error(text) => format!("error: {}", readable(text.as_bytes(), false)),
        BytesFrame::Array(items) if items.is_empty() => "(empty)".into(),
        BytesFrame::Array(items) => {
            format!("[{}]", items.iter().map(short).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns the text of an array's element that is printed inside a table cell.
fn short(reply: &BytesFrame) -> String {
    match reply {
        BytesFrame::Array(items) => format!("[{} elements]", items.len()),
        other => scalar(other),
    }
}

fn print(
    reply: &BytesFrame,
    columns: Option<[&'static str; 2]>,
    screen: &mut Screen<'_>,
) -> anyhow::Result<()> {
    match reply {
        BytesFrame::BulkString(bytes) if bytes.contains(&b'\n') => {
            let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|&byte| byte == b'\n');
            for line in lines {
                screen.line(&readable(line.strip_suffix(b"\r").unwrap_or(line), false))?;
            }
            Ok(())
        }
        BytesFrame::Array(items) if !items.is_empty() => {
            let is_flat = !items.iter().any(|item| matches!(item, BytesFrame::Array(_)));
            match columns {
                Some(names) if is_flat && items.len().is_multiple_of(2) => {
                    let rows = items.chunks_exact(2);
                    let rows = rows.map(|pair| pair.iter().map(scalar).collect());
                    screen.table(&names, &rows.collect::<Vec<_>>())
                }
                _ => print_items(items, 0, screen),
            }
        }
        other => screen.line(&scalar(other)),
    }
}

/// Prints the elements of an array, one a line; on a terminal with their numbers. Nested arrays are
/// indented.
fn print_items(items: &[BytesFrame], depth: usize, screen: &mut Screen<'_>) -> anyhow::Result<()> {
    let digits = items.len().to_string().len();
    for (at, item) in items.iter().enumerate() {
        let indent = "  ".repeat(depth);
        let number = match screen.width {
            Some(_) => format!("{indent}{:>digits$}) ", at + 1),
            None => indent,
        };
        match item {
            BytesFrame::Array(inner) if !inner.is_empty() && depth < MOST_NESTED => {
                if screen.width.is_some() {
                    screen.line(number.trim_end())?;
                }
                print_items(inner, depth + 1, screen)?;
            }
            other => screen.line(&format!("{number}{}", scalar(other)))?,
        }
    }
    Ok(())
}

/// Returns the fields of a reply that is a map.
fn fields(map: &BytesFrame) -> impl Iterator<Item = (String, &BytesFrame)> {
    let items = if let BytesFrame::Array(items) = map { items.as_slice() } else { &[] };
    items.chunks_exact(2).map(|pair| (scalar(&pair[0]), &pair[1]))
}

/// Returns the commands and subcommands that a reply of `COMMAND DOCS` describes, sorted by name.
fn descriptions(docs: &BytesFrame, container: &str) -> Vec<Description> {
    let mut found = Vec::new();
    for (name, facts) in fields(docs) {
        // The name of a subcommand has the form `container|name`.
        let name = name.rsplit('|').next().unwrap_or_default().to_lowercase();
        let name = if container.is_empty() { name } else { format!("{container} {name}") };
        let mut command = Description { name, ..Description::default() };
        for (fact, value) in fields(facts) {
            match (fact.as_str(), value) {
                ("summary", value) => command.summary = scalar(value),
                ("arguments", BytesFrame::Array(items)) => {
                    let texts = items.iter().map(|item| argument(item, &mut command.options, 0));
                    command.arguments = texts.collect::<Vec<_>>().join(" ");
                }
                ("subcommands", value) if container.is_empty() => {
                    found.extend(descriptions(value, &command.name));
                }
                _ => {}
            }
        }
        found.push(command);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns the usage text of an argument, and adds its tokens to `options`.
fn argument(item: &BytesFrame, options: &mut Vec<String>, depth: usize) -> String {
    let (mut name, mut kind, mut token) = (String::new(), String::new(), String::new());
    let (mut is_optional, mut repeats, mut inner) = (false, false, Vec::new());
    for (fact, value) in fields(item) {
        match (fact.as_str(), value) {
            ("name" | "display_text", value) => name = scalar(value),
            ("type", value) => kind = scalar(value),
            ("token", value) => token = scalar(value),
            ("flags", BytesFrame::Array(flags)) => {
                let flags: Vec<_> = flags.iter().map(scalar).collect();
                is_optional = flags.iter().any(|flag| flag.ends_with("optional"));
                repeats = flags.iter().any(|flag| flag.ends_with("multiple"));
            }
            ("arguments", BytesFrame::Array(items)) if depth < MOST_NESTED => {
                inner = items.iter().map(|item| argument(item, options, depth + 1)).collect();
            }
            _ => {}
        }
    }
    let tokens = (!token.is_empty()).then(|| token.clone());
    options.extend(tokens);
    let body = match kind.as_str() {
        "pure-token" => String::new(),
        "oneof" => inner.join(" | "),
        "block" => inner.join(" "),
        _ => name,
    };
    let body = if repeats { format!("{body} [{body} …]") } else { body };
    let text = [token, body].into_iter().filter(|part| !part.is_empty());
    let text = text.collect::<Vec<_>>().join(" ");
    match (is_optional, kind.as_str()) {
        (true, _) => format!("[{text}]"),
        (false, "oneof") => format!("({text})"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reply that a text such as `[a [b 1] nil]` describes.
    fn reply(text: &str) -> BytesFrame {
        fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<BytesFrame> {
            match words.next()? {
                "[" => Some(BytesFrame::Array(std::iter::from_fn(|| read(words)).collect())),
                "]" => None,
                "nil" => Some(BytesFrame::Null),
                word => Some(match word.parse() {
                    Ok(number) => BytesFrame::Integer(number),
                    Err(_) => BytesFrame::BulkString(word.replace('_', " ").into()),
                }),
            }
        }
        let spaced = text.replace('[', " [ ").replace(']', " ] ");
        read(&mut spaced.split_whitespace()).unwrap()
    }

    fn printed(text: &str, columns: Option<[&'static str; 2]>, width: Option<usize>) -> String {
        let mut out = Vec::new();
        print(&reply(text), columns, &mut Screen { out: &mut out, width }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_are_printed_as_tables_or_lists() {
        assert_eq!(printed("nil", None, None), "(absent)\n");
        assert_eq!(printed("[]", None, None), "(empty)\n");
        assert_eq!(printed("[a [b 1] nil]", None, None), "a\n  b\n  1\n(absent)\n");
        assert_eq!(printed("[a [b]]", None, Some(80)), "1) a\n2)\n  1) b\n");
        let pairs = Some(["key", "value"]);
        assert_eq!(printed("[a 1 bb nil]", pairs, None), "a\t1\nbb\t(absent)\n");
        let table = "key  value\n───  ────────\na    1\nbb   (absent)\n";
        assert_eq!(printed("[a 1 bb nil]", pairs, Some(80)), table);
        assert_eq!(printed("[a 1 bb]", pairs, None), "a\n1\nbb\n");
    }

    #[test]
    fn descriptions_are_read_from_the_docs() {
        let docs = "[get [summary Returns_it. arguments [[name key type key]]]
            x [summary X. subcommands [x|make [summary Makes. arguments [
                [name keep type pure-token token KEEP flags [optional]]
                [name time type oneof flags [optional] arguments [
                    [name s type integer token EX] [name ms type integer token PX]]]
                [name key type key flags [multiple]]]]]]]";
        let found = descriptions(&reply(docs), "");
        let texts: Vec<_> =
            found.iter().map(|c| format!("{} {}: {}", c.name, c.arguments, c.summary)).collect();
        let expected =
            ["get key: Returns it.", "x : X.", "x make [KEEP] [EX s | PX ms] key [key …]: Makes."];
        assert_eq!(texts, expected);
        assert_eq!(found[2].options, ["KEEP", "EX", "PX"]);
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let hint = |error: &str, line: &str| hint(error, &words(line), &found).unwrap();
        let usage = hint("ERR wrong number of arguments for 'get' command", "get");
        assert_eq!(usage, "usage: get key");
        assert_eq!(hint("WRONGTYPE Operation", "get k"), "`type k` says what the key holds");
        let near = hint("ERR unknown command 'getx'", "getx a");
        assert!(near.contains("there are get;"), "{near}");
    }
}
