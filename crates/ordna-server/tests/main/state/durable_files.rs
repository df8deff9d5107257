//! Files that are replaced atomically survive a power failure: the ACL file and the configuration
//! file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna::durability::Storage;
use ordna_server::{Config, DataConfig};
use ordna_testkit::random::Random;

use crate::common::start;
use crate::execution::crashes::disk::{Fault, Model};
use crate::state::persistence::loaded;

/// A directory with both files, on the machine's disk, which the server reads, and on a model of a
/// disk, which it writes. It is removed on drop.
struct Files {
    folder: PathBuf,
    disk: Model,
}

const USERS: &str = "user default on nopass ~* &* +@all\n";
const SETTINGS: &str = "[settings]\ntimeout = 1\n";

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ordna-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let folder = fs::canonicalize(folder).unwrap();
        let disk = Model::new();
        disk.create_dir(&folder).unwrap();
        for (name, content) in [("users", USERS), ("settings", SETTINGS)] {
            fs::write(folder.join(name), content).unwrap();
            disk.add(&folder.join(name), content.into());
        }
        Self { folder, disk }
    }

    fn config(&self, disk: &Model) -> Config {
        let dir = self.folder.join("data");
        let data = DataConfig { storage: Arc::new(disk.clone()), ..DataConfig::new(dir) };
        Config {
            acl_file: Some(self.folder.join("users")),
            file: Some(self.folder.join("settings")),
            data: Some(data),
            ..Config::default()
        }
    }

    fn read(&self, disk: &Model, name: &str) -> String {
        String::from_utf8(disk.read(&self.folder.join(name))).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn left_over(disk: &Model) -> bool {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    disk.files().iter().any(|path| name(path).contains(".new-"))
}

#[test]
fn what_acl_save_and_config_rewrite_have_written_survives_a_power_failure() {
    let files = Files::new("durable");
    let server = start(files.config(&files.disk));
    let mut client = loaded(&server);
    for round in 2..12 {
        for line in [
            format!("ACL SETUSER user{round} on >p"),
            format!("CONFIG SET timeout {round}"),
            "ACL SAVE".to_owned(),
            "CONFIG REWRITE".to_owned(),
        ] {
            assert_eq!(client.say(&line), r"+OK\r\n", "{line}");
        }
        for seed in 0..10 {
            let after = files.disk.after_power_cut(&mut Random::new(seed));
            let users = files.read(&after, "users");
            assert!(users.contains(&format!("user user{round} on")), "{users}");
            let settings = files.read(&after, "settings");
            assert!(settings.contains(&format!("timeout = \"{round}\"")), "{settings}");
        }
        assert!(!left_over(&files.disk));
    }
}

#[test]
fn a_power_failure_in_a_replacement_leaves_the_old_file_or_the_new() {
    let files = Files::new("replaced");
    let mut refused = 0;
    for (line, name, former) in
        [("ACL SAVE", "users", USERS), ("CONFIG REWRITE", "settings", SETTINGS)]
    {
        for operation in 1..8 {
            for fault in [Fault::PowerCut, Fault::Fails] {
                let disk = files.disk.after_exit();
                let server = start(files.config(&disk));
                let mut client = loaded(&server);
                client.say("ACL SETUSER bob on >p");
                client.say("CONFIG SET timeout 7");
                let _ = disk.clone().fault(operation, fault);
                let reply = client.say(line);
                refused += usize::from(reply.starts_with("-ERR"));
                for seed in 0..10 {
                    let after = disk.after_power_cut(&mut Random::new(seed));
                    let found = files.read(&after, name);
                    let is_new = found.contains("user bob on") || found.contains("\"7\"");
                    let is_old = found == former;
                    assert!(is_new || is_old, "{line} {operation} {fault:?}: {found:?}");
                    assert!(is_new || reply != r"+OK\r\n", "{line} {operation} {fault:?}");
                }
                drop(client);
                drop(disk);
                drop(server);
            }
        }
    }
    assert!(refused >= 10, "{refused}");
}
