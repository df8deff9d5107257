//! Contenders measured in interleaved rounds, and their table.

/// Who is measured: a name, and one measurement, in operations per second.
pub struct Contender<'a> {
    name: String,
    /// Whether it is a single-operation index: the best of these is what batches are compared with.
    single: bool,
    run: Box<dyn Fn() -> Result<f64, String> + 'a>,
}

impl<'a> Contender<'a> {
    /// An index used by single operations.
    pub fn single(name: &str, run: impl Fn() -> Result<f64, String> + 'a) -> Self {
        Self { name: name.to_owned(), single: true, run: Box::new(run) }
    }

    /// One used by batches.
    pub fn batch(name: &str, run: impl Fn() -> Result<f64, String> + 'a) -> Self {
        Self { name: name.to_owned(), single: false, run: Box::new(run) }
    }
}

/// What the rounds gave.
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The middle one; 0 if there is none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    fn range(&self) -> String {
        let low = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.0.iter().copied().fold(0.0, f64::max);
        format!("{:.3} ({:.3}-{:.3})", self.median() / 1e6, low / 1e6, high / 1e6)
    }
}

/// Measures all of them in each round, and prints the medians and what they are to the baseline.
///
/// # Errors
/// What a contender says.
pub fn run(
    title: &str,
    rounds: usize,
    baseline: &str,
    contenders: &[Contender<'_>],
) -> Result<Vec<Samples>, String> {
    let mut samples: Vec<Samples> = contenders.iter().map(|_| Samples(Vec::new())).collect();
    for _ in 0..rounds {
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            let rate = (contender.run)();
            samples.0.push(rate.map_err(|what| format!("{}: {what}", contender.name))?);
        }
    }
    let median = |wanted: &dyn Fn(&Contender<'_>) -> bool| {
        let all = contenders.iter().zip(&samples).filter(|(contender, _)| wanted(contender));
        all.map(|(_, samples)| samples.median()).reduce(f64::max)
    };
    let base = median(&|contender| contender.name == baseline);
    let best = median(&|contender| contender.single);
    let ratio = |samples: &Samples, to: Option<f64>| {
        to.map_or("-".to_owned(), |to| format!("{:.2}", samples.median() / to))
    };
    let mut head = vec!["".to_owned(), "M/s (lowest-highest)".into(), format!("/ {baseline}")];
    if best.is_some() {
        head.push("/ best single".into());
    }
    let rows = contenders.iter().zip(&samples).map(|(contender, samples)| {
        let mut row = vec![contender.name.clone(), samples.range(), ratio(samples, base)];
        if best.is_some() {
            row.push(ratio(samples, best));
        }
        row
    });
    println!("\n{title}");
    table(&head, &rows.collect::<Vec<_>>());
    Ok(samples)
}

/// Prints a table whose columns line up.
pub fn table(head: &[String], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.chain(head.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}", cells.collect::<String>())
    };
    println!("{}", line(head));
    println!(
        "|{}",
        widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect::<String>()
    );
    rows.iter().for_each(|row| println!("{}", line(row)));
}
