//! Writes recorded histories, and this crate's verdicts on them, into a folder for porcupine.
//!
//! Half of them are recorded from the skip list and unchanged, half are corrupted: one operation
//! has a changed result.

use std::path::PathBuf;

use ordna_papers::SkipList;
use ordna_testkit::erased::Subject;
use ordna_testkit::history::{is_linearizable, record, to_json};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).expect("usage: histories FOLDER"));
    let (mut yes, mut no) = (0, 0);
    for seed in 0..200_u64 {
        let mut history = record(&SkipList::<u64, u64>::new().erase(), seed, 3, 20, 2);
        if seed % 2 == 1 {
            let at = seed as usize % history.len();
            let other = (at + 7) % history.len();
            history[at].saw = history[other].left;
        }
        let verdict = is_linearizable(&history);
        *if verdict { &mut yes } else { &mut no } += 1;
        let text = format!("{{\"linearizable\":{verdict},\"history\":{}}}", to_json(&history));
        std::fs::write(folder.join(format!("{seed}.json")), text)?;
    }
    println!("{yes} linearizable, {no} not, by todc-utils");
    Ok(())
}
