//! Connections to other nodes, which use the same RESP protocol as clients.
//!
//! # Contract
//! Any task can call the methods. A call has no timeout; the caller drops it instead. A call holds
//! at most `most` bytes of the reply; if the member sends more, the call fails. At most
//! [`MOST_AT_ONCE`] calls to a member are in flight and others wait, which limits the load of the
//! member. A connection is used for another call only after a complete reply, so that a late reply
//! is never taken for that of another call.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use ordna::sync::{Lock, fault};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::node::OwnerTable;
use crate::query::gather::QuestionError;

/// Maximum number of concurrent calls to a member.
const MOST_AT_ONCE: usize = 32;
/// Maximum number of idle connections to a member that are kept.
const MOST_IDLE: usize = 8;
/// Number of bytes to read at a time.
const CHUNK: usize = 16 << 10;
/// Maximum number of bytes of a status or an error.
const LINE: usize = 4 << 10;

/// How a node connects to the other nodes.
#[derive(Clone, Default)]
pub struct Link {
    /// The user; `None` stands for the default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The TLS settings; `None` for connections without encryption.
    pub tls: Option<LinkTls>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_set = self.password.is_some();
        let (user, tls) = (&self.user, &self.tls);
        f.debug_struct("Link")
            .field("user", user)
            .field("password", &is_set)
            .field("tls", tls)
            .finish()
    }
}

/// TLS settings for connections to the other nodes.
#[derive(Debug, Clone)]
pub struct LinkTls {
    /// PEM file with the authorities that issue the nodes' certificates.
    pub authorities: PathBuf,
    /// PEM files with the certificate chain and the private key of this node, if the other nodes
    /// require a certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The host name in the nodes' certificates, if it differs from the host in their addresses.
    pub name: Option<String>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The state of the connections to one member.
struct Peer {
    idle: Lock<Vec<Box<dyn Stream>>>,
    room: Semaphore,
}

/// The connections to all members.
pub struct Peers {
    link: Link,
    connector: Option<TlsConnector>,
    peers: Lock<HashMap<String, Arc<Peer>>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("link", &self.link).finish_non_exhaustive()
    }
}

fn connector(tls: &LinkTls) -> Result<TlsConnector, String> {
    let certificates = |file: &PathBuf| -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
        read.map_err(|error| format!("{}: {error}", file.display()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.authorities)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", tls.authorities.display()))?;
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(chain)?;
            let private = PrivateKeyDer::from_pem_file(key);
            let private = private.map_err(|error| format!("{}: {error}", key.display()))?;
            builder.with_client_auth_cert(chain, private).map_err(|error| error.to_string())?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn unreachable(error: impl std::fmt::Display) -> QuestionError {
    QuestionError::Unreachable(error.to_string())
}

/// Encodes a command in RESP.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Reads one reply, which must be a bulk string or a line.
async fn reply(stream: &mut Box<dyn Stream>, most: usize) -> Result<OwnedFrame, QuestionError> {
    let mut buffer = Vec::new();
    loop {
        // No reply to a node's command is an array, and a deeply nested one would overflow the
        // stack.
        if let Some(sign) =
            buffer.first().filter(|sign| !b"$+-".contains(sign) && !fault!("faulty.no_arrays"))
        {
            return Err(QuestionError::Garbled(format!("a reply begins with the byte {sign}")));
        }
        let found = decode(&buffer).map_err(|error| QuestionError::Garbled(error.to_string()))?;
        match found {
            Some((frame, used)) if used == buffer.len() => return Ok(frame),
            Some(_) => return Err(QuestionError::Garbled("more than one reply".to_owned())),
            None => {}
        }
        if buffer.len() > most + LINE && !fault!("faulty.most") {
            return Err(QuestionError::Garbled(format!("a reply of more than {most} bytes")));
        }
        buffer.reserve(CHUNK);
        let read = stream.read_buf(&mut buffer).await.map_err(unreachable)?;
        if read == 0 {
            return Err(QuestionError::Unreachable("it closed the connection".to_owned()));
        }
    }
}

/// Sends a command and reads its reply.
async fn exchange(
    stream: &mut Box<dyn Stream>,
    words: &[&[u8]],
    most: usize,
) -> Result<OwnedFrame, QuestionError> {
    stream.write_all(&command(words)).await.map_err(unreachable)?;
    stream.flush().await.map_err(unreachable)?;
    reply(stream, most).await
}

/// Returns the error that an error reply stands for.
fn told(error: String) -> QuestionError {
    const DENIALS: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "ERR unknown command"];
    if DENIALS.iter().any(|code| error.starts_with(code)) {
        QuestionError::Denied(error)
    } else {
        QuestionError::Unreachable(error)
    }
}

impl Peers {
    /// Creates the set of connections, which is empty at first.
    ///
    /// # Errors
    /// Certificates or keys cannot be read. The text names the file.
    pub fn new(link: Link) -> Result<Self, String> {
        let connector = link.tls.as_ref().map(connector).transpose()?;
        Ok(Self { link, connector, peers: Lock::default() })
    }

    async fn connect(&self, address: &str) -> Result<Box<dyn Stream>, QuestionError> {
        let stream = TcpStream::connect(address).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let mut stream: Box<dyn Stream> = match (&self.connector, &self.link.tls) {
            (Some(connector), Some(tls)) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let name = tls.name.clone().unwrap_or_else(|| host.to_owned());
                let name = ServerName::try_from(name).map_err(unreachable)?;
                let shaken = connector.connect(name, stream).await;
                Box::new(shaken.map_err(|error| QuestionError::Denied(format!("TLS: {error}")))?)
            }
            _ => Box::new(stream),
        };
        if let Some(password) = &self.link.password {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(self.link.user.as_ref().map(String::as_bytes));
            words.push(password.as_bytes());
            match exchange(&mut stream, &words, LINE).await? {
                OwnedFrame::SimpleString(_) => {}
                OwnedFrame::Error(error) => return Err(told(error)),
                _ => return Err(QuestionError::Garbled("AUTH is answered by a value".to_owned())),
            }
        }
        Ok(stream)
    }

    fn peer(&self, address: &str) -> Arc<Peer> {
        let new = || Peer { idle: Lock::default(), room: Semaphore::new(MOST_AT_ONCE) };
        let mut peers = self.peers.lock();
        Arc::clone(peers.entry(address.to_owned()).or_insert_with(|| Arc::new(new())))
    }

    /// Closes the connections to members that are not in the table.
    pub fn keep(&self, owners: &OwnerTable) {
        let is_member = |address: &String, _: &mut Arc<Peer>| {
            owners.members.iter().any(|member| member.address == *address)
        };
        self.peers.lock().retain(is_member);
    }

    /// Sends a command to a member and returns the bulk string of its reply.
    ///
    /// # Errors
    /// [`QuestionError`].
    pub async fn call(
        &self,
        address: &str,
        words: &[&[u8]],
        most: usize,
    ) -> Result<Vec<u8>, QuestionError> {
        let peer = self.peer(address);
        let _room = peer.room.acquire().await.map_err(unreachable)?;
        let idle = peer.idle.lock().pop();
        let (mut stream, mut is_old) = match idle {
            Some(stream) => (stream, true),
            None => (self.connect(address).await?, false),
        };
        let frame = loop {
            match exchange(&mut stream, words, most).await {
                // The member may have closed an idle connection, so the call is tried again with a
                // new one.
                Err(QuestionError::Unreachable(_)) if is_old => {
                    stream = self.connect(address).await?;
                    is_old = false;
                }
                frame => break frame?,
            }
        };
        let mut idle = peer.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push(stream);
        }
        drop(idle);
        match frame {
            OwnedFrame::BulkString(bytes) => Ok(bytes),
            OwnedFrame::Error(error) => Err(told(error)),
            _ => Err(QuestionError::Garbled("a reply is not a bulk string".to_owned())),
        }
    }
}
