//! The place of an index during its measurement: a child process, or this process.

use std::time::Duration;

use ordna_base::Key;
use ordna_base::entries::Sequence;
use serde::{Deserialize, Serialize};

use crate::figures::{Load, Measured, Problem};
use crate::isolate::Child;
use crate::job::Job;
use crate::run::{Instance, Make};
use crate::workload::{Action, Operation};

/// A request to a child. Between two requests the child is stopped, so that no background work of
/// an index runs while another index is measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Request {
    Load,
    Phase(usize),
    Look,
    Finish,
}

/// An instance of an index.
pub enum Host<'j, 'a, K: Key + ?Sized> {
    /// The instance is in this process.
    Here(Box<Instance<'j, 'a, K>>),
    /// The instance is in a child process.
    Apart(Child, &'j Job<'a, K>),
    /// The index has ended its child.
    Ended(Problem),
}

impl<'j, 'a, K: Key + ?Sized> Host<'j, 'a, K> {
    /// Creates an instance, in a child if `apart` is set. No other thread may then run in this
    /// process. If `warm` is set, the child already has the memory of an earlier load.
    pub fn start(job: &'j Job<'a, K>, make: Make<'j, K>, apart: bool, warm: bool) -> Self {
        if !apart {
            return Self::Here(Box::new(Instance::new(job, make)));
        }
        let child = Child::start(move || {
            let new = if warm { Instance::warmed } else { Instance::new };
            let mut instance = Some(new(job, make));
            move |request: &str| serve(&mut instance, request)
        });
        match child {
            Ok(child) => Self::Apart(child, job),
            Err(error) => Self::Ended(Problem::Failed(format!("no process for it: {error}"))),
        }
    }

    /// Loads the keys; see [`Instance::load`].
    pub fn load(&mut self) -> Result<Load, Problem> {
        match self {
            Self::Here(instance) => instance.load(),
            Self::Apart(_, job) => {
                let limit = limit(job.loaded);
                self.ask(Request::Load, limit, "while loading")
            }
            Self::Ended(problem) => Err(problem.clone()),
        }
    }

    /// Runs a phase; see [`Instance::phase`].
    pub fn phase(&mut self, at: usize) -> Result<Measured, Problem> {
        match self {
            Self::Here(instance) => instance.phase(at),
            Self::Apart(_, job) => {
                let job = *job;
                let Some(phase) = job.phases.get(at) else {
                    return Err(Problem::Failed(format!("there is no phase {at}")));
                };
                let entries = |operation: &Operation| match operation.action {
                    Action::Scan(entries) => usize::from(entries),
                    _ => 1,
                };
                let limit = limit(phase.written.operations.iter().flatten().map(entries).sum());
                let when = format!("during {}", phase.workload);
                self.ask(Request::Phase(at), limit, &when)
            }
            Self::Ended(problem) => Err(problem.clone()),
        }
    }

    /// Scans the whole index; see [`Instance::look`].
    pub fn look(&mut self) -> Result<Option<String>, Problem> {
        match self {
            Self::Here(instance) => instance.look(),
            Self::Apart(_, job) => {
                let limit = limit(job.keys.len());
                self.ask(Request::Look, limit, "during a scan of the whole index")
            }
            Self::Ended(problem) => Err(problem.clone()),
        }
    }

    /// Ends an instance that is not used any more. Errors of its end are not reported.
    pub fn discard(self) {
        match self {
            Self::Here(instance) => drop(instance.finish()),
            // The child is killed.
            Self::Apart(..) | Self::Ended(_) => {}
        }
    }

    /// Ends the instance; see [`Instance::finish`].
    pub fn finish(mut self) -> Result<(), Problem> {
        match self {
            Self::Here(instance) => instance.finish(),
            Self::Apart(_, job) => {
                let limit = limit(job.loaded);
                self.ask(Request::Finish, limit, "while being dropped")
            }
            // The problem was already reported.
            Self::Ended(_) => Ok(()),
        }
    }

    fn ask<T: for<'d> Deserialize<'d>>(
        &mut self,
        request: Request,
        limit: Duration,
        when: &str,
    ) -> Result<T, Problem> {
        let Self::Apart(child, _) = self else {
            return Err(Problem::Failed("it is not apart".to_owned()));
        };
        let request = serde_json::to_string(&request).unwrap_or_default();
        child.go_on();
        let answer = child.ask(&request, limit);
        child.stand_still();
        match answer {
            Ok(reply) => serde_json::from_str(&reply)
                .unwrap_or_else(|error| Err(Problem::Failed(format!("its answer: {error}")))),
            Err(death) => {
                let problem = Problem::Crashed(format!("{when}: {death}"));
                *self = Self::Ended(problem.clone());
                Err(problem)
            }
        }
    }
}

/// Returns the time limit for a number of operations, in which each entry of a scan counts as one.
/// It is many times what the slowest index needs.
fn limit(operations: usize) -> Duration {
    Duration::from_secs(60)
        + Duration::from_micros(50).saturating_mul(u32::try_from(operations).unwrap_or(u32::MAX))
}

fn serve<K: Key + ?Sized>(instance: &mut Option<Instance<'_, '_, K>>, request: &str) -> String {
    fn told<T: Serialize>(result: Result<T, Problem>) -> String {
        serde_json::to_string(&result).unwrap_or_default()
    }
    let gone = || Problem::Failed("it is gone".to_owned());
    match (serde_json::from_str(request), instance.as_mut()) {
        (Ok(Request::Load), Some(instance)) => told(instance.load()),
        (Ok(Request::Phase(at)), Some(instance)) => told(instance.phase(at)),
        (Ok(Request::Look), Some(instance)) => told(instance.look()),
        (Ok(Request::Finish), Some(_)) => told(instance.take().map_or(Ok(()), Instance::finish)),
        (Ok(_), None) => told::<()>(Err(gone())),
        (Err(error), _) => told::<()>(Err(Problem::Failed(error.to_string()))),
    }
}
