//! The table of recipes: how each is checked.

/// A group of recipes, selected by an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Python packages from a package index.
    Wheels,
    /// MPI libraries from a package index.
    Mpi,
    /// Storage servers.
    Storage,
    /// Video over RDMA.
    Video,
    /// Test suites of RDMA libraries.
    Suites,
}

/// The netdev of rxe0 while a recipe runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Loopback,
    /// A veth: libfabric uses no link on a loopback netdev.
    Ethernet,
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
    pub(crate) network: Network,
    /// Minutes until the second block counts as hung.
    pub(crate) minutes: u64,
    /// Sources that its first block builds.
    pub(crate) sources: &'static [Source],
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
    mpi("Open MPI", &["Open MPI", "ring and sum right"], 8 * MIB, 2),
    mpi("MPICH", &["MPICH", "ring and sum right"], 8 * MIB, 2),
    on_ethernet(mpi(
        "Intel MPI",
        &["Intel(R) MPI Library", "ring and sum right"],
        8 * MIB,
        2,
    )),
    // The tests use small messages.
    mpi("Tests of mpi4py", &["\nOK"], 4 * MIB, 15),
    // The last line of each benchmark is its largest message.
    mpi(
        "OSU benchmarks",
        &["# MPI Bandwidth Test", "   4194304 "],
        100 * MIB,
        10,
    ),
    built(
        &[VALKEY],
        // The value of 4,000,000 bytes twice, and 4,000 values of 4096 bytes: 24.4 MB.
        storage("Valkey", &["value right", "GET: "], 23 * MIB, 2),
    ),
    built(
        &[SPDK],
        storage("SPDK", &["Attached to NVMeoF", "blocks right"], 16 * MIB, 5),
    ),
    storage("Ceph", &["object right"], 16 * MIB, 3),
    built(
        &[GANESHA, NTIRPC],
        storage("NFS", &["file right: 2097152 bytes"], 4 * MIB, 2),
    ),
    built(
        &[LGPROXY],
        Recipe {
            group: Group::Video,
            // A picture has 8 MiB. The last one arrives twenty times.
            ..on_ethernet(mpi(
                "LGProxy",
                &[
                    " 0 foreign words, the last picture is whole",
                    "Candidate transport verbs;ofi_rxm",
                ],
                160 * MIB,
                3,
            ))
        },
    ),
    built(
        &[LIBFABRIC],
        suite("Tests of libfabric", &["both suites passed"], 256 * MIB, 30),
    ),
    built(
        &[UCX],
        suite("Tests of UCX", &["[  PASSED  ] 264 tests"], 1024 * MIB, 30),
    ),
    built(
        &[RDMA_CORE],
        suite(
            "Tests of rdma-core",
            &["Ran 390 tests", "\nOK"],
            16 * MIB,
            10,
        ),
    ),
];

const SPDK: Source = Source {
    variable: "SPDK",
    software: "SPDK with its submodule isa-l",
    debian: None,
};

const VALKEY: Source = Source {
    variable: "VALKEY",
    software: "Valkey 9",
    debian: Some(("valkey", "sid")),
};

const LGPROXY: Source = Source {
    variable: "LGPROXY",
    software: "LGProxy with its submodules LGMP, LookingGlass and libtrf",
    debian: None,
};

const LIBFABRIC: Source = Source {
    variable: "LIBFABRIC",
    software: "libfabric 2 with fabtests",
    debian: Some(("libfabric", "trixie")),
};

const UCX: Source = Source {
    variable: "UCX",
    software: "UCX",
    debian: Some(("ucx", "bookworm")),
};

const RDMA_CORE: Source = Source {
    variable: "RDMA_CORE",
    software: "rdma-core 65",
    debian: Some(("rdma-core", "sid")),
};

const GANESHA: Source = Source {
    variable: "GANESHA",
    software: "nfs-ganesha 6.5",
    debian: Some(("nfs-ganesha", "trixie")),
};

const NTIRPC: Source = Source {
    variable: "NTIRPC",
    software: "ntirpc 6.3",
    debian: Some(("ntirpc", "trixie")),
};

/// Returns a recipe that needs a link on an Ethernet netdev.
const fn on_ethernet(recipe: Recipe) -> Recipe {
    Recipe {
        network: Network::Ethernet,
        ..recipe
    }
}

/// Returns a recipe that needs sources.
const fn built(sources: &'static [Source], recipe: Recipe) -> Recipe {
    Recipe { sources, ..recipe }
}

const fn mpi(
    title: &'static str,
    expect: &'static [&'static str],
    bytes: u64,
    minutes: u64,
) -> Recipe {
    Recipe {
        group: Group::Mpi,
        title,
        expect,
        bytes,
        network: Network::Loopback,
        minutes,
        sources: &[],
    }
}

const fn storage(
    title: &'static str,
    expect: &'static [&'static str],
    bytes: u64,
    minutes: u64,
) -> Recipe {
    Recipe {
        group: Group::Storage,
        ..mpi(title, expect, bytes, minutes)
    }
}

const fn suite(
    title: &'static str,
    expect: &'static [&'static str],
    bytes: u64,
    minutes: u64,
) -> Recipe {
    Recipe {
        group: Group::Suites,
        network: Network::Ethernet,
        ..mpi(title, expect, bytes, minutes)
    }
}

const fn wheel(title: &'static str, expect: &'static [&'static str], bytes: u64) -> Recipe {
    Recipe {
        group: Group::Wheels,
        title,
        expect,
        bytes,
        network: Network::Loopback,
        minutes: 2,
        sources: &[],
    }
}
