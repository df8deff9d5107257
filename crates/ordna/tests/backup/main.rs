//! Backups, restore and the log.

mod damage;
mod disk;
mod faults;
mod golden;
mod kill;
mod live;
mod order;
mod round_trips;
mod splices;
mod steps;
