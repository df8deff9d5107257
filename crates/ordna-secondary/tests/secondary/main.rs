//! Tests of the service, its sources and its queries. Modules named `pipeline_*` are the ones that
//! detect planted faults.

mod bad_input;
mod common;
mod definitions;
mod files;
mod pipeline_end;
mod pipeline_snapshots;
mod pipeline_states;
mod recovery;
