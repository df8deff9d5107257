//! Tests of secondary indexes over hashes.

mod composite;
mod recovery;
mod rights;
mod search;

use ordna_server::Config;

use crate::common::{Client, Running, start};

pub fn client() -> (Running, Client) {
    let server = start(Config::default());
    let client = Client::new(server.address);
    (server, client)
}

/// Returns the bulk strings of a reply, without their lengths.
pub fn words(reply: &str) -> Vec<String> {
    let parts =
        reply.split(r"\r\n").filter(|part| !part.starts_with(['*', '$']) && !part.is_empty());
    parts.map(str::to_owned).collect()
}

pub fn ids(reply: &str) -> Vec<String> {
    words(reply).into_iter().skip(1).collect()
}

pub fn towns(client: &mut Client) {
    for line in [
        "HSET t:1 country SE population 1515017 name Stockholm tags capital,port",
        "HSET t:2 country SE population 608462 name Gothenburg tags port",
        "HSET t:3 country NO population 580000 name Oslo tags capital,port",
        "HSET t:4 country SE population 362133 name Malmo",
        "HSET t:5 country SE population unknown name Nowhere tags Lost",
        "HSET other:1 country SE population 1 name Elsewhere tags port",
        "SET t:text SE",
    ] {
        client.say(line);
    }
}

pub fn ids_of(reply: &str) -> Vec<String> {
    words(reply).into_iter().filter(|word| !word.starts_with(':')).collect()
}
