//! The rounds of one index under one workload.

use crate::figures::{Groups, Latency, Load, Measured, Problem};
use crate::run::judged;
use crate::table::{Role, Spread};
use crate::workload::Workload;

/// The results of a case's rounds so far.
#[derive(Default)]
pub struct Rounds {
    pub load: Vec<f64>,
    pub mops: Vec<f64>,
    roles: Vec<Vec<f64>>,
    pub bytes_per_key: Vec<f64>,
    pub rss_per_key: Vec<f64>,
    pub huge_per_key: Vec<f64>,
    pub latency: Option<Latency>,
    /// Average numbers of keys per group call in the last round.
    pub groups: Groups,
    /// The index's own counts in the last round.
    pub counts: Option<String>,
    /// The reason why there is no figure.
    pub problem: Option<Problem>,
    /// Scans were wrong, but this case does not scan.
    pub wrong_scan: Option<String>,
}

impl Rounds {
    /// Records the result of the load. If it failed, the phases report the same problem or a better
    /// description.
    pub fn take_load(&mut self, workload: &Workload, load: &Result<Load, Problem>) {
        let Ok(load) = load else { return };
        if let Some(wrong) = &load.wrong_scan {
            self.take_wrong_scan(workload, wrong);
        }
        self.load.push(load.mops);
        self.bytes_per_key.extend(load.bytes_per_key);
        self.rss_per_key.extend(load.rss_per_key);
        self.huge_per_key.extend(load.huge_per_key);
    }

    /// Records that a scan of the whole index was wrong. Figures of scans and of the load are then
    /// invalid. Those of point operations, each of which was checked, are valid.
    pub fn take_wrong_scan(&mut self, workload: &Workload, wrong: &str) {
        if judged(workload) {
            self.fail(&Problem::Wrong(wrong.to_owned()));
        } else {
            self.wrong_scan.get_or_insert_with(|| wrong.to_owned());
        }
    }

    /// Records the result of a phase. A phase that measures every operation counts only for
    /// latency.
    pub fn take(&mut self, latency: bool, phase: Result<Measured, Problem>) {
        match phase {
            Ok(measured) if latency => self.latency = measured.latency,
            Ok(measured) => {
                self.mops.push(measured.mops);
                self.counts = measured.counts;
                self.groups = measured.groups;
                self.roles.push(measured.roles);
            }
            Err(problem) => self.fail(&problem),
        }
    }

    /// Records that there is no figure, unless a problem was recorded before.
    pub fn fail(&mut self, problem: &Problem) {
        self.problem.get_or_insert_with(|| problem.clone());
    }

    /// Returns the figures of each role, if threads have different roles.
    pub fn of_roles(&self, workload: &Workload) -> Vec<Role> {
        let roles = workload.roles().iter().enumerate().filter_map(|(at, role)| {
            let of = |round: &Vec<f64>| round.get(at).copied();
            let figures: Vec<f64> = self.roles.iter().filter_map(of).collect();
            Some(Role { name: (*role).to_owned(), mops: Spread::of(&figures)? })
        });
        roles.collect()
    }

    /// Returns the median.
    pub fn median(figures: &[f64]) -> Option<f64> {
        Spread::of(figures).map(|spread| spread.median)
    }
}
