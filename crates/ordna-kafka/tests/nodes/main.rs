//! Tests of queries over several nodes, each with a server on the loopback interface.

mod faulty;
mod group;
mod moves;
mod queries;
