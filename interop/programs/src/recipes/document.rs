//! Sections and code blocks of the page of recipes.

use anyhow::{Context, Result, bail};

/// The two code blocks of a recipe.
pub(crate) struct Blocks {
    pub(crate) install: String,
    pub(crate) run: String,
}

/// Returns the titles of all sections, without those of level one and three.
#[cfg(test)]
pub(super) fn titles(page: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    page.lines().filter_map(move |line| {
        code ^= line.starts_with("```");
        line.strip_prefix("## ").filter(|_| !code)
    })
}

/// Returns the text of a section.
pub(super) fn section<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    let head = format!("\n## {title}\n");
    let start = page.find(&head)? + head.len();
    let rest = &page[start..];
    let mut end = 0;
    let mut code = false;
    for line in rest.split_inclusive('\n') {
        code ^= line.starts_with("```");
        if line.starts_with("## ") && !code {
            break;
        }
        end += line.len();
    }
    Some(&rest[..end])
}

/// Returns the first two code blocks of a section.
pub(super) fn blocks(page: &str, title: &str) -> Result<Blocks> {
    let text =
        section(page, title).with_context(|| format!("docs/RECIPES.md has no section {title}"))?;
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.split_inclusive('\n') {
        open = match (open, line.starts_with("```")) {
            (None, true) => Some(String::new()),
            (None, false) => None,
            (Some(block), true) => {
                blocks.push(block);
                None
            }
            (Some(block), false) => Some(block + line),
        };
    }
    match <[String; 2]>::try_from(blocks) {
        Ok([install, run]) => Ok(Blocks { install, run }),
        Err(blocks) => bail!(
            "section {title} of docs/RECIPES.md has {} code blocks; a recipe has two",
            blocks.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# P\n\n## A\n\n```\npip\n```\ntext\n```\n## in code\nrun\n```\n\n## B\n";

    #[test]
    fn blocks_are_those_of_the_section() {
        let found = blocks(PAGE, "A").unwrap();
        assert_eq!(found.install, "pip\n");
        assert_eq!(found.run, "## in code\nrun\n");
        assert!(blocks(PAGE, "B").is_err());
        assert!(blocks(PAGE, "C").is_err());
    }

    #[test]
    fn comments_in_code_are_no_titles() {
        assert!(titles(PAGE).eq(["A", "B"]));
    }
}
