//! Output formats, with the options of iproute2.

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

/// The output format.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Format {
    /// Print JSON instead of text
    #[arg(short, long, global = true)]
    pub(crate) json: bool,

    /// Print indented JSON
    #[arg(short, long, global = true)]
    pub(crate) pretty: bool,

    /// Print more details: MTU, speed, GIDs
    #[arg(short, long, global = true)]
    pub(crate) details: bool,
}

impl Format {
    /// Writes a JSON array.
    pub(crate) fn write_json<T: Serialize>(self, values: &[T]) -> Result<()> {
        let text = match self.pretty {
            true => serde_json::to_string_pretty(values)?,
            false => serde_json::to_string(values)?,
        };
        write(&format!("{text}\n"))
    }
}

/// Formats rows as a table. Columns are as wide as their widest cell, two spaces apart.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths: Vec<usize> = (0..N).filter_map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text += "\n";
    }
    text
}

/// Writes text to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn write(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
