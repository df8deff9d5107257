//! The settings that `CONFIG SET` may change while the server runs.

use std::sync::atomic::{AtomicI64, Ordering};

/// A setting: a number that is read without a lock.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    least: i64,
    most: i64,
    /// The text may have a unit: `64mb`.
    is_memory: bool,
    value: AtomicI64,
}

impl Setting {
    const fn new(name: &'static str, least: i64, most: i64, value: i64) -> Self {
        Self { name, least, most, is_memory: false, value: AtomicI64::new(value) }
    }

    const fn memory(name: &'static str, value: i64) -> Self {
        let most = i64::MAX;
        Self { name, least: 0, most, is_memory: true, value: AtomicI64::new(value) }
    }

    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Returns the number as a size; 0 if it is negative.
    pub fn size(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(0)
    }

    /// Whether an amount is at least the number. Always false if the number is negative.
    #[inline]
    pub fn is_reached_by(&self, measured: u128) -> bool {
        u128::try_from(self.get()).is_ok_and(|least| measured >= least)
    }

    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Parses a value of `CONFIG SET`.
    ///
    /// # Errors
    /// The error text of Redis.
    pub fn parse(&self, text: &[u8]) -> Result<i64, String> {
        let text = String::from_utf8_lossy(text);
        let value = if self.is_memory {
            let bytes = parse_bytes(&text).ok().and_then(|bytes| i64::try_from(bytes).ok());
            bytes.ok_or("argument must be a memory value")?
        } else {
            text.parse().map_err(|_| "argument couldn't be parsed into an integer")?
        };
        let (least, most) = (self.least, self.most);
        if !(least..=most).contains(&value) {
            return Err(format!("argument must be between {least} and {most} inclusive"));
        }
        Ok(value)
    }
}

/// All settings.
#[derive(Debug)]
pub struct Settings {
    pub max_clients: Setting,
    /// Seconds after which an idle client is closed; 0: never.
    pub timeout: Setting,
    /// Maximum bytes of all clients' requests, replies and transactions; 0: no limit.
    pub clients_memory: Setting,
    /// Maximum bytes of a reply that is built in memory. Scans send theirs in pieces.
    pub output_limit: Setting,
    /// Maximum bytes of a request.
    pub query_limit: Setting,
    /// Microseconds from which a command is in the slow log; negative: never.
    pub slow: Setting,
    pub slow_log_len: Setting,
    /// Milliseconds from which a latency is recorded; 0: never.
    pub latency_threshold: Setting,
    pub acl_log_len: Setting,
    /// Seconds between two TCP keepalive probes; 0: no probes.
    pub keepalive: Setting,
}

impl Settings {
    /// Maximum bytes of a reply that is built in memory: no more than all clients together may hold.
    pub fn reply_limit(&self) -> usize {
        match self.clients_memory.size() {
            0 => self.output_limit.size(),
            all => all.min(self.output_limit.size()),
        }
    }

    pub fn new() -> Self {
        let most = i64::MAX;
        Self {
            max_clients: Setting::new("maxclients", 1, u32::MAX as i64, 10_000),
            timeout: Setting::new("timeout", 0, i32::MAX as i64, 0),
            clients_memory: Setting::memory("maxmemory-clients", 0),
            output_limit: Setting::memory("client-output-buffer-limit", 512 << 20),
            query_limit: Setting::memory("client-query-buffer-limit", 1 << 30),
            slow: Setting::new("slowlog-log-slower-than", -1, most, 10_000),
            slow_log_len: Setting::new("slowlog-max-len", 0, 1 << 20, 128),
            latency_threshold: Setting::new("latency-monitor-threshold", 0, most, 0),
            acl_log_len: Setting::new("acllog-max-len", 0, 1 << 20, 128),
            keepalive: Setting::new("tcp-keepalive", 0, i32::MAX as i64, 300),
        }
    }

    pub fn all(&self) -> [&Setting; 10] {
        [
            &self.max_clients,
            &self.timeout,
            &self.clients_memory,
            &self.output_limit,
            &self.query_limit,
            &self.slow,
            &self.slow_log_len,
            &self.latency_threshold,
            &self.acl_log_len,
            &self.keepalive,
        ]
    }

    pub fn find(&self, name: &str) -> Option<&Setting> {
        self.all().into_iter().find(|setting| setting.name.eq_ignore_ascii_case(name))
    }
}

/// Parses a number of bytes with a unit of Redis: `kb` is 1,024, `k` is 1,000, and so on.
///
/// # Errors
/// The text is not a number of bytes.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
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
    let number: usize =
        text[..digits].parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is more than this machine can count"))
}
