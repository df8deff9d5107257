//! Wrong passwords: they are recorded, limited, and answered later each time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::ServerState;
use crate::state::acl::user::User;
use crate::statistics::event_logs::{Denial, shown};

/// Number of wrong passwords after which a connection is closed.
pub const MOST_GUESSES: u32 = 10;

/// Returns the delay of the reply to the nth wrong password of a connection, or `None` if the
/// connection is closed instead.
pub fn delay_of_guess(nth: u32) -> Option<Duration> {
    match nth {
        0 => Some(Duration::ZERO),
        MOST_GUESSES.. => None,
        nth => Some(Duration::from_millis(1 << nth)),
    }
}

/// The reason why a name and a password were not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginError {
    /// No active user has this name and password.
    Wrong,
    /// Too many wrong passwords came from the address, so this one was not checked. The address may
    /// try again after this time.
    TooMany(Duration),
}

/// Checks a name and a password from an address. The caller records a wrong one with
/// [`wrong_password`].
///
/// # Errors
/// [`LoginError`]
pub fn check_password(
    state: &ServerState,
    peer: SocketAddr,
    name: &[u8],
    password: &[u8],
) -> Result<Arc<User>, LoginError> {
    state.guesses.take(peer.ip()).map_err(LoginError::TooMany)?;
    let user = state.acl.named(name).filter(|user| user.accepts(password));
    let user = user.ok_or(LoginError::Wrong)?;
    state.guesses.give_back(peer.ip());
    Ok(user)
}

/// Returns the error text for a password that was not checked.
pub fn too_many(wait: Duration) -> String {
    let millis = wait.as_millis() + 1;
    format!("too many wrong passwords came from this address; try again in {millis} ms")
}

/// Records a wrong password in the counters, in `ACL LOG` and in the log. `object` is the command
/// or protocol that got it, and `client` describes the connection.
pub fn wrong_password(
    state: &ServerState,
    user: &[u8],
    peer: SocketAddr,
    object: &str,
    client: String,
) {
    let user = String::from_utf8_lossy(user).into_owned();
    let guesses = state.acl.denied[0].fetch_add(1, Ordering::Relaxed) + 1;
    // Logs all of them while there are few, and then only powers of two.
    if guesses < 100 || guesses.is_power_of_two() {
        tracing::warn!(%peer, user = %shown(user.as_bytes()).escape_debug(), guesses, "wrong password");
    }
    let denial = Denial {
        id: 0,
        count: 1,
        reason: "auth",
        context: "toplevel",
        object: object.to_owned(),
        user,
        created: 0,
        updated: 0,
        client,
    };
    state.acl.denials.push(denial, state.settings.acl_log_len.size());
}
