//! Tests of certificates and users that are replaced while the server runs.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use ordna_server::{Config, TlsConfig};

use crate::common::{Client, Running, start};
use crate::state::operation::{connect, ping};

/// A directory of certificates, which is removed on drop.
struct Certificates(PathBuf);

impl Certificates {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ordna-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a new certificate and its key to `NAME.pem` and `NAME.key`.
    fn make(&self, name: &str) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(self.path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }

    fn start(&self, acl_file: Option<PathBuf>) -> Running {
        let tls = TlsConfig {
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            certificate: self.path("a.pem"),
            key: self.path("a.key"),
            client_authorities: None,
        };
        start(Config { tls: Some(tls), acl_file, ..Config::default() })
    }

    /// Returns whether a client that trusts only this certificate can connect.
    fn is_shown(&self, server: &Running, name: &str) -> bool {
        ping(server.tls.unwrap(), &self.path(&format!("{name}.pem")), None).is_ok()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn config_set_replaces_certificate_and_key_together() {
    let files = Certificates::new("set-tls");
    ["a", "b"].iter().for_each(|name| files.make(name));
    let server = files.start(None);
    let mut client = Client::new(server.address);
    let shown = |name: &str| files.path(name).display().to_string();
    let set = |client: &mut Client, pairs: &[(&str, &str)]| {
        let words = pairs.iter().map(|(name, value)| format!(" {name} {value}"));
        client.say(&format!("CONFIG SET{}", words.collect::<String>()))
    };
    let mut former = connect(server.tls.unwrap(), &files.path("a.pem"), None).unwrap();
    former.write_all(b"PING\r\n").unwrap();
    let pong = |stream: &mut dyn Read| stream.read_exact(&mut [0; 7]).unwrap();
    pong(&mut former);

    // Unusable files are refused and change nothing, and neither do the other settings of the call.
    fs::write(files.path("none.pem"), "no certificate").unwrap();
    fs::write(files.path("half.pem"), &fs::read(files.path("b.pem")).unwrap()[..200]).unwrap();
    let (b, other) = (shown("b.pem"), shown("b.key"));
    for (pairs, named) in [
        (vec![("tls-cert-file", b.as_str())], "b.pem"),
        (vec![("tls-key-file", other.as_str())], "b.key"),
        (vec![("timeout", "7"), ("tls-cert-file", &shown("absent.pem"))], "absent.pem"),
        (vec![("tls-cert-file", &shown("none.pem")), ("timeout", "7")], "none.pem"),
        (vec![("tls-cert-file", &shown("half.pem")), ("tls-key-file", &other)], "half.pem"),
        (vec![("tls-cert-file", &b), ("tls-key-file", &shown("none.pem"))], "none.pem"),
        (vec![("tls-ca-cert-file", &shown("none.pem"))], "none.pem"),
    ] {
        let reply = set(&mut client, &pairs);
        assert!(reply.starts_with("-ERR CONFIG SET failed (possibly related to"), "{reply}");
        assert!(reply.contains(named) && reply.contains("TLS configuration"), "{reply}");
        assert!(files.is_shown(&server, "a") && !files.is_shown(&server, "b"), "{pairs:?}");
        assert!(client.say("CONFIG GET timeout").contains(r"$1\r\n0\r\n"));
    }
    assert!(client.say("CONFIG GET tls-cert-file").contains("a.pem"));

    let reply = set(&mut client, &[("tls-key-file", &other), ("tls-cert-file", &b)]);
    assert_eq!(reply, r"+OK\r\n");
    assert!(files.is_shown(&server, "b") && !files.is_shown(&server, "a"));
    assert!(client.say("CONFIG GET tls-*-file").contains("b.key"));
    // A connection keeps the certificate with which it began.
    former.write_all(b"PING\r\n").unwrap();
    pong(&mut former);

    // Files that were replaced in place are read again.
    files.make("b");
    let renewed = files.is_shown(&server, "b");
    assert!(!renewed, "the file is read when it is told");
    assert!(set(&mut client, &[("tls-cert-file", &b)]).starts_with("+OK"));
    assert!(files.is_shown(&server, "b"));

    // Certificates of clients.
    let address = server.tls.unwrap();
    assert_eq!(set(&mut client, &[("tls-ca-cert-file", &b)]), r"+OK\r\n");
    assert!(!files.is_shown(&server, "b"));
    assert!(ping(address, &files.path("b.pem"), Some(&files.path("b.key"))).is_ok());
    assert_eq!(client.ask(&[b"CONFIG", b"SET", b"tls-ca-cert-file", b""]), r"+OK\r\n");
    assert!(files.is_shown(&server, "b"));
}

#[test]
fn a_server_without_tls_refuses_certificates() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    assert!(client.say("CONFIG SET tls-cert-file x").contains("start it with --tls-port"));
    assert_eq!(client.ask(&[b"CONFIG", b"SET", b"tls-cert-file", b""]), r"+OK\r\n");
}

#[test]
fn a_reload_reads_certificates_and_users_again() {
    let files = Certificates::new("reload");
    files.make("a");
    let users = files.path("users");
    fs::write(&users, "user default on nopass ~* +@all\nuser ann on >old ~* +@all\n").unwrap();
    let server = files.start(Some(users.clone()));
    let mut ann = Client::new(server.address);
    assert_eq!(ann.say("AUTH ann old"), r"+OK\r\n");
    let mut client = Client::new(server.address);

    files.make("a");
    fs::write(&users, "user default on nopass ~* +@all\nuser bob on >new ~* +@all\n").unwrap();
    assert!(!files.is_shown(&server, "a"));
    server.reloader.reload().unwrap();
    assert!(files.is_shown(&server, "a"));
    assert_eq!(client.say("AUTH bob new"), r"+OK\r\n");
    assert!(client.say("AUTH ann old").starts_with("-WRONGPASS"));
    ann.send_if_open(b"PING\r\n");
    assert!(ann.is_closed(), "a user who is gone");

    // Each of the two files is replaced as a whole or not at all. An error in one does not affect
    // the other.
    fs::write(&users, "user default on nopass ~* +@all\nuser eve on >new ~* +@none\n").unwrap();
    files.make("a");
    let errors = server.reloader.reload().unwrap_err();
    let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(shown.len() == 1 && shown[0].contains("line 2: '+@none'"), "{shown:?}");
    assert!(files.is_shown(&server, "a"));
    assert_eq!(Client::new(server.address).say("AUTH bob new"), r"+OK\r\n");
    fs::write(&users, "user default on nopass ~* +@all\nuser eve on >new ~* +@all\n").unwrap();
    fs::write(files.path("a.key"), "").unwrap();
    let errors = server.reloader.reload().unwrap_err();
    assert!(errors.len() == 1 && errors[0].to_string().contains("a.key"), "{errors:?}");
    assert!(files.is_shown(&server, "a"), "the former ones are in use");
    assert_eq!(Client::new(server.address).say("AUTH eve new"), r"+OK\r\n");
}

/// A file that does not end, or does not respond, does not block anything.
#[test]
fn certificates_are_read_from_regular_files_only() {
    let files = Certificates::new("odd-tls");
    files.make("a");
    let server = files.start(None);
    let mut client = Client::new(server.address);
    let large = files.path("large");
    fs::File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    for path in ["/dev/zero".into(), "/dev/tty".into(), files.0.clone(), large] {
        let path = path.to_str().unwrap().to_owned();
        for name in ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"] {
            let reply = client.ask(&[b"CONFIG", b"SET", name.as_bytes(), path.as_bytes()]);
            let expected = "not a regular file of at most 16777216 bytes";
            assert!(reply.starts_with('-') && reply.contains(expected), "{name} {path}: {reply}");
        }
    }
    assert!(files.is_shown(&server, "a"));
}
