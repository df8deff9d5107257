//! Publication of the events of commands.

use std::sync::atomic::Ordering;

use crate::execution::command::Context;
use crate::state::events::{Classes, Wrote, event_of};

impl Context<'_> {
    /// Publishes the event of the executed command for a key that was written, if events are
    /// enabled. Every command that writes must call this or [`modify`](Self::modify) after it has
    /// reported the key.
    #[inline]
    pub fn notify(&self, key: &[u8], wrote: Wrote) {
        if self.state.events.are_on() {
            self.notify_now(key, wrote);
        }
    }

    #[cold]
    fn notify_now(&self, key: &[u8], wrote: Wrote) {
        let command = self.session.client.last_command.load(Ordering::Relaxed);
        let Some(name) = self.table.catalog.name_of(command) else { return };
        let spec = self.table.catalog.by_full_name(name);
        let class = match name {
            "sort" => Classes::LIST,
            _ => Classes::of_group(spec.map_or("", |spec| spec.group)),
        };
        self.publish_event(class, event_of(name), key, wrote);
    }

    /// Publishes the given event, which is not that of the executed command, for a key that was
    /// written, if events are enabled.
    #[inline]
    pub fn notify_as(&self, class: Classes, event: &'static str, key: &[u8], wrote: Wrote) {
        if self.state.events.are_on() {
            self.publish_event(class, event, key, wrote);
        }
    }

    #[cold]
    fn publish_event(&self, class: Classes, event: &'static str, key: &[u8], wrote: Wrote) {
        let of_elements = [Classes::LIST, Classes::SET, Classes::HASH, Classes::SORTED_SET];
        match wrote {
            Wrote::Value { is_new, new_deadline } => {
                // As in Redis, these replace a key by a new one.
                if is_new || matches!(event, "copy_to" | "restore") {
                    self.state.notify(Classes::NEW, "new", key);
                }
                self.state.notify(class, event, key);
                if new_deadline && event == "set" {
                    self.state.notify(Classes::GENERIC, "expire", key);
                }
            }
            Wrote::Deadline(deadline) => {
                let event = if deadline { "expire" } else { "persist" };
                self.state.notify(Classes::GENERIC, event, key);
            }
            Wrote::Removal => {
                // The last element of a value was removed, or an empty result has replaced it.
                if of_elements.contains(&class) && !event.ends_with("store") {
                    self.state.notify(class, event, key);
                }
                self.state.notify(Classes::GENERIC, "del", key);
            }
        }
    }

    /// Publishes that a command found no value if `is_missing` and events are enabled.
    #[inline]
    pub fn note_miss(&self, key: &[u8], is_missing: bool) {
        if is_missing && self.state.events.are_on() {
            self.notify_miss(key);
        }
    }

    /// Publishes that a command found no value, if such events are enabled.
    #[cold]
    pub fn notify_miss(&self, key: &[u8]) {
        self.state.notify(Classes::MISS, "keymiss", key);
    }
}
