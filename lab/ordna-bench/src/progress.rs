//! The progress bar of a run. It shows on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One bar over all plans of a run.
pub struct Progress(ProgressBar);

impl Progress {
    /// Over so many steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let template = "[{bar:30}] {pos}/{len} {prefix} {msg} ({elapsed}, {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows nothing.
    pub fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(bar)
    }

    /// A line above the bar, or on standard error where there is no terminal.
    pub fn say(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    /// The case under measurement.
    pub fn step(&self, what: &str, index: &str) {
        self.0.set_prefix(what.to_owned());
        self.0.set_message(index.to_owned());
        self.0.tick();
    }

    /// One step is done.
    pub fn done(&self) {
        self.0.inc(1);
    }

    /// All is done.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
