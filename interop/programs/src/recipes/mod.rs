//! The recipes of `docs/RECIPES.md`, run as printed: software that users install themselves.
//!
//! A recipe is a section of that page. Its first code block installs or builds the software;
//! it runs with the network of this machine. Its second block runs the software in a network
//! namespace of its own, as an ordinary user, with `rxe0` on loopback or on a veth. A recipe works if that
//! block exits with 0, prints the expected texts, and rxe0 has sent at least the stated number
//! of bytes meanwhile. Each recipe checks its data by itself.

mod document;
mod prepare;
mod run;
mod table;

use std::path::Path;

use anyhow::Result;

pub(crate) use prepare::Prepared;
pub(crate) use run::run;
pub(crate) use table::{Group, Network, Recipe};

/// The page with all recipes.
const PAGE: &str = include_str!("../../../../docs/RECIPES.md");

/// Returns the recipes of these groups, in the order of the page.
pub(crate) fn of_groups(groups: &[Group]) -> Vec<&'static Recipe> {
    let chosen = table::RECIPES.iter();
    chosen.filter(|r| groups.contains(&r.group)).collect()
}

/// Installs or builds the software of a recipe below `folder`, unless an earlier run did.
pub(crate) fn prepare(recipe: &'static Recipe, folder: &Path) -> Result<Prepared> {
    prepare::prepare(recipe, folder, &document::blocks(PAGE, recipe.title)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_of_the_page_is_run_or_says_that_it_is_not() {
        for title in document::titles(PAGE) {
            let listed = table::RECIPES.iter().any(|recipe| recipe.title == title);
            let by_hand = document::section(PAGE, title).is_some_and(|s| s.contains("No command"));
            assert!(listed != by_hand, "## {title}");
        }
    }

    #[test]
    fn every_recipe_has_a_block_to_install_and_one_to_run() {
        for recipe in table::RECIPES {
            let blocks = document::blocks(PAGE, recipe.title).expect(recipe.title);
            assert!(blocks.run.contains("ferroce run"), "{}", recipe.title);
            for source in recipe.sources {
                let variable = format!("${}", source.variable);
                assert!(blocks.install.contains(&variable), "{}", recipe.title);
            }
        }
    }
}
