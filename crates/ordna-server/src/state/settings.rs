//! The settings that `CONFIG SET` may change while the server runs.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use ordna::sync::Lock;

/// A numeric setting, which is read without a lock.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    least: i64,
    most: i64,
    /// Whether the text may have a unit, as in `64mb`.
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

    /// Returns whether an amount is at least the number. Always `false` if the number is negative.
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

/// The keys that a policy prefers to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// The least recently used keys.
    Recency,
    /// The least frequently used keys.
    Frequency,
    /// The keys that expire first.
    Deadline,
    Random,
}

/// `maxmemory-policy`: which keys are evicted when the memory limit is reached. The volatile policies
/// evict only keys with a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionPolicy {
    #[default]
    NoEviction,
    AllKeysLru,
    AllKeysLfu,
    AllKeysRandom,
    VolatileLru,
    VolatileLfu,
    VolatileRandom,
    VolatileTtl,
}

/// The policies by name, in the order in which Redis names them.
pub const POLICIES: [(&str, EvictionPolicy); 8] = [
    ("volatile-lru", EvictionPolicy::VolatileLru),
    ("volatile-lfu", EvictionPolicy::VolatileLfu),
    ("volatile-random", EvictionPolicy::VolatileRandom),
    ("volatile-ttl", EvictionPolicy::VolatileTtl),
    ("allkeys-lru", EvictionPolicy::AllKeysLru),
    ("allkeys-lfu", EvictionPolicy::AllKeysLfu),
    ("allkeys-random", EvictionPolicy::AllKeysRandom),
    ("noeviction", EvictionPolicy::NoEviction),
];

impl EvictionPolicy {
    pub fn name(self) -> &'static str {
        POLICIES.iter().find(|(_, policy)| *policy == self).map_or("noeviction", |(name, _)| name)
    }

    /// Returns whether only keys with a deadline are evicted.
    pub fn is_volatile(self) -> bool {
        matches!(
            self,
            Self::VolatileLru | Self::VolatileLfu | Self::VolatileRandom | Self::VolatileTtl
        )
    }

    pub fn preference(self) -> Preference {
        match self {
            Self::AllKeysLru | Self::VolatileLru => Preference::Recency,
            Self::AllKeysLfu | Self::VolatileLfu => Preference::Frequency,
            Self::VolatileTtl => Preference::Deadline,
            Self::NoEviction | Self::AllKeysRandom | Self::VolatileRandom => Preference::Random,
        }
    }
}

/// Levels of the server's own log, by Redis' names.
pub const LOG_LEVELS: [(&str, tracing::Level); 4] = [
    ("debug", tracing::Level::TRACE),
    ("verbose", tracing::Level::DEBUG),
    ("notice", tracing::Level::INFO),
    ("warning", tracing::Level::WARN),
];

/// Limits of one class of clients in `client-output-buffer-limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimit {
    /// Hard limit in bytes; 0 means no limit.
    pub hard: usize,
    pub soft: usize,
    pub soft_seconds: u64,
}

/// Classes of clients, as `CONFIG GET` names them.
pub const CLIENT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// `client-output-buffer-limit`. For `normal`, only the hard limit has an effect, because a reply
/// that the client does not read stays in the server's memory no longer than
/// [`Config::stall`](crate::Config::stall). The limits of `pubsub` apply to clients with
/// subscriptions. There are no replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimits(pub [BufferLimit; 3]);

impl BufferLimits {
    /// Returns Redis' limits, with `normal` as the hard limit of the first class.
    fn new(normal: usize) -> Self {
        Self([
            BufferLimit { hard: normal, soft: 0, soft_seconds: 0 },
            BufferLimit { hard: 256 << 20, soft: 64 << 20, soft_seconds: 60 },
            BufferLimit { hard: 32 << 20, soft: 8 << 20, soft_seconds: 60 },
        ])
    }

    /// Returns these limits, changed by `text`: class, hard limit, soft limit and seconds, for any
    /// of the classes.
    ///
    /// # Errors
    /// The error text of Redis.
    pub fn changed(mut self, text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        if !words.len().is_multiple_of(4) {
            return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
        }
        for group in words.chunks_exact(4) {
            let name = group[0].to_ascii_lowercase();
            let name = if name == "replica" { "slave" } else { &name };
            let class = CLIENT_CLASSES.iter().position(|class| *class == name);
            let class = class.and_then(|class| self.0.get_mut(class));
            let class =
                class.ok_or("Invalid client class specified in buffer limit configuration.")?;
            let (hard, soft) = (parse_bytes(group[1]), parse_bytes(group[2]));
            let (Ok(hard), Ok(soft), Ok(soft_seconds)) = (hard, soft, group[3].parse()) else {
                return Err(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration."
                        .to_owned(),
                );
            };
            *class = BufferLimit { hard, soft, soft_seconds };
        }
        Ok(self)
    }
}

impl fmt::Display for BufferLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, limit)) in CLIENT_CLASSES.into_iter().zip(self.0).enumerate() {
            let space = if at > 0 { " " } else { "" };
            let BufferLimit { hard, soft, soft_seconds } = limit;
            write!(f, "{space}{name} {hard} {soft} {soft_seconds}")?;
        }
        Ok(())
    }
}

/// The former name of `busy-reply-threshold`, which Redis 7 still accepts.
pub const OLD_NAME_OF_BUSY: &str = "lua-time-limit";

/// All settings.
#[derive(Debug)]
pub struct Settings {
    /// Maximum size in bytes of keys, values and undo records; 0 means no limit.
    pub max_memory: Setting,
    /// Number of random keys from which one is evicted.
    pub samples: Setting,
    pub lfu_log_factor: Setting,
    /// Minutes after which the frequency counter of a key decreases by one.
    pub lfu_decay_time: Setting,
    /// Number of the policy in [`POLICIES`].
    policy: AtomicUsize,
    pub max_clients: Setting,
    /// Seconds after which an idle client is closed; 0 means never.
    pub timeout: Setting,
    /// Maximum size in bytes of all clients' requests, replies and transactions; 0 means no limit.
    pub clients_memory: Setting,
    /// Maximum size in bytes of a reply that is built in memory. Scans send their replies in parts.
    /// The first limit of `buffer_limits`.
    pub output_limit: Setting,
    pub buffer_limits: Lock<BufferLimits>,
    /// Number of the level in [`LOG_LEVELS`].
    pub log_level: AtomicUsize,
    /// Maximum bytes of a request.
    pub query_limit: Setting,
    /// Microseconds from which on a command is added to the slow log; negative means never.
    pub slow: Setting,
    pub slow_log_len: Setting,
    /// Milliseconds from which on a latency is recorded; 0 means never.
    pub latency_threshold: Setting,
    pub acl_log_len: Setting,
    /// Seconds between two TCP keepalive probes; 0 means no probes.
    pub keepalive: Setting,
    /// Milliseconds of a script after which other clients get errors; 0 means never.
    pub busy: Setting,
}

impl Settings {
    /// Returns the maximum size in bytes of a reply that is built in memory, which is at most the
    /// limit of all clients.
    pub fn reply_limit(&self) -> usize {
        match self.clients_memory.size() {
            0 => self.output_limit.size(),
            all => all.min(self.output_limit.size()),
        }
    }

    pub fn new() -> Self {
        let most = i64::MAX;
        Self {
            max_memory: Setting::memory("maxmemory", 0),
            samples: Setting::new("maxmemory-samples", 1, i32::MAX as i64, 5),
            lfu_log_factor: Setting::new("lfu-log-factor", 0, i32::MAX as i64, 10),
            lfu_decay_time: Setting::new("lfu-decay-time", 0, i32::MAX as i64, 1),
            policy: AtomicUsize::new(POLICIES.len() - 1),
            max_clients: Setting::new("maxclients", 1, u32::MAX as i64, 10_000),
            timeout: Setting::new("timeout", 0, i32::MAX as i64, 0),
            clients_memory: Setting::memory("maxmemory-clients", 0),
            output_limit: Setting::memory("client-output-buffer-limit", 512 << 20),
            buffer_limits: Lock::new(BufferLimits::new(512 << 20)),
            log_level: AtomicUsize::new(2),
            query_limit: Setting::memory("client-query-buffer-limit", 1 << 30),
            slow: Setting::new("slowlog-log-slower-than", -1, most, 10_000),
            slow_log_len: Setting::new("slowlog-max-len", 0, 1 << 20, 128),
            latency_threshold: Setting::new("latency-monitor-threshold", 0, most, 0),
            acl_log_len: Setting::new("acllog-max-len", 0, 1 << 20, 128),
            busy: Setting::new("busy-reply-threshold", 0, most, 5000),
            keepalive: Setting::new("tcp-keepalive", 0, i32::MAX as i64, 300),
        }
    }

    pub fn all(&self) -> [&Setting; 14] {
        [
            &self.samples,
            &self.lfu_log_factor,
            &self.lfu_decay_time,
            &self.max_memory,
            &self.max_clients,
            &self.timeout,
            &self.clients_memory,
            &self.query_limit,
            &self.slow,
            &self.slow_log_len,
            &self.latency_threshold,
            &self.acl_log_len,
            &self.keepalive,
            &self.busy,
        ]
    }

    /// Returns the duration of a script after which other clients get errors.
    pub fn busy_time(&self) -> Duration {
        match u64::try_from(self.busy.get()) {
            Ok(millis @ 1..) => Duration::from_millis(millis),
            _ => Duration::MAX,
        }
    }

    /// Returns the policy of eviction. One relaxed load.
    #[inline]
    pub fn policy(&self) -> EvictionPolicy {
        let number = self.policy.load(Ordering::Relaxed);
        POLICIES.get(number).map_or(EvictionPolicy::NoEviction, |(_, policy)| *policy)
    }

    /// Returns whether keys are evicted. One relaxed load.
    #[inline]
    pub fn evicts(&self) -> bool {
        self.policy.load(Ordering::Relaxed) != POLICIES.len() - 1
    }

    pub fn set_policy(&self, policy: EvictionPolicy) {
        let number = POLICIES.iter().position(|(_, known)| *known == policy);
        self.policy.store(number.unwrap_or(POLICIES.len() - 1), Ordering::Relaxed);
    }

    /// Changes `client-output-buffer-limit`.
    pub fn set_buffer_limits(&self, limits: BufferLimits) {
        let [normal, ..] = limits.0;
        let most = if normal.hard == 0 { usize::MAX } else { normal.hard };
        self.output_limit.set(i64::try_from(most).unwrap_or(i64::MAX));
        *self.buffer_limits.lock() = limits;
    }

    /// Sets the hard limit of normal clients.
    pub fn set_output_limit(&self, bytes: usize) {
        self.set_buffer_limits(BufferLimits::new(bytes));
    }

    pub fn find(&self, name: &str) -> Option<&Setting> {
        let name = if name == OLD_NAME_OF_BUSY { self.busy.name } else { name };
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
        other => {
            return Err(format!(
                "{other:?} is not a unit; the units are b, k, kb, m, mb, g and gb"
            ));
        }
    };
    let number: usize =
        text[..digits].parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is more than this machine can count"))
}
