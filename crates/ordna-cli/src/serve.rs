//! `ordna serve`.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ordna_server::{Config, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Options of `ordna serve`.
#[derive(Debug, Parser)]
pub struct Options {
    /// Address to listen on; one that other machines reach needs a password
    #[arg(long, default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// Password that clients must give with AUTH
    #[arg(long, env = "ORDNA_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Connections at once
    #[arg(long, default_value_t = 10_000)]
    max_clients: usize,
    /// Bytes that keys and values may take, with what it takes to order them (512mb, 4gb); beyond,
    /// writes are refused
    #[arg(long, value_parser = bytes)]
    max_memory: Option<usize>,
    /// Worker threads; as many as there are cores unless given
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Threads that remove what has expired and what snapshots no longer need; as many as worker
    /// threads unless given
    #[arg(long)]
    collectors: Option<NonZeroUsize>,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(options: Options, greet: bool) -> anyhow::Result<ExitCode> {
    let filter = EnvFilter::try_from_env("ORDNA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = options.threads {
        builder.worker_threads(threads.get());
    }
    let runtime = builder.enable_all().build()?;
    let default = Config::default();
    let config = Config {
        bind: SocketAddr::new(options.bind, options.port),
        password: options.password,
        max_clients: options.max_clients,
        max_memory: options.max_memory,
        collectors: options.collectors.or(options.threads).unwrap_or(default.collectors),
        ..default
    };
    runtime.block_on(async {
        // Before the socket is there, so that nobody who reaches it can be too early with a signal.
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let server = Server::bind(config).await?;
        tracing::info!(address = %server.address(), "ready");
        if greet {
            say_what_next(server.address());
        }
        server
            .run(async {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            })
            .await;
        tracing::info!("stopped");
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

/// A number of bytes, with a unit as Redis writes them: `kb` is 1,024, `k` 1,000, and so on.
fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        other => return Err(format!("{other:?} is no unit; b, k, kb, m, mb, g and gb are")),
    };
    let number: usize = text[..digits].parse().map_err(|_| "needs a number first".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is more than this machine can count"))
}

fn say_what_next(address: SocketAddr) {
    let port = address.port();
    println!(
        "\nOrdna listens on {address}. It keeps everything in memory; Ctrl-C stops it.\n\n\
         In another terminal:\n  \
         cargo run --release -- load data/places.tsv.gz --key country,name,id\n  \
         redis-cli -p {port} ORDNA.PREFIX SE:Upp KEYS\n  \
         redis-cli -p {port} ORDNA.RANGE - + REV LIMIT 10 KEYS\n"
    );
}
