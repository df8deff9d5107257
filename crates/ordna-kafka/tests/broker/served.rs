//! A node with a server on the loopback interface, as `ordna index-node` runs it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ordna_kafka::query::{GroupQueries, GroupQuery, GroupResult, Link, QueryLimits};
use ordna_kafka::{IndexNode, LocalNode, NodeExtension, NodeOptions};
use ordna_secondary::{Consistency, Query};
use ordna_server::{Config, Server};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::client::{Client, Reply};
use crate::common::{Entry, PATIENCE, entry};

pub struct Served {
    pub node: Arc<IndexNode>,
    pub nodes: Arc<GroupQueries>,
    pub address: SocketAddr,
    console: SocketAddr,
    server: Option<(oneshot::Sender<()>, Runtime)>,
}

/// Returns an address that is not in use.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Served {
    /// Starts a node, whose address is that of the server.
    pub fn start(options: NodeOptions) -> Self {
        Self::start_at(free_address(), options)
    }

    pub fn start_at(address: SocketAddr, options: NodeOptions) -> Self {
        let options = NodeOptions { address: address.to_string(), ..options };
        let node = Arc::new(IndexNode::start(options).unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        let local: Arc<dyn LocalNode> = Arc::clone(&node) as Arc<dyn LocalNode>;
        let handle = runtime.handle().clone();
        let nodes =
            GroupQueries::new(local, Link::default(), QueryLimits::default(), handle).unwrap();
        let nodes = Arc::new(nodes);
        let front = NodeExtension::new(Arc::clone(&node), Arc::clone(&nodes));
        let config = Config {
            bind: vec![address],
            console: Some(([127, 0, 0, 1], 0).into()),
            extension: Some(Arc::new(front)),
            ..Config::default()
        };
        let server = runtime.block_on(Server::bind(config)).unwrap();
        let console = server.console_address().unwrap();
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(async move {
            let _ = server.run(async { drop(stopped.await) }).await;
        });
        Self { node, nodes, address, console, server: Some((stop, runtime)) }
    }

    /// Ends the server. The node stays in the group and keeps its partitions.
    pub fn fall_silent(&mut self) {
        if let Some((stop, runtime)) = self.server.take() {
            drop(stop);
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
    }

    pub fn say(&self, words: &[&str]) -> Reply {
        let mut client = Client::connect(self.address.port(), PATIENCE).unwrap();
        client.ask(words).unwrap()
    }

    /// Returns the fields of `INFO nodes`.
    pub fn info(&self) -> Vec<(String, String)> {
        let text = self.say(&["INFO", "nodes"]).text();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(field, value)| (field.to_owned(), value.trim_end().to_owned())).collect()
    }

    /// Returns a field of `INFO nodes`.
    pub fn field(&self, name: &str) -> Option<String> {
        self.info().into_iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// Returns a page, requested over HTTP.
    pub fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.console).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.fall_silent();
    }
}

/// Returns a query for all entries with their values, in the newest state.
pub fn ask() -> GroupQuery {
    GroupQuery {
        index: "by_size".to_owned(),
        query: Query::new().covering().limit(20_000),
        consistency: Consistency::RequestPlus,
        timeout: PATIENCE,
        ..GroupQuery::default()
    }
}

pub fn rows(found: &GroupResult) -> Vec<Entry> {
    found.entries.iter().map(|one| entry(&one.id, &one.parts)).collect()
}
