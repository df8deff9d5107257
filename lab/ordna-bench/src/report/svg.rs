//! The two plots of the report: bars and lines, as SVG that takes its colours from the page.

use std::fmt::Write;

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a figure with about three digits.
pub fn number(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}M", number(value / 1e6)),
        _ if value >= 1e3 => format!("{}k", number(value / 1e3)),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => trimmed(&format!("{value:.1}")),
        _ => trimmed(&format!("{value:.2}")),
    }
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// One row of a bar plot.
pub struct Bar {
    /// Label of the row.
    pub label: String,
    /// Class of the row: `ours` or `peer`.
    pub class: &'static str,
    /// The figure, or the text to show instead of it.
    pub value: Result<f64, String>,
    /// The smallest and the largest figure of the rounds.
    pub range: Option<(f64, f64)>,
    /// A second figure, drawn as a tick.
    pub tick: Option<f64>,
}

const ROW: f64 = 22.0;
const LABELS: f64 = 150.0;
const BARS: f64 = 190.0;
const WIDTH: f64 = 400.0;

/// Draws horizontal bars from zero, one per row, with their figures at their ends.
pub fn bars(title: &str, unit: &str, rows: &[Bar]) -> String {
    let figures = rows.iter().flat_map(|row| {
        let high = row.range.map(|(_, high)| high);
        [row.value.as_ref().ok().copied(), high, row.tick].into_iter().flatten()
    });
    let most = figures.fold(0.0, f64::max).max(1e-9);
    let x = |value: f64| LABELS + value / most * BARS;
    let height = ROW * rows.len() as f64 + 4.0;
    let mut svg = open(title, unit, height);
    for (at, row) in rows.iter().enumerate() {
        let top = ROW * at as f64 + 2.0;
        let middle = top + ROW / 2.0;
        let label = escape(&row.label);
        let _ = write!(
            svg,
            "<text class=\"name {}\" x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{label}</text>",
            row.class,
            LABELS - 8.0
        );
        let value = match &row.value {
            Ok(value) => *value,
            Err(words) => {
                let words = escape(words);
                let _ = write!(
                    svg,
                    "<text class=\"none\" x=\"{}\" y=\"{middle:.1}\">{words}</text>",
                    LABELS + 6.0
                );
                continue;
            }
        };
        let width = (x(value) - LABELS).max(1.0);
        let _ = write!(
            svg,
            "<g><title>{label}: {} {}</title><rect class=\"bar {}\" x=\"{LABELS}\" y=\"{:.1}\" \
             width=\"{width:.1}\" height=\"12\" rx=\"2\"/>",
            number(value),
            escape(unit),
            row.class,
            middle - 6.0
        );
        let mut end = x(value);
        if let Some((low, high)) = row.range.filter(|(low, high)| high > low) {
            let _ = write!(
                svg,
                "<path class=\"range\" d=\"M{:.1} {middle:.1}H{:.1}\"/>",
                x(low),
                x(high)
            );
            end = end.max(x(high));
        }
        if let Some(tick) = row.tick {
            let _ =
                write!(svg, "<path class=\"tick\" d=\"M{:.1} {:.1}v16\"/>", x(tick), middle - 8.0);
            end = end.max(x(tick));
        }
        let _ = write!(
            svg,
            "<text class=\"figure\" x=\"{:.1}\" y=\"{middle:.1}\">{}</text></g>",
            end + 6.0,
            number(value)
        );
    }
    let _ = write!(svg, "<path class=\"axis\" d=\"M{LABELS} 0V{height:.1}\"/>");
    svg + "</svg></figure>"
}

/// One line of a plot.
pub struct Line {
    /// Label of the line.
    pub label: String,
    /// Class of the line: `s0` to `s7` for ours, `peer`, or `mark` for a level to compare with.
    pub class: String,
    /// The points in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, beginning at zero.
    Linear,
    /// Logarithmic, in powers of ten.
    Log,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        if self == Self::Log { value.max(1e-9).log10() } else { value }
    }

    /// Returns the bounds of the axis for these values, and its tick marks.
    fn axis(self, values: impl Iterator<Item = f64> + Clone) -> (f64, f64, Vec<f64>) {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.fold(most, f64::min);
        if self == Self::Linear {
            let step = nice(most / 4.0);
            let steps = (most / step).ceil().max(1.0);
            let marks = (0..=steps as usize).map(|at| at as f64 * step).collect();
            return (0.0, steps * step, marks);
        }
        let (mut low, mut high) = (least.log10().floor(), most.log10().ceil());
        if low == high {
            (low, high) = (low - 1.0, high + 1.0);
        }
        let decades = (high - low) as usize;
        let all = (0..=decades).map(|at| 10_f64.powf(low + at as f64));
        let every = decades / 8 + 1;
        (low, high, all.step_by(every).collect())
    }
}

/// Returns the smallest of 1, 2, 5, 10, … that is at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|nice| *nice >= step).unwrap_or(power)
}

/// An axis: title, scale and, optionally, its own tick marks with names.
pub struct Axis<'a> {
    /// Quantity and unit.
    pub title: &'a str,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Positions and names of tick marks. If empty, they are chosen by the values.
    pub marks: Vec<(f64, String)>,
}

const LEFT: f64 = 44.0;
const RIGHT: f64 = 280.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 208.0;

/// Draws lines with their names at their ends. Returns an empty string without lines.
pub fn lines(title: &str, x: &Axis<'_>, y: &Axis<'_>, lines: &[Line]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (left, right, _) = match (x.marks.first(), x.marks.last()) {
        (Some(first), Some(last)) => (x.scale.place(first.0), x.scale.place(last.0), vec![]),
        _ => x.scale.axis(all().map(|point| point.0)),
    };
    let (bottom, top, marks) = y.scale.axis(all().map(|point| point.1));
    let span = if right > left { right - left } else { 1.0 };
    let px = |value: f64| LEFT + (x.scale.place(value) - left) / span * (RIGHT - LEFT);
    let py =
        |value: f64| BOTTOM - (y.scale.place(value) - bottom) / (top - bottom) * (BOTTOM - TOP);
    let labels = spread(lines.iter().map(|line| line.points.last().map_or(0.0, |p| py(p.1))));
    let height = labels.iter().copied().fold(BOTTOM + 36.0, |high, y| f64::max(high, y + 8.0));
    let mut svg = open(title, y.title, height);
    for mark in marks {
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{RIGHT}\"/><text class=\"mark\" x=\"{1}\" \
             y=\"{0:.1}\" text-anchor=\"end\">{2}</text>",
            py(mark),
            LEFT - 6.0,
            number(mark)
        );
    }
    for (at, name) in &x.marks {
        let _ = write!(
            svg,
            "<text class=\"mark\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            px(*at),
            BOTTOM + 12.0,
            escape(name)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"mark\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 28.0,
        escape(x.title)
    );
    for (line, label_y) in lines.iter().zip(labels) {
        let Some(last) = line.points.last() else { continue };
        let (class, name) = (&line.class, escape(&line.label));
        let path: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1} {:.1}", px(*x), py(*y))).collect();
        let _ = write!(
            svg,
            "<g class=\"line {class}\"><path d=\"M{}\"/><path class=\"leader\" d=\"M{:.1} {:.1}L{} \
             {label_y:.1}\"/>",
            path.join("L"),
            px(last.0),
            py(last.1),
            RIGHT + 10.0
        );
        for (at, value) in &line.points {
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{name}: {} at {}</title></circle>",
                px(*at),
                py(*value),
                number(*value),
                number(*at)
            );
        }
        let _ = write!(svg, "<text x=\"{}\" y=\"{label_y:.1}\">{name}</text></g>", RIGHT + 13.0);
    }
    svg + "</svg></figure>"
}

/// Moves overlapping labels apart and keeps their order.
fn spread(places: impl Iterator<Item = f64>) -> Vec<f64> {
    const GAP: f64 = 12.0;
    let mut places: Vec<(usize, f64)> = places.enumerate().collect();
    let count = places.len();
    places.sort_by(|a, b| a.1.total_cmp(&b.1));
    for at in 1..count {
        places[at].1 = places[at].1.max(places[at - 1].1 + GAP);
    }
    // Labels that were pushed below the plot are moved up again as far as there is room.
    let mut limit = BOTTOM + 8.0;
    for (_, place) in places.iter_mut().rev() {
        *place = place.min(limit).max(TOP);
        limit = *place - GAP;
    }
    for at in 1..count {
        places[at].1 = places[at].1.max(places[at - 1].1 + GAP);
    }
    places.sort_by_key(|(line, _)| *line);
    places.into_iter().map(|(_, place)| place).collect()
}

fn open(title: &str, unit: &str, height: f64) -> String {
    format!(
        "<figure><figcaption>{0} <span>{1}</span></figcaption><svg viewBox=\"0 0 {WIDTH} \
         {height:.0}\" role=\"img\" aria-label=\"{0}, {1}\">",
        escape(title),
        escape(unit)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_and_do_not_overlap() {
        let places = spread([50.0, 50.0, 10.0, 206.0, 207.0].into_iter());
        assert!(places[2] < places[0] && places[0] < places[1] && places[3] < places[4]);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 11.99), "{places:?}");
    }

    #[test]
    fn axes_hold_their_values() {
        let (low, high, marks) = Scale::Linear.axis([0.3, 7.3].into_iter());
        assert!(low == 0.0 && high >= 7.3 && marks.len() >= 3, "{high} {marks:?}");
        let (low, high, _) = Scale::Log.axis([30.0, 20_000.0].into_iter());
        assert_eq!((low, high), (1.0, 5.0));
        assert_eq!(number(12_345_678.0), "12.3M");
        assert_eq!(number(0.5), "0.5");
    }
}
