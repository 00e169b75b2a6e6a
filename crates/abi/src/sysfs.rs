//! Files that libibverbs reads for programs.
