//! `ordna bench reclaim`: what the ways to free removed memory cost, and what they hold.

use std::path::PathBuf;

use clap::Args;

use super::{BenchError, check_writable, write};
use crate::info::{RunInfo, Ticks};
use crate::noise::told_of;
use crate::progress::Progress;
use crate::reclaim::{SCHEMES, Settings, find, render, run, verdict};

/// What is measured.
#[derive(Debug, Args)]
pub struct Reclaim {
    /// Ways to free: seize (ordna_base::reclaim, which the indexes and the store run on), barrier (the Nitro
    /// paper's access barrier), and, in builds with --features peers, crossbeam-epoch.
    #[arg(long, value_delimiter = ',', default_values_t = all())]
    scheme: Vec<String>,
    /// Times that a reading section is entered and left, alone and within another, in a round.
    #[arg(long, default_value_t = 20_000_000)]
    entries: usize,
    /// Nodes of 48 bytes that are retired in a round, and again while a reader stalls.
    #[arg(long, default_value_t = 1_000_000)]
    retires: usize,
    /// Rounds: each measures all once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the results as JSON: an object for each scheme.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn all() -> Vec<String> {
    SCHEMES.iter().map(|entry| entry.name.to_owned()).collect()
}

impl Reclaim {
    pub fn run(&self) -> Result<(), BenchError> {
        let schemes = find(&self.scheme).map_err(BenchError::Request)?;
        let Self { entries, retires, rounds, .. } = *self;
        let settings = Settings { entries, retires, rounds };
        settings.check().map_err(BenchError::Request)?;
        if let Some(path) = &self.json {
            check_writable(path)?;
        }
        let mut info = RunInfo::now();
        let then = Ticks::now();
        let progress = Progress::new(schemes.len() * rounds);
        let mut outcomes = run(&schemes, &settings, &info, &progress);
        progress.finish();
        info.shares = Ticks::now().zip(then).and_then(|(now, then)| now.since(&then));
        outcomes.iter_mut().for_each(|outcome| outcome.info.shares = info.shares);
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&outcomes).unwrap_or_default();
            write(path, &(text + "\n"))?;
        }
        println!("{}; {}; {}; {}", info.started, info.version, info.machine, info.allocator);
        println!("{}", info.command);
        told_of(&info).iter().for_each(|text| println!("{text}"));
        println!(
            "{rounds} rounds, interleaved: medians (min–max); {entries} entries, {retires} nodes retired"
        );
        println!("{}", render(&outcomes));
        verdict(&outcomes).map_err(BenchError::Wrong)?;
        println!("nothing was freed while a reader could hold it, and all in the end");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        reclaim: Reclaim,
    }

    fn run(arguments: &[&str]) -> Result<(), BenchError> {
        let all = ["bench", "--entries", "100", "--retires", "300", "--rounds", "1"];
        Cli::try_parse_from(all.iter().chain(arguments)).unwrap().reclaim.run()
    }

    #[test]
    fn the_results_are_written_for_programs() {
        let path = std::env::temp_dir().join(format!("ordna-reclaim-{}.json", std::process::id()));
        run(&["--json", path.to_str().unwrap()]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let read: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let schemes: Vec<&str> = read.iter().map(|of| of["scheme"].as_str().unwrap()).collect();
        assert_eq!(schemes, all());
        assert!(read.iter().all(|of| of["checked"] == true && of["retires"] == 300), "{text}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let told = |arguments: &[&str]| match run(arguments).unwrap_err() {
            BenchError::Request(text) => text,
            other => panic!("{other:?}"),
        };
        let text = told(&["--scheme", "seize,barier"]);
        assert!(text.contains("unknown --scheme") && text.contains("did you mean"), "{text}");
        assert!(told(&["--scheme", "hazard"]).contains("known are seize, barrier"));
        let path = ["--json", "/nowhere/a.json"];
        assert!(matches!(run(&path).unwrap_err(), BenchError::Write { .. }));
        let max = usize::MAX.to_string();
        let with = |name: &str, value: &str| {
            let settings = ["bench", name, value];
            Cli::try_parse_from(settings).unwrap().reclaim.run().unwrap_err().to_string()
        };
        assert!(with("--retires", "0").contains("at least 1"));
        assert!(with("--retires", &max).contains("ask for fewer with --retires"));
        assert!(with("--entries", &max).contains("at most"));
        assert!(with("--rounds", &max).contains("at most"));
        if !cfg!(feature = "peers") {
            assert!(told(&["--scheme", "crossbeam-epoch"]).contains("--features peers"));
        }
    }
}
