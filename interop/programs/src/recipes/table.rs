//! The table of recipes: how each is checked.

/// A group of recipes, selected by an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Python packages from a package index.
    Wheels,
    /// MPI libraries from a package index.
    Mpi,
    /// Test suites of other projects.
    Suites,
    /// Storage servers.
    Storage,
}

/// One recipe.
pub(crate) struct Recipe {
    pub(crate) group: Group,
    /// Title of its section.
    pub(crate) title: &'static str,
    /// Texts that its second block must print.
    pub(crate) expect: &'static [&'static str],
    /// Bytes that the recipe moves, at least, over rxe0.
    pub(crate) bytes: u64,
    /// Minutes until the second block counts as hung.
    pub(crate) minutes: u64,
    /// Sources that its first block builds.
    pub(crate) source: Option<Source>,
}

/// Sources of a program.
pub(crate) struct Source {
    /// Variable that holds the folder in the blocks. The user sets it with `FERROCE_` in front.
    pub(crate) variable: &'static str,
    /// Name and version of the software, for messages.
    pub(crate) software: &'static str,
    /// Debian source package and suite, if there is one.
    pub(crate) debian: Option<(&'static str, &'static str)>,
}

const MIB: u64 = 1 << 20;

/// All recipes, in the order of the page.
pub(crate) const RECIPES: &[Recipe] = &[
    wheel("NIXL", &["received: DONE True"], MIB),
    wheel("KV cache transfer", &["decode: 64 blocks right"], 4 * MIB),
    wheel("Mooncake", &["received: True"], MIB),
    wheel("DLSlime", &["received: True"], MIB),
    wheel("InfiniStore", &["received: True"], 2 * MIB),
];

const fn wheel(title: &'static str, expect: &'static [&'static str], bytes: u64) -> Recipe {
    Recipe {
        group: Group::Wheels,
        title,
        expect,
        bytes,
        minutes: 2,
        source: None,
    }
}
