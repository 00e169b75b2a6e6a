//! Line plots as SVG, made by hand: axes, ticks, a legend, and logarithmic scales.

use core::fmt::Write as _;

use super::probe::bytes;

/// A line plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// Title above the plot.
    pub title: String,
    /// Meaning of the horizontal axis.
    pub x_label: &'static str,
    /// Meaning and unit of the vertical axis.
    pub y_label: &'static str,
    /// True if the vertical axis is logarithmic; the horizontal one always is.
    pub y_log: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// True for programs over Ferroce, which have solid lines; references are dashed.
    pub is_ours: bool,
    /// Number of the colour, 0 to 4: each program has the same in all plots.
    pub colour: u32,
    /// The points, from left to right.
    pub points: Vec<(u32, f64)>,
}

/// Width of a plot with its legend.
pub const WIDTH: f64 = 860.0;
/// Height of a plot.
pub const HEIGHT: f64 = 400.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 636.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 344.0;

/// Colours of the plots, for light and dark backgrounds. A page contains this once.
pub const STYLE: &str = "\
.chart{--ink:#1f2328;--soft:#59636e;--grid:#d9dee4;--c0:#0b5fd0;--c1:#c2410c;--c2:#1a7f37;--c3:#8250df;\
--c4:#a40e26;--r0:#59636e;--r1:#9a6700;--r2:#0e7490;--r3:#bf3989;--r4:#116329}\
@media(prefers-color-scheme:dark){.chart{--ink:#e6edf3;--soft:#9198a1;--grid:#30363d;--c0:#58a6ff;\
--c1:#ff9b57;--c2:#4ac26b;--c3:#c297ff;--c4:#ff7b72;--r0:#9198a1;--r1:#d4a72c;--r2:#39c5cf;--r3:#ff80c8;\
--r4:#7ee787}}\
.chart text{font:13px system-ui,sans-serif;fill:var(--soft)}\
.chart .title{font-size:16px;font-weight:600;fill:var(--ink)}\
.chart .name{fill:var(--ink)}\
.chart .grid{stroke:var(--grid);stroke-width:1}\
.chart .line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}\
.chart .reference{stroke-dasharray:6 4;stroke-width:1.8}";

impl Chart {
    /// Returns true if there is a line to draw: points at two places at least.
    pub fn is_drawable(&self) -> bool {
        self.places().len() > 1
    }

    /// Returns the plot as an SVG element, without [`STYLE`].
    pub fn svg(&self) -> String {
        let mut out = format!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"24\">{0}</text>\n",
            escape(&self.title)
        );
        self.axes(&mut out);
        let colour = |series: &Series| {
            let kind = if series.is_ours { 'c' } else { 'r' };
            format!("var(--{kind}{})", series.colour % 5)
        };
        let all = self.series.iter();
        let mut lines: Vec<(String, &Series)> = all.map(|line| (colour(line), line)).collect();
        for (colour, series) in &lines {
            self.line(&mut out, colour, series);
        }
        // The legend lists the lines in the order of their right ends.
        let height = |series: &Series| series.points.last().map_or(0.0, |point| point.1);
        lines.sort_by(|a, b| f64::total_cmp(&height(b.1), &height(a.1)));
        for (row, (colour, series)) in lines.iter().enumerate() {
            let y = TOP + 12.0 + 22.0 * row as f64;
            let _ = writeln!(
                out,
                "<path class=\"line{}\" stroke=\"{colour}\" d=\"M{} {y}h26\"/>\
                 <text class=\"name\" x=\"{}\" y=\"{}\">{}</text>",
                class(series),
                RIGHT + 18.0,
                RIGHT + 52.0,
                y + 4.5,
                escape(&series.name)
            );
        }
        out += "</svg>\n";
        out
    }

    fn axes(&self, out: &mut String) {
        for value in self.ticks() {
            let y = self.y(value);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.5,
                number(value)
            );
        }
        let mut last = f64::MIN;
        for place in self.places() {
            let x = self.x(place);
            let _ = write!(out, "<path class=\"grid\" d=\"M{x:.1} {BOTTOM}v6\"/>");
            // Labels that would overlap are left out.
            if x - last > 34.0 {
                last = x;
                let y = BOTTOM + 22.0;
                let name = bytes(place);
                let _ = write!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"
                );
            }
            out.push('\n');
        }
        let middle = f64::midpoint(TOP, BOTTOM);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"18\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {middle})\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            HEIGHT - 10.0,
            escape(self.x_label),
            escape(self.y_label)
        );
    }

    fn line(&self, out: &mut String, colour: &str, series: &Series) {
        let mut path = String::new();
        let mut dots = String::new();
        for (index, &(place, value)) in series.points.iter().enumerate() {
            let (x, y) = (self.x(place), self.y(value));
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{x:.1} {y:.1}");
            let _ = write!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}, {}: {}</title></circle>",
                escape(&series.name),
                bytes(place),
                number(value)
            );
        }
        let class = class(series);
        let _ = writeln!(
            out,
            "<path class=\"line{class}\" stroke=\"{colour}\" d=\"{path}\"/>{dots}"
        );
    }

    /// Returns the places of all points on the horizontal axis, in order.
    fn places(&self) -> Vec<u32> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut places: Vec<u32> = points.map(|point| point.0).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn x(&self, place: u32) -> f64 {
        let places = self.places();
        let log = |place: u32| f64::from(place.max(1)).log2();
        let (first, last) = match (places.first(), places.last()) {
            (Some(&first), Some(&last)) if last > first => (log(first), log(last)),
            _ => return f64::midpoint(LEFT, RIGHT),
        };
        // Half a tick of space at both ends.
        LEFT + 16.0 + (RIGHT - LEFT - 32.0) * (log(place) - first) / (last - first)
    }

    fn y(&self, value: f64) -> f64 {
        let (least, most) = self.range();
        let part = match self.y_log {
            true => (value.max(least).log10() - least.log10()) / (most.log10() - least.log10()),
            false => value / most,
        };
        BOTTOM - (BOTTOM - TOP) * part
    }

    /// Returns the least and the greatest value of the vertical axis.
    fn range(&self) -> (f64, f64) {
        let points = self.series.iter().flat_map(|series| &series.points);
        let values: Vec<f64> = points.map(|point| point.1).filter(|v| *v > 0.0).collect();
        let most = values.iter().copied().fold(1e-3, f64::max);
        if !self.y_log {
            let step = step(most);
            return (0.0, (most / step).ceil() * step);
        }
        let least = values.iter().copied().fold(most, f64::min);
        let floor = round_log(least, false);
        (floor, round_log(most, true).max(floor * 10.0))
    }

    fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.range();
        if !self.y_log {
            let step = step(most);
            let count = (most / step).round() as u32;
            return (0..=count).map(|tick| f64::from(tick) * step).collect();
        }
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(least.log10().floor());
        while decade <= most * 1.001 {
            for factor in [1.0, 2.0, 5.0] {
                let tick = decade * factor;
                // Over many decades, only powers of ten.
                let kept = most / least < 2e3 || factor == 1.0;
                if kept && (least * 0.999..=most * 1.001).contains(&tick) {
                    ticks.push(tick);
                }
            }
            decade *= 10.0;
        }
        ticks
    }
}

/// Returns plots, one below the other, as a file of their own.
pub fn file(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\">\n<style>{STYLE}</style>\n"
    );
    for (row, chart) in charts.iter().enumerate() {
        let y = HEIGHT * row as f64;
        let _ = writeln!(
            out,
            "<g transform=\"translate(0 {y})\">\n{}</g>",
            chart.svg()
        );
    }
    out += "</svg>\n";
    out
}

/// Escapes text for SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn class(series: &Series) -> &'static str {
    if series.is_ours { "" } else { " reference" }
}

/// Returns the distance of ticks for values up to `most`: about five ticks.
fn step(most: f64) -> f64 {
    let rough = most / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * decade >= rough);
    factor.unwrap_or(10.0) * decade
}

/// Rounds to 1, 2 or 5 times a power of ten.
fn round_log(value: f64, up: bool) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let exact = |factor: &f64| factor * decade;
    match up {
        true => factors
            .iter()
            .map(exact)
            .find(|tick| *tick >= value * 0.999),
        false => factors
            .iter()
            .rev()
            .map(exact)
            .find(|tick| *tick <= value * 1.001),
    }
    .unwrap_or(value)
}

/// Formats a value with as many digits as it needs.
fn number(value: f64) -> String {
    match value {
        ..0.1 if value > 0.0 => format!("{value:.3}"),
        ..10.0 => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        ..1e3 => format!("{value:.0}"),
        _ => {
            // Thousands are separated.
            let digits = format!("{value:.0}");
            let mut out = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    out.push(',');
                }
                out.push(digit);
            }
            out
        }
    }
}
