//! Man pages, made from the same text as `--help`.
//!
//! clap_mangen writes the options and subcommands. This module writes the rest: the synopsis
//! is the usage of `--help`, headings in the text become sections, and each page lists
//! related pages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;

/// Pages that the main page lists under SEE ALSO.
const RELATED: [&str; 4] = [
    "ferroced(1)",
    "ferroce-rdma(1)",
    "ferroce-rxe_cfg(1)",
    "ibv_devices(1)",
];

/// Writes the pages of a command and of its visible subcommands.
pub(super) fn write_all(command: &Command, dir: &Path) -> Result<()> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let related = RELATED.map(String::from);
    let name = command.get_name().to_owned();
    let related = related.into_iter().filter(|page| *page != title(&name));
    let mut related: Vec<String> = related.collect();
    if name != "ferroce" {
        related.insert(0, title("ferroce"));
    }
    write_tree(&command, dir, &related)
}

fn write_tree(command: &Command, dir: &Path, see_also: &[String]) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let subcommands: Vec<&Command> = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
        .collect();
    let inner = subcommands
        .iter()
        .filter_map(|inner| inner.get_display_name());
    let below: Vec<String> = inner.map(title).collect();
    write_page(command, name, dir, &[&below, see_also].concat())?;
    for inner in subcommands {
        write_tree(inner, dir, &[title(name), title("ferroced")])?;
    }
    Ok(())
}

/// Writes the page of one command.
pub(super) fn write_page(
    command: &Command,
    name: &str,
    dir: &Path,
    see_also: &[String],
) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    let text = page(command, name, see_also)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn title(name: &str) -> String {
    format!("{name}(1)")
}

/// Returns a page in roff.
fn page(command: &Command, name: &str, see_also: &[String]) -> Result<String> {
    let mut command = command.clone();
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH {} 1 \"\" \"Ferroce {version}\" \"Ferroce\"\n",
        escaped(name)
    );
    let about = text_of(command.get_about());
    let about = about.trim_end_matches('.');
    let _ = write!(page, ".SH NAME\n{} \\- {}\n", escaped(name), escaped(about));
    let usage = command.render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:");
    page += ".SH SYNOPSIS\n.nf\n";
    for line in usage.lines() {
        let _ = writeln!(page, "{}", literal(line.trim()));
    }
    page += ".fi\n.SH DESCRIPTION\n";
    let description = command.get_long_about().or(command.get_about());
    for paragraph in text_of(description).split("\n\n") {
        let _ = write!(page, ".PP\n{}\n", literal(&paragraph.replace('\n', " ")));
    }
    let more = command.get_after_long_help().or(command.get_after_help());
    let more = text_of(more);
    let mut written = Vec::new();
    let man = clap_mangen::Man::new(command.clone());
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut written)?;
    }
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut written)?;
    }
    page += &String::from_utf8(written)?;
    page += &sections(&more);
    let _ = write!(
        page,
        ".SH \"SEE ALSO\"\n{}\n",
        escaped(&see_also.join(", "))
    );
    Ok(page)
}

fn text_of(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Converts text with headings in capitals, as in `--help`, to sections in roff.
fn sections(text: &str) -> String {
    let mut page = String::new();
    let mut open = false;
    for line in text.lines() {
        let is_heading = line.starts_with(|c: char| c.is_ascii_uppercase())
            && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
        if is_heading {
            page += if open { ".fi\n" } else { "" };
            let _ = write!(page, ".SH \"{line}\"\n.nf\n");
            open = true;
            continue;
        }
        if !open {
            // The text has lines before its first heading.
            page += ".SH NOTES\n.nf\n";
            open = true;
        }
        let line = line.strip_prefix("    ").unwrap_or(line);
        let _ = writeln!(page, "{}", literal(line));
    }
    page + if open { ".fi\n" } else { "" }
}

/// Escapes backslashes, and hyphens so that they stay ASCII hyphens.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Escapes a line so that roff does not take its start for a request.
fn literal(line: &str) -> String {
    let guard = if line.starts_with(['.', '\'']) {
        "\\&"
    } else {
        ""
    };
    format!("{guard}{}", escaped(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_sections() {
        let page =
            sections("EXIT STATUS\n    0 on success\n\nEXAMPLES\n    ferroce -j link\n    .x");
        assert_eq!(
            page,
            ".SH \"EXIT STATUS\"\n.nf\n0 on success\n\n.fi\n.SH \"EXAMPLES\"\n.nf\n\
             ferroce \\-j link\n\\&.x\n.fi\n"
        );
    }
}
