//! Descriptions of commands, as `COMMAND DOCS` returns them.

use super::frame::Frame;

/// An argument of a command.
#[derive(Debug, Clone)]
pub struct Argument {
    pub name: String,
    pub kind: String,
    pub token: Option<Vec<u8>>,
    pub since: String,
    pub optional: bool,
    pub multiple: bool,
    pub multiple_token: bool,
    pub nested: Vec<Argument>,
}

/// A command, or a subcommand with the name of its command, for example `config|get`.
#[derive(Debug, Clone)]
pub struct Document {
    pub name: String,
    pub group: String,
    pub since: String,
    pub arguments: Vec<Argument>,
}

fn text(frame: &Frame, field: &str) -> String {
    frame.field(field).map_or_else(String::new, |value| String::from_utf8_lossy(&value.text).into())
}

fn arguments(frame: Option<&Frame>) -> Vec<Argument> {
    let read = |frame: &Frame| {
        let has = |flag: &str| {
            let flags = frame.field("flags");
            flags.is_some_and(|all| all.items.iter().any(|item| item.text == flag.as_bytes()))
        };
        Argument {
            name: text(frame, "name"),
            kind: text(frame, "type"),
            token: frame.field("token").map(|token| token.text.clone()),
            since: text(frame, "since"),
            optional: has("optional"),
            multiple: has("multiple"),
            multiple_token: has("multiple_token"),
            nested: arguments(frame.field("arguments")),
        }
    };
    frame.map_or_else(Vec::new, |frame| frame.items.iter().map(read).collect())
}

/// Returns the documents in a reply to `COMMAND DOCS`. A command that has subcommands is replaced
/// by them.
pub fn documents(reply: &Frame) -> Vec<Document> {
    let mut all = Vec::new();
    for pair in reply.items.chunks_exact(2) {
        match pair[1].field("subcommands") {
            Some(subcommands) => all.extend(documents(subcommands)),
            None => all.push(Document {
                name: String::from_utf8_lossy(&pair[0].text).into(),
                group: text(&pair[1], "group"),
                since: text(&pair[1], "since"),
                arguments: arguments(pair[1].field("arguments")),
            }),
        }
    }
    all
}
