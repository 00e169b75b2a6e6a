//! The report as one HTML page without references to other files.

use core::fmt::Write as _;

use super::charts::charts;
use super::machine::Machine;
use super::measure::Results;
use super::svg::{self, STYLE, escape};
use crate::report::Report;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--ink:#1f2328;--soft:#59636e;--rule:#d9dee4;--good:#1a7f37;--bad:#cf222e}\
@media(prefers-color-scheme:dark){:root{--back:#0d1117;--ink:#e6edf3;--soft:#9198a1;--rule:#30363d;\
--good:#4ac26b;--bad:#ff7b72}}\
body{background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:900px;\
margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}\
.soft{color:var(--soft)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;width:100%}\
th{text-align:left;font-weight:600;color:var(--soft);border-bottom:2px solid var(--rule);padding:.3rem .9rem .3rem 0}\
td{border-bottom:1px solid var(--rule);padding:.25rem .9rem .25rem 0;white-space:nowrap}\
td:first-child{font-family:ui-monospace,monospace;font-size:12.5px}\
.n{text-align:right;font-variant-numeric:tabular-nums}\
.ok{color:var(--good)}.missed{color:var(--bad);font-weight:600}\
svg.chart{max-width:100%;height:auto;display:block;margin:1rem 0}";

/// Returns the page.
pub fn page(machine: &Machine, quick: bool, all: &[Results]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Ferroce: speed of programs</title>\n<style>{PAGE_STYLE}{STYLE}</style></head><body>\n\
         <h1>Ferroce: speed of programs</h1>\n<p class=\"soft\">{} UTC, commit {}<br>\n\
         {}, {} cores, Linux {}<br>\n{}{}</p>\n\
         <p>Unmodified programs over Ferroce (solid lines), each beside its references (dashed lines) \
         in the same run. Figures are medians over the rounds; ratios are medians of each round's \
         ratio.</p>\n",
        escape(&machine.time),
        escape(&machine.commit),
        escape(&machine.processor),
        machine.cores,
        escape(&machine.kernel),
        escape(&machine.place),
        if quick { " Measured with --quick." } else { "" }
    );
    for results in all {
        let _ = writeln!(out, "<h2>With {} cores: plots</h2>", results.count);
        let charts = charts(results);
        if charts.is_empty() {
            out += "<p class=\"soft\">Too few rows were measured for a plot.</p>\n";
        }
        for chart in charts {
            out += &chart.svg();
        }
        let _ = writeln!(out, "<h2>With {} cores: goals</h2>", results.count);
        table(&mut out, results);
    }
    out += "</body></html>\n";
    out
}

/// Returns the main plots as an SVG file: bandwidth and latency over the message size.
/// Returns `None` if one of them was not measured.
pub fn main_plot(results: &Results) -> Option<String> {
    let charts = charts(results);
    let of = |title: &str| charts.iter().find(|chart| chart.title.starts_with(title));
    let main = [of("Bandwidth, ")?.clone(), of("Latency, ")?.clone()];
    Some(svg::file(&main))
}

fn table(out: &mut String, results: &Results) {
    let report = Report {
        rows: results.rows.clone(),
        ..Report::default()
    };
    *out += "<div class=\"wide\"><table><tr><th>program<th class=\"n\">figure<th>compared with\
             <th class=\"n\">ratio<th>goal<th>verdict</tr>\n";
    for row in &results.rows {
        let [what, _, figure, _, against, ratio, goal, verdict] = row.cells().map(|c| escape(&c));
        let class = match row.met() {
            Some(true) => "ok",
            Some(false) => "missed",
            None => "",
        };
        let _ = writeln!(
            out,
            "<tr><td>{what}<td class=\"n\">{figure}<td>{against}<td class=\"n\">{ratio}<td>{goal}\
             <td class=\"{class}\">{verdict}</tr>"
        );
    }
    let _ = writeln!(out, "</table></div>\n<p>{}</p>", escape(&report.summary()));
    let skipped = results.skipped.iter().map(|entry| ("Skipped", entry));
    let failed = results.failed.iter().map(|entry| ("Failed", entry));
    for (verb, (probe, why)) in skipped.chain(failed) {
        let _ = writeln!(
            out,
            "<p class=\"missed\">{verb}: {}: {}</p>",
            escape(&probe.label()),
            escape(why.lines().next().unwrap_or_default())
        );
    }
}
