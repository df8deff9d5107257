//! Descriptions of commands that only Ordna has: all calls that they allow are accepted.

use super::differences::NEWER;
use super::documents::{Argument, Document};
use super::{Connection, documents_of};
use crate::common::{Random, show, start};
use ordna_server::Config;

/// Returns a value for an argument that fits the state below.
fn value(argument: &Argument) -> &'static str {
    match (argument.token.as_deref(), argument.name.as_str()) {
        (_, "start") => "[a",
        (_, "end" | "bound") => "[b",
        (_, "index" | "name") => "i",
        (_, "query") => "*",
        (_, "id") => "1",
        (_, "vector") => "0",
        (_, "cursor" | "offset" | "position") => "0",
        (_, "milliseconds" | "unix-time-seconds" | "unix-time-milliseconds") => "1000",
        (_, "numfields") => "1",
        (Some(b"SCORE"), _) => "1.0",
        (_, "separator") => ";",
        (_, "property" | "filter") => "@f",
        (_, "dialect") => "2",
        (_, "min") => "1",
        (_, "parts" | "count" | "max" | "seconds") => "1",
        (_, "text" | "value") => "x",
        _ => "f",
    }
}

fn generate(arguments: &[Argument], random: &mut Random, words: &mut Vec<Vec<u8>>) {
    for argument in arguments {
        if argument.optional && random.below(2) == 0 {
            continue;
        }
        // A count before a list is the number of its items.
        let times =
            1 + random.below(if argument.multiple && argument.multiple_token { 3 } else { 1 });
        for _ in 0..times {
            words.extend(argument.token.clone());
            match argument.kind.as_str() {
                "pure-token" => {}
                "oneof" => {
                    let chosen = random.below(argument.nested.len());
                    generate(&argument.nested[chosen..=chosen], random, words);
                }
                "block" => generate(&argument.nested, random, words),
                _ => words.push(value(argument).into()),
            }
        }
    }
}

/// Beginnings of error texts which show that the words are wrong, not the values.
const REFUSED: [&str; 11] = [
    "Mandatory argument",
    "must be a positive integer",
    "must match the number of arguments",
    "ERR syntax error",
    "ERR unknown argument",
    "ERR Only one of",
    "wrong number of arguments",
    "not supported",
    "lacks an argument",
    "unknown subcommand",
    "unknown command",
];

#[test]
fn descriptions_of_our_commands_are_accepted() {
    let server = start(Config::default());
    let mut connection = Connection::new(server.address);
    let documents = documents_of(server.address);
    // The arguments of these commands depend on each other in ways that a description does not
    // express.
    let left_out = ["ordna.node", "ft.aggregate", "ft.create", "ft.alter", "ordna.index|create"];
    let is_ours = |document: &&Document| {
        ["ordna", "search"].contains(&document.group.as_str())
            || document.name == "delifeq"
            || NEWER.contains(&document.name.as_str())
    };
    let ours = documents.iter().filter(is_ours);
    let mut random = Random::new(1);
    let mut different = Vec::new();
    for document in ours.filter(|document| !left_out.contains(&document.name.as_str())) {
        for _ in 0..100 {
            for setup in [
                "FLUSHALL",
                "HSET f f 1 g x",
                "FT.DROPINDEX i",
                "FT.CREATE i SCHEMA f NUMERIC SORTABLE",
                "ORDNA.INDEX CREATE i ON f PARTS f TEXT g TEXT",
            ] {
                let words: Vec<&[u8]> = setup.split(' ').map(str::as_bytes).collect();
                connection.ask(&words);
            }
            let mut words: Vec<Vec<u8>> =
                document.name.split('|').map(|word| word.as_bytes().to_vec()).collect();
            generate(&document.arguments, &mut random, &mut words);
            let request: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let reply = connection.ask(&request).expect("a reply");
            let text = String::from_utf8_lossy(&reply.text).into_owned();
            if reply.is_error() && REFUSED.iter().any(|refused| text.contains(refused)) {
                let words: Vec<String> = words.iter().map(|word| show(word)).collect();
                different.push(format!("{}: {text}", words.join(" ")));
                break;
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
