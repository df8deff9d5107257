//! Users: who gets in, what each may do, and the file that keeps them.

use std::net::SocketAddr;
use std::path::PathBuf;

use ordna_server::{Config, ServeError, Server};

use crate::common::{Client, start};

/// A file of users that is removed when dropped.
struct UserFile(PathBuf);

impl UserFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("ordna-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for UserFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Binds a server, without serving, and drops it.
fn bind(config: Config) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Server::bind(config)).map(drop)
}

#[test]
fn an_address_that_others_reach_needs_passwords() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let open = Config { bind: vec![local, everywhere], ..Config::default() };
    let refused = |config: Config, name: &str| match bind(config) {
        Err(ServeError::Open { user, .. }) => assert_eq!(user, name),
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("the server would listen, open to user {name}"),
    };
    refused(open.clone(), "default");
    let password = Some("secret".to_owned());
    bind(Config { password: password.clone(), ..open.clone() }).unwrap();
    bind(Config { insecure: true, ..open.clone() }).unwrap();
    bind(Config { bind: vec![local], ..Config::default() }).unwrap();
    let pages = Config { console: Some(everywhere), bind: vec![local], ..Config::default() };
    refused(pages, "default");
    let with_file = |text: &str, password: &Option<String>| {
        let file = UserFile::new("open", text);
        let config =
            Config { acl_file: Some(file.0.clone()), password: password.clone(), ..open.clone() };
        (config, file)
    };
    // An ACL file keeps nobody out by being there.
    for (text, password, user) in [
        ("", None, "default"),
        ("user bob on >pw ~* +@all\n", None, "default"),
        ("user default on nopass ~* -@all +ping\n", password.clone(), "default"),
        ("user default off\nuser bob on nopass ~b* +get\n", None, "bob"),
    ] {
        let (config, _file) = with_file(text, &password);
        refused(config, user);
    }
    for (text, password) in [
        ("", password.clone()),
        ("user default off\nuser bob on >pw +get\n", None),
        ("user default off nopass ~* +@all\n", None),
    ] {
        let (config, _file) = with_file(text, &password);
        bind(config).unwrap();
    }
    // A file that is missing has lost its users.
    let (config, file) = with_file("", &password);
    drop(file);
    let missing = bind(config).unwrap_err();
    assert!(matches!(missing, ServeError::Users(_)), "{missing}");
}

#[test]
fn a_server_that_others_reach_stays_closed() {
    let file = UserFile::new("closed", "");
    // A page that others reach is enough; the commands are on 127.0.0.1.
    let config = Config {
        metrics: Some(SocketAddr::from(([0, 0, 0, 0], 0))),
        password: Some("secret".to_owned()),
        acl_file: Some(file.0.clone()),
        ..Config::default()
    };
    let server = start(config);
    let mut admin = Client::new(server.address);
    assert_eq!(admin.say("AUTH secret"), r"+OK\r\n");
    std::fs::write(&file.0, "user default on nopass ~* +@all\n").unwrap();
    for line in [
        "CONFIG SET timeout 7 requirepass ",
        "ACL SETUSER default nopass",
        "ACL SETUSER bob on nopass",
        "ACL LOAD",
    ] {
        let reply = admin.say(line);
        assert!(reply.contains("needs a password") && reply.starts_with("-ERR"), "{line}: {reply}");
    }
    assert!(Client::new(server.address).say("PING").starts_with("-NOAUTH"));
    assert_eq!(admin.say("CONFIG GET timeout"), r"*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    assert_eq!(admin.say("ACL USERS"), r"*1\r\n$7\r\ndefault\r\n");
    assert_eq!(admin.say("ACL SETUSER bob on >pw"), r"+OK\r\n");
}
