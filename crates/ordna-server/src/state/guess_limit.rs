//! A limit on wrong passwords for each address, over all its connections.
//!
//! # Contract
//! An address may try [`BURST`] wrong passwords at once, and one more after each [`REFILL`]. Beyond
//! that, passwords from the address are refused without being checked, so that the reply reveals
//! nothing about them. This includes passwords of other users with the same address, until the next
//! refill. A right password does not count. All methods may be called concurrently; each takes one
//! lock.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use ordna::sync::Lock;

/// Number of wrong passwords that an address may try at once. Ten connections can use up their own
/// limit, so that mistakes of a few users do not stop others with the same address.
const BURST: u32 = 100;
/// Time after which an address may try one more wrong password. 10 a second are 864,000 a day, few
/// compared with the number of good passwords, and a user who logs in right after an attack waits
/// no longer than this.
const REFILL: Duration = Duration::from_millis(100);
/// Maximum number of addresses that are remembered, about 100 bytes each. An address is forgotten
/// when it has its whole burst again, after at most 10 s. If there are more addresses, the one with
/// the fewest wrong passwords is forgotten early.
const MOST_ADDRESSES: usize = 4096;

/// The time, by address, at which an address that tried wrong passwords has its whole burst again.
#[derive(Debug, Default)]
pub struct GuessLimit(Lock<BTreeMap<IpAddr, Instant>>);

/// Returns the part of an address that is assumed to belong to one user: an IPv4 address, or 64
/// bits of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        address => address,
    }
}

impl GuessLimit {
    /// Acquires permission to check one password. To be called before the check.
    ///
    /// # Errors
    /// The address has used up its burst. The error is the time until it may try again.
    pub fn take(&self, address: IpAddr) -> Result<(), Duration> {
        self.take_at(address, Instant::now())
    }

    fn take_at(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let address = network(address);
        let mut known = self.0.lock();
        let whole_at = known.get(&address).copied().unwrap_or(now).max(now) + REFILL;
        let ahead = whole_at - now;
        if ahead > REFILL * BURST {
            return Err(ahead - REFILL * BURST);
        }
        if !known.contains_key(&address) && known.len() >= MOST_ADDRESSES {
            known.retain(|_, whole_at| *whole_at > now);
            if known.len() >= MOST_ADDRESSES
                && let Some(fewest) = known.iter().min_by_key(|(_, whole_at)| **whole_at)
            {
                let fewest = *fewest.0;
                known.remove(&fewest);
            }
        }
        known.insert(address, whole_at);
        Ok(())
    }

    /// Gives back the permission of [`take`](Self::take), because the password was right.
    pub fn give_back(&self, address: IpAddr) {
        let address = network(address);
        let mut known = self.0.lock();
        if let Some(whole_at) = known.get_mut(&address) {
            // A time before the start of the clock cannot be represented.
            *whole_at = whole_at.checked_sub(REFILL).unwrap_or(*whole_at);
            if *whole_at <= Instant::now() {
                known.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_a_burst_and_a_rate() {
        let (limit, now, one) = (GuessLimit::default(), Instant::now(), address("192.0.2.1"));
        (0..BURST).for_each(|_| assert_eq!(limit.take_at(one, now), Ok(())));
        assert_eq!(limit.take_at(one, now), Err(REFILL));
        assert_eq!(limit.take_at(one, now + REFILL / 4), Err(REFILL * 3 / 4));
        assert_eq!(limit.take_at(address("192.0.2.2"), now), Ok(()), "others are free");
        assert_eq!(limit.take_at(one, now + REFILL), Ok(()));
        assert_eq!(limit.take_at(one, now + REFILL), Err(REFILL));
        let later = now + REFILL * (BURST + 10);
        let taken = (0..2 * BURST).filter(|_| limit.take_at(one, later).is_ok()).count();
        assert_eq!(taken, BURST as usize, "no more than the burst is saved up");
    }

    #[test]
    fn a_right_password_counts_nothing() {
        let (limit, one) = (GuessLimit::default(), address("192.0.2.1"));
        for _ in 0..10 * BURST {
            assert_eq!(limit.take(one), Ok(()));
            limit.give_back(one);
        }
        assert!(limit.0.lock().is_empty(), "nor is the address kept");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let (limit, now) = (GuessLimit::default(), Instant::now());
        for host in 0..BURST {
            assert_eq!(limit.take_at(address(&format!("2001:db8::{host:x}:1")), now), Ok(()));
        }
        assert!(limit.take_at(address("2001:db8::ffff"), now).is_err());
        assert_eq!(limit.take_at(address("2001:db8:0:1::1"), now), Ok(()));
        assert_eq!(limit.take_at(address("192.0.2.1"), now), Ok(()));
        assert_eq!(limit.0.lock().len(), 3);
        assert_eq!(limit.take_at(address("::ffff:192.0.2.1"), now), Ok(()));
        assert_eq!(limit.0.lock().len(), 3, "the same address");
    }

    #[test]
    fn addresses_are_bounded_and_the_worst_stay() {
        let (limit, now, worst) = (GuessLimit::default(), Instant::now(), address("192.0.2.1"));
        (0..BURST).for_each(|_| assert_eq!(limit.take_at(worst, now), Ok(())));
        for host in 0..2 * MOST_ADDRESSES as u32 {
            let other = IpAddr::from(host.to_be_bytes());
            assert_eq!(limit.take_at(other, now), Ok(()));
            assert!(limit.0.lock().len() <= MOST_ADDRESSES);
        }
        assert!(limit.take_at(worst, now).is_err());
        // Addresses that have their burst again are forgotten immediately.
        assert_eq!(limit.take_at(address("192.0.2.9"), now + REFILL * BURST), Ok(()));
        assert_eq!(limit.0.lock().len(), 1);
    }
}
