//! Names of enumerators.
