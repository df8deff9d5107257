//! The service, its sources and its queries. Modules named `pipeline_*` look for planted faults.

mod bad_input;
mod common;
mod definitions;
mod files;
mod pipeline_end;
mod pipeline_snapshots;
mod pipeline_states;
mod recovery;
