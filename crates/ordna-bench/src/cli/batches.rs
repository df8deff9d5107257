//! `ordna bench pi`: PI's batches beside single operations of other indexes.

use clap::{Args, ValueEnum};

use super::BenchError;
use crate::batches::{Experiment, Settings, factors};
use crate::info::RunInfo;

/// What is measured.
#[derive(Debug, Args)]
pub struct Batches {
    /// Parts of the experiment.
    #[arg(long, value_delimiter = ',', default_values_t = Part::value_variants().to_vec(), value_enum)]
    part: Vec<Part>,
    /// Indexes that do single operations, as `ordna bench list` names them.
    #[arg(long, value_delimiter = ',', default_values_t = default_indexes())]
    index: Vec<String>,
    /// Keys to load.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// Operations of a round.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Queries of a batch.
    #[arg(long, default_value_t = 8192)]
    batch: usize,
    /// Rounds: each measures all once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seed of keys and operations.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Searches, with one and two threads.
    Search,
    /// Inserts of new keys, with one and two threads.
    Insert,
    /// 20 to 80 % inserts among searches.
    Mixed,
    /// Batches of 64 to 32,768, with the time of each.
    Sizes,
    /// Theta 0.5 and 0.9.
    Skew,
    /// Ranges of 1 to 1000 entries (Fig. 14).
    Ranges,
    /// The time of a rebuild, and the longest inserts beside it.
    Rebuild,
    /// The cost model beside measurements.
    Model,
    /// SIMD, groups, prefetching taken out (Fig. 15).
    Factors,
}

fn default_indexes() -> Vec<String> {
    let peers: &[&str] = if cfg!(feature = "peers") { &["masstree"] } else { &[] };
    peers.iter().chain(&["art-olc"]).map(|name| (*name).to_owned()).collect()
}

impl Batches {
    pub fn run(&self) -> Result<(), BenchError> {
        if self.n == 0 || self.ops == 0 || self.batch == 0 || self.rounds == 0 {
            return Err(BenchError::Request(
                "--n, --ops, --batch and --rounds are at least 1".to_owned(),
            ));
        }
        // Positions of keys have 32 bits; so many rounds end.
        let most = u32::MAX as usize / 4;
        if self.n > most || self.ops > most || self.rounds > 1000 {
            return Err(BenchError::Request(format!(
                "--n and --ops are at most {most}, --rounds 1000"
            )));
        }
        let settings = Settings {
            n: self.n,
            ops: self.ops,
            rounds: self.rounds,
            batch: self.batch,
            seed: self.seed,
        };
        settings.check(&self.index).map_err(BenchError::Request)?;
        let info = RunInfo::now();
        println!("{}; {}; {}; begun {}", info.machine, info.allocator, info.version, info.started);
        println!("{}", info.command);
        self.measure(&settings).map_err(BenchError::Wrong)
    }

    fn measure(&self, settings: &Settings) -> Result<(), String> {
        if self.part.iter().any(|part| *part != Part::Factors) {
            let all = Experiment::load(settings.clone(), &self.index)?;
            for part in &self.part {
                match part {
                    Part::Search => [1, 2].into_iter().try_for_each(|t| all.search(t))?,
                    Part::Insert => [1, 2].into_iter().try_for_each(|t| all.insert(t))?,
                    Part::Mixed => [20, 40, 60, 80].into_iter().try_for_each(|p| all.mixed(p))?,
                    Part::Sizes => all.sizes()?,
                    Part::Skew => all.skew()?,
                    Part::Ranges => {
                        [1, 10, 100, 1000].into_iter().try_for_each(|g| all.ranges(g))?;
                    }
                    Part::Rebuild => all.rebuild()?,
                    Part::Model => all.model()?,
                    Part::Factors => {}
                }
            }
        }
        if self.part.contains(&Part::Factors) { factors(settings) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        batches: Batches,
    }

    #[test]
    fn every_part_runs_and_checks_its_answers() {
        let small = ["bench", "--n", "3000", "--ops", "1000", "--batch", "100", "--rounds", "1"];
        Cli::try_parse_from(small).unwrap().batches.run().unwrap();
    }

    #[test]
    fn unknown_indexes_and_empty_runs_are_refused() {
        let run = |arguments: &[&str]| {
            let all = ["bench", "--n", "10", "--ops", "10"].iter().chain(arguments);
            Cli::try_parse_from(all).unwrap().batches.run().unwrap_err().to_string()
        };
        assert!(run(&["--index", "btree"]).contains("one thread only"));
        let text = run(&["--index", "brtee"]);
        assert!(text.starts_with("unknown index") && text.contains("did you mean"), "{text}");
        assert!(text.contains("skiplist") && !text.contains("wrong answers"), "{text}");
        let large = Settings { n: 1 << 40, ops: 1, rounds: 1, batch: 1, seed: 1 };
        assert!(large.check(&[]).unwrap_err().contains("GiB are needed"));
        assert!(run(&["--batch", "0"]).contains("at least 1"));
    }
}
