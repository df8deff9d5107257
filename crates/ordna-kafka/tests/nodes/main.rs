//! Queries over several nodes, with a server each on loopback.

mod faulty;
mod group;
mod moves;
mod queries;
