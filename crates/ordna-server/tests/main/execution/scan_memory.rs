//! The memory of a scan does not grow with values that it does not return.
use crate::common::{Client, spawn};

#[test]
fn scans_do_not_copy_values_that_nobody_sees() {
    const VALUES: usize = 64;
    let server = spawn("");
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1 << 20];
    for at in 0..VALUES {
        assert_eq!(client.ask(&[b"SET", format!("k{at:02}").as_bytes(), &value]), r"+OK\r\n");
    }
    let lines = [
        "ORDNA.COUNT - +",
        "KEYS *9",
        "SCAN 0 COUNT 1000",
        "ORDNA.RANGE - + KEYS",
        "ORDNA.RANGE - + REV LIMIT 2 KEYS",
        "ORDNA.DELRANGE - +",
    ];
    for line in lines {
        // From here on, the peak is that of this command.
        std::fs::write(server.proc("clear_refs"), "5").unwrap();
        let before = server.memory("VmRSS:");
        let reply = client.say(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
        let grown = server.memory("VmHWM:").saturating_sub(before);
        assert!(grown < (VALUES << 10) / 4, "{line} took {grown} KiB");
    }
}
