//! The pages served over HTTP: metrics, health, and the console.
//!
//! Pages answer GET only. They are served only to requests that name this machine by a number or as
//! `localhost`, or that have the password, so that a page of another site whose name leads here is
//! refused. The console shows what the user may see with commands. It asks for a password unless
//! the default user needs none and may see the page.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use ordna::Direction;
use ordna::key::prefix_end;
use ordna::sync::{Lock, fault};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::commands;
use crate::execution::guesses::{
    LoginError, check_password, delay_of_guess, too_many, wrong_password,
};
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::listen::metrics;
use crate::state::ServerState;
use crate::state::acl::user::User;
use crate::wire::request::OwnedRequest;

/// Maximum number of open connections of one listener. When another one arrives, the oldest is
/// closed, so that connections that send half a request or read no reply cannot keep a health probe
/// out. 64 is more than browsers and collectors of metrics need; each connection takes a file
/// descriptor and about 16 KiB.
pub const MOST_CONNECTIONS: usize = 64;
/// Maximum time that a connection may take to send the header of a request.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// Maximum time that a request waits for a running script.
const SCRIPT_TIME: Duration = Duration::from_secs(1);
/// Number of entries that the browser of keys shows.
const SHOWN: usize = 50;
/// Number of bytes of a value that the browser of keys shows.
const SHOWN_BYTES: usize = 2048;

type Reply = Response<Full<Bytes>>;

/// The response to a visitor.
struct Page {
    reply: Reply,
    /// The name of the user for which a wrong password was given, if one was.
    guess: Option<Vec<u8>>,
}

impl Page {
    fn of(reply: Reply) -> Self {
        Self { reply, guess: None }
    }
}

/// The open connections of a listener by number, each with the notification that ends it.
#[derive(Debug, Default)]
struct Connections(Lock<BTreeMap<u64, Arc<Notify>>>);

impl Connections {
    /// Adds a connection, whose number is higher than all earlier ones. Ends the oldest one if
    /// there are too many. Returns the notification that ends the new one.
    fn enter(&self, number: u64) -> Arc<Notify> {
        let end = Arc::new(Notify::new());
        let mut open = self.0.lock();
        open.insert(number, Arc::clone(&end));
        if open.len() > MOST_CONNECTIONS
            && let Some((_, oldest)) = open.pop_first()
        {
            // The notification is stored if the task does not wait yet.
            oldest.notify_one();
        }
        end
    }

    fn leave(&self, number: u64) {
        self.0.lock().remove(&number);
    }
}

/// Serves pages until its task is ended.
pub async fn serve(state: Arc<ServerState>, listener: TcpListener, console: bool) {
    let connections = Arc::new(Connections::default());
    for number in 0.. {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for HTTP");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (state, connections) = (state.clone(), connections.clone());
        let end = connections.enter(number);
        tokio::spawn(async move {
            let guesses = AtomicU32::new(0);
            let (state, guesses) = (&*state, &guesses);
            let page = move |request: Request<Incoming>| {
                async move {
                    let Page { mut reply, guess } = page(state, console, peer, &request).await;
                    let guesses = match &guess {
                        Some(_) => guesses.fetch_add(1, Ordering::Relaxed) + 1,
                        None => 0,
                    };
                    if let Some(name) = guess {
                        wrong_password(state, &name, peer, "console", format!("addr={peer}"));
                    }
                    match delay_of_guess(guesses) {
                        Some(delay) => tokio::time::sleep(delay).await,
                        // Closed after the same number of wrong passwords as a connection of the
                        // Redis protocol.
                        None => {
                            let close = HeaderValue::from_static("close");
                            reply.headers_mut().insert(CONNECTION, close);
                        }
                    }
                    Ok::<_, Infallible>(reply)
                }
            };
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(16 << 10);
            let serving = http.serve_connection(TokioIo::new(stream), service_fn(page));
            let mut serving = std::pin::pin!(serving);
            // A connection ends after a while, if possible between two requests. Otherwise a peer
            // that does not read its replies would keep its place forever.
            let stall = state.config.stall;
            let served = tokio::select! {
                served = serving.as_mut() => served,
                () = end.notified() => {
                    tracing::debug!(%peer, "closed: there are too many connections over HTTP");
                    Ok(())
                }
                () = tokio::time::sleep(stall) => {
                    serving.as_mut().graceful_shutdown();
                    let ended = tokio::time::timeout(stall, serving).await;
                    ended.unwrap_or_else(|_| {
                        tracing::warn!(%peer, "closed: the peer reads no reply over HTTP");
                        Ok(())
                    })
                }
            };
            if let Err(error) = served {
                tracing::debug!(%peer, %error, "a request over HTTP failed");
            }
            connections.leave(number);
        });
    }
}

fn reply(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Reply {
    let built = Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("cache-control", "no-store")
        .header("x-content-type-options", "nosniff")
        .header("x-frame-options", "DENY")
        .header(
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
        )
        .body(Full::new(body.into()));
    built.unwrap_or_default()
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    reply(status, "text/plain; charset=utf-8", body)
}

/// Returns whether the request names this machine by an address or as `localhost`.
fn is_for_us(request: &Request<Incoming>) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host else { return true };
    let name = host.rsplit_once(':').map_or(
        host,
        |(name, port)| {
            if port.ends_with(']') { host } else { name }
        },
    );
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Returns the name and the password of a request.
fn login(request: &Request<Incoming>) -> Option<(Vec<u8>, Vec<u8>)> {
    let said = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let said = STANDARD.decode(said.strip_prefix("Basic ")?).ok()?;
    let at = said.iter().position(|byte| *byte == b':')?;
    // Browsers ask for a name; an empty one means the default user.
    let name = if at == 0 { b"default" } else { &said[..at] };
    Some((name.to_vec(), said[at + 1..].to_vec()))
}

/// The sender of a request.
enum Visitor {
    User(Arc<User>),
    /// No one has logged in, and the default user has a password.
    Stranger,
    /// Name and password are not those of a user.
    Guesser(Vec<u8>),
    /// Too many wrong passwords came from the address, which may try again after this time.
    Refused(Duration),
}

fn visitor(state: &ServerState, peer: SocketAddr, request: &Request<Incoming>) -> Visitor {
    match (login(request), state.acl.welcome()) {
        (Some((name, password)), _) => match check_password(state, peer, &name, &password) {
            Ok(user) => Visitor::User(user),
            Err(LoginError::Wrong) => Visitor::Guesser(name),
            Err(LoginError::TooMany(wait)) => Visitor::Refused(wait),
        },
        (None, Some(user)) => Visitor::User(user),
        (None, None) => Visitor::Stranger,
    }
}

/// Returns the first of the commands that the user may not execute. A page shows the replies of
/// these commands.
fn denied(state: &ServerState, user: &User, commands: &[&[&[u8]]]) -> Option<&'static str> {
    let denied = |command: &&[&[u8]]| {
        let request = OwnedRequest::of(command);
        let spec = commands::table().catalog.find(command[0])?.of_call(request.arguments());
        user.check(spec, request.arguments(), &state.indexes).is_err().then_some(spec.name)
    };
    commands.iter().find_map(denied)
}

async fn page(
    state: &ServerState,
    console: bool,
    peer: SocketAddr,
    request: &Request<Incoming>,
) -> Page {
    if request.method() != Method::GET {
        return Page::of(text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"));
    }
    if matches!(request.uri().path(), "/healthz" | "/primary") || fault!("scripts.pages.wait") {
        return answered(state, console, peer, request);
    }
    // The other pages lock the keyspace. No thread waits for a script, because there may be many
    // requests.
    let _delayed = state.keyspace_lock().not_held_long(SCRIPT_TIME).await;
    if let Some(time) = state.keyspace_lock().held_long_for() {
        let why = format!("busy: a script has run for {} s\n", time.as_secs());
        return Page::of(text(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    answered(state, console, peer, request)
}

/// Returns the response to a valid request.
fn answered(
    state: &ServerState,
    console: bool,
    peer: SocketAddr,
    request: &Request<Incoming>,
) -> Page {
    let visitor = visitor(state, peer, request);
    // A page of another site does not know the password.
    let knows_password = matches!(&visitor, Visitor::User(user) if !user.needs_no_password());
    if !is_for_us(request) && !knows_password {
        // The reply reveals whether the password was right.
        let guess = match visitor {
            Visitor::Guesser(name) => Some(name),
            _ => None,
        };
        let reply = text(StatusCode::MISDIRECTED_REQUEST, "ask by address, or as localhost\n");
        return Page { reply, guess };
    }
    let path = request.uri().path();
    match path {
        "/healthz" => return Page::of(text(StatusCode::OK, "ok\n")),
        "/readyz" => {
            let is_loading = state.data_directory.as_ref().is_some_and(|it| it.is_loading());
            let refused = || state.keys().store().check_log().err();
            let extension = state.config.extension.as_ref();
            let replication = state.config.replication.as_ref();
            let ended = || replication?.status().failure.map(|why| format!("replication: {why}"));
            let failure =
                || state.indexes.failure().or_else(|| extension?.failure()).or_else(ended);
            let reason = match (state.stopping.load(Ordering::Relaxed), is_loading) {
                (true, _) => "stopping".to_owned(),
                (_, true) => "loading".to_owned(),
                _ => match (refused(), failure()) {
                    (None, None) => return Page::of(text(StatusCode::OK, "ready\n")),
                    (Some(error), _) => format!("writes are refused: {error}"),
                    (None, Some(failure)) => failure,
                },
            };
            return Page::of(text(StatusCode::SERVICE_UNAVAILABLE, reason + "\n"));
        }
        "/primary" => {
            let is_primary = !state.is_loading() && !state.refuses_writes();
            return Page::of(match is_primary {
                true => text(StatusCode::OK, "primary\n"),
                false => text(StatusCode::SERVICE_UNAVAILABLE, "not a primary\n"),
            });
        }
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            return Page::of(reply(StatusCode::OK, kind, metrics::text(state)));
        }
        _ if !console => {
            let pages = "/metrics, /healthz, /readyz and /primary are here\n";
            return Page::of(text(StatusCode::NOT_FOUND, pages));
        }
        _ => {}
    }
    let user = match visitor {
        Visitor::User(user) => user,
        Visitor::Stranger => return Page::of(ask_for_password()),
        Visitor::Guesser(name) => {
            return Page { reply: ask_for_password(), guess: Some(name) };
        }
        Visitor::Refused(wait) => {
            let mut reply = text(StatusCode::TOO_MANY_REQUESTS, too_many(wait) + "\n");
            // In whole seconds; no wait is longer than one.
            reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return Page::of(reply);
        }
    };
    let needed: &[&[&[u8]]] = match path {
        "/state" => &[&[b"info"], &[b"client", b"list"], &[b"slowlog", b"get"]],
        // The keys of the page are not known in advance; `scan` requires access to all keys.
        "/keys" => &[&[b"scan", b"0"], &[b"get", b"*"]],
        _ => &[],
    };
    if let Some(command) = denied(state, &user, needed) {
        let name = &user.name;
        let why = format!("user '{name}' may not execute '{command}', which this page needs\n");
        let mut reply = text(StatusCode::FORBIDDEN, why);
        if login(request).is_none() {
            // Another user may have the permission.
            reply = ask_for_password();
        }
        return Page::of(reply);
    }
    Page::of(match path {
        "/" => reply(
            StatusCode::OK,
            "text/html; charset=utf-8",
            include_str!("console.html").as_bytes(),
        ),
        "/state" => reply(StatusCode::OK, "application/json", overview(state).to_string()),
        "/keys" => {
            reply(StatusCode::OK, "application/json", keys(state, request.uri()).to_string())
        }
        _ => text(StatusCode::NOT_FOUND, "there is one page: /\n"),
    })
}

fn ask_for_password() -> Reply {
    let mut reply = text(StatusCode::UNAUTHORIZED, "the password, please\n");
    let ask = HeaderValue::from_static("Basic realm=\"ordna\"");
    reply.headers_mut().insert(WWW_AUTHENTICATE, ask);
    reply
}

/// Returns the figures of the server that the console shows.
fn overview(state: &ServerState) -> Value {
    let counts = state.statistics();
    let samples: Vec<Value> = state
        .samples
        .all()
        .into_iter()
        .map(|sample| {
            json!([
                sample.at,
                sample.commands,
                sample.median,
                sample.high,
                sample.memory,
                sample.input_bytes,
                sample.output_bytes,
                sample.clients
            ])
        })
        .collect();
    let (entries, clients_memory) = (counts.bytes, state.clients.memory());
    let resident = crate::statistics::process::resident_bytes() as usize;
    let rest = resident.saturating_sub(entries + clients_memory);
    let parts = json!([
        ["keys and values, with old versions", entries],
        ["clients' buffers", clients_memory],
        ["the rest of the process", rest],
    ]);
    let held = state.snapshots.list();
    let snapshots: Vec<Value> = counts
        .snapshots
        .iter()
        .map(|snapshot| {
            let number = held.iter().find(|held| held.epoch == snapshot.epoch);
            json!({
                "epoch": snapshot.epoch,
                "age": snapshot.age.as_secs_f64(),
                "id": number.map(|held| held.id),
                "client": number.and_then(|held| held.owner),
                "left": number.and_then(|held| held.lease).map(|left| left.as_secs_f64()),
            })
        })
        .collect();
    let clients: Vec<Value> = state
        .clients
        .all()
        .iter()
        .take(200)
        .map(|client| {
            let told = client.info().clone();
            let command = client.last_command.load(Ordering::Relaxed);
            json!({
                "id": client.id,
                "peer": client.peer.to_string(),
                "name": String::from_utf8_lossy(&told.name),
                "user": told.user,
                "age": client.since.elapsed().as_secs(),
                "idle": client.idle().as_secs(),
                "memory": client.memory(),
                "command": state.catalog.name_of(command),
            })
        })
        .collect();
    let slow: Vec<Value> = state
        .slow_log
        .list(20)
        .into_iter()
        .map(|slow| {
            let words: Vec<_> = slow
                .arguments
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            json!({"at": slow.at, "micros": slow.took.as_micros() as u64, "words": words.join(" ")})
        })
        .collect();
    let (scans, scan_age) = state.scans.count();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "address": state.address.to_string(),
        "uptime": state.started.elapsed().as_secs(),
        "keys": counts.items,
        "expiring": counts.expiring.0,
        "dead": counts.dead,
        "limit": state.settings.max_memory.get(),
        "resident": resident,
        "calls": state.stats.calls(),
        "samples": samples,
        "memory": parts,
        "snapshots": snapshots,
        "scans": scans,
        "scan_age": scan_age.as_secs_f64(),
        "clients": clients,
        "slow": slow,
        "nodes": state.config.extension.as_ref().map(|extension| extension.console()),
        "commands": commands::table().catalog.all().len(),
    })
}

/// Returns a decoded parameter of the query.
fn query(uri: &Uri, name: &str) -> Option<Vec<u8>> {
    let pairs = uri.query()?.split('&');
    let value = pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    Some(bytes)
}

/// Formats bytes for display: as text if they are UTF-8, and otherwise with escapes.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Returns a page of the browser: entries with `prefix`, either from the key `from` on or before
/// the key `before`.
fn keys(state: &ServerState, uri: &Uri) -> Value {
    let prefix = query(uri, "prefix").unwrap_or_default();
    let after = prefix_end(&prefix);
    let (from, before) = (query(uri, "from"), query(uri, "before"));
    // A `from` before the prefix would show keys without it.
    let from = from.filter(|from| *from >= prefix);
    let lower = from.as_deref().unwrap_or(&prefix);
    let upper = match (&before, &after) {
        (Some(before), _) => Bound::Excluded(before.as_slice()),
        (None, Some(after)) => Bound::Excluded(after.as_slice()),
        (None, None) => Bound::Unbounded,
    };
    let direction = if before.is_some() { Direction::Descending } else { Direction::Ascending };
    let mut entries = Vec::new();
    let keys = state.keys();
    keys.visit(Bound::Included(lower), upper, direction, |key, value| {
        let text = match (stored_value::hash(value), ValueKind::of(value)) {
            (Some(hash), _) => format!("(hash of {} fields)", hash.len()),
            (None, kind) if kind != ValueKind::String => {
                format!("({} of {} elements)", kind.name(), stored_value::elements(value))
            }
            (None, _) => {
                let value = stored_value::string(value).unwrap_or(value);
                shown(&value[..value.len().min(SHOWN_BYTES)])
            }
        };
        let hex: String = key.iter().map(|byte| format!("%{byte:02x}")).collect();
        entries.push(json!({
            "key": shown(key), "at": hex, "value": text, "bytes": value.len(),
        }));
        if entries.len() < SHOWN {
            std::ops::ControlFlow::Continue(())
        } else {
            std::ops::ControlFlow::Break(())
        }
    });
    if direction == Direction::Descending {
        entries.reverse();
    }
    let near = |entry: Option<(Vec<u8>, Vec<u8>)>| entry.map(|(key, _)| shown(&key));
    // The neighbours of the requested key, with or without the prefix.
    let below = keys.nearest(Bound::Unbounded, Bound::Excluded(lower), Direction::Descending);
    let above = keys.ceiling(lower);
    json!({
        "entries": entries,
        "full": entries.len() == SHOWN,
        "below": near(below),
        "above": near(above),
    })
}
