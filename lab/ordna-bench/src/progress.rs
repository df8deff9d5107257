//! The progress bar of a run, which is shown only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A single bar over all plans of a run.
pub struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar with a number of steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let template = "[{bar:30}] {pos}/{len} {prefix} {msg} ({elapsed}, {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Creates a bar that is not shown.
    pub fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(bar)
    }

    /// Prints a line above the bar, or on standard error if there is no terminal.
    pub fn say(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    /// Shows the case that is being measured.
    pub fn step(&self, what: &str, index: &str) {
        self.0.set_prefix(what.to_owned());
        self.0.set_message(index.to_owned());
        self.0.tick();
    }

    /// Advances by one step.
    pub fn done(&self) {
        self.0.inc(1);
    }

    /// Ends the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
