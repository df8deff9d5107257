//! `ordna index-node`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use ordna_kafka::query::{GroupQueries, QueryLimits};
use ordna_kafka::{IndexNode, LocalNode, NodeExtension, NodeOptions};
use ordna_server::parse_definition;

use crate::serve;

/// Options of `ordna index-node`: its own, and those of `ordna serve`.
#[derive(Debug, Parser)]
#[group(id = "index_node")]
pub struct IndexNodeOptions {
    /// Addresses of Kafka brokers: HOST:PORT, separated by commas
    #[arg(long)]
    brokers: String,
    /// Consumer group, whose nodes share the topic's partitions
    #[arg(long)]
    group: String,
    /// Topic to index. Record keys are document ids; values are JSON objects, and null deletes
    #[arg(long)]
    topic: String,
    /// Index, in the form of ORDNA.INDEX CREATE: 'name ON prefix PARTS field
    /// [NUMERIC|TEXT|LOWER|BOOL] [ARRAY|SPLIT separator] [ASC|DESC] … [WHERE filter]'; the prefix *
    /// means all ids, and dots in a field lead into objects. May be repeated
    #[arg(long = "index", required = true)]
    indexes: Vec<String>,
    /// Address at which other nodes reach this node: HOST:PORT [default: the address it listens on]
    #[arg(long)]
    advertise: Option<String>,
    /// Directory of the partitions' backups, which all nodes share
    #[arg(long)]
    backups: Option<PathBuf>,
    /// Time between two backups of a partition (30s, 15m, 6h) [default: none]
    #[arg(long, requires = "backups")]
    backups_every: Option<String>,
    /// Back a partition up before another node takes it over, and when this node stops
    #[arg(long, requires = "backups")]
    backups_on_revoke: bool,
    /// Number of backups of each partition to keep. If the brokers lose records, the newest backup from
    /// before the loss is restored
    #[arg(long, default_value_t = 3)]
    backups_keep: usize,
    /// Number of up-to-date copies of each partition on other nodes
    #[arg(long, default_value_t = 0)]
    standby: usize,
    /// Time after which other nodes take over the partitions of a node that does not respond
    #[arg(long, default_value = "10s")]
    session_timeout: String,
    /// Setting of librdkafka: NAME=VALUE; may be repeated
    #[arg(long = "kafka-setting")]
    settings: Vec<String>,
    /// Certificate authorities of the nodes (PEM). With it, nodes use TLS among themselves
    #[arg(long)]
    link_ca: Option<PathBuf>,
    /// Host name in the certificates of the nodes [default: the host of each node's address]
    #[arg(long, requires = "link_ca")]
    link_name: Option<String>,
    #[command(flatten)]
    server: serve::ServeOptions,
}

/// Parses the definition of an index.
fn definition(text: &str) -> anyhow::Result<ordna_secondary::IndexDefinition> {
    let mut words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    if let Some(prefix) = words.get_mut(2).filter(|prefix| **prefix == b"*") {
        *prefix = b"";
    }
    let parsed = parse_definition(&words);
    parsed.map_err(|why| anyhow!("--index {text:?}: {}", why.trim_start_matches("ERR ")))
}

impl IndexNodeOptions {
    fn node(&self) -> anyhow::Result<NodeOptions> {
        let address = match &self.advertise {
            Some(address) => address.clone(),
            None => {
                let address = self.server.address(self.link_ca.is_some())?;
                if address.port() == 0 || address.ip().is_unspecified() {
                    bail!("other nodes cannot reach {address}: give --advertise HOST:PORT");
                }
                address.to_string()
            }
        };
        let pair = |text: &String| {
            let pair = text.split_once('=');
            let pair = pair.with_context(|| format!("--kafka-setting {text:?} is no NAME=VALUE"));
            pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let every = self.backups_every.as_deref().map(serve::duration).transpose()?;
        let node = NodeOptions::new(&self.brokers, &self.group, &self.topic, address);
        Ok(NodeOptions {
            indexes: self.indexes.iter().map(|text| definition(text)).collect::<Result<_, _>>()?,
            backups: self.backups.clone(),
            backup_every: every,
            backup_on_revoke: self.backups_on_revoke,
            backup_keep: self.backups_keep,
            memory_limit: self.server.max_memory()?.filter(|limit| *limit > 0),
            standby: self.standby,
            session_timeout: serve::duration(&self.session_timeout)?,
            settings: self.settings.iter().map(pair).collect::<Result<_, _>>()?,
            ..node
        })
    }
}

/// Indexes and serves until SIGTERM, SIGINT or SHUTDOWN; then leaves the group.
pub fn run(mut options: IndexNodeOptions) -> anyhow::Result<ExitCode> {
    let log_level = serve::start_log()?;
    options.server = std::mem::take(&mut options.server).with_file()?;
    if options.server.is_replicated() {
        bail!("an index node has no keyspace of its own to replicate");
    }
    let link = options.server.link(options.link_ca.clone(), options.link_name.clone())?;
    let node = Arc::new(IndexNode::start(options.node()?)?);
    // Connections to other nodes have a runtime of their own: the server's ends before them.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build()?;
    let local: Arc<dyn LocalNode> = Arc::clone(&node) as Arc<dyn LocalNode>;
    let nodes = GroupQueries::new(local, link, QueryLimits::default(), runtime.handle().clone());
    let nodes = nodes.map_err(|why| anyhow!("connections between nodes: {why}"))?;
    let front = NodeExtension::new(Arc::clone(&node), Arc::new(nodes));
    let done = serve::run(options.server, false, Some(Arc::new(front)), log_level);
    runtime.shutdown_background();
    node.stop();
    done
}
