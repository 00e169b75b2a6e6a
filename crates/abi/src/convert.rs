//! Attributes, flags and opcodes between C and the engine.
